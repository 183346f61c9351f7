"""Private preprocessing: means, deviations and quantiles of columns. A scaler that is fitted to records leaks them too.

Every release is accounted as Gaussian DP (Dong, Roth and Su 2022) for add-or-remove neighbours, so that the scaler and
the model compose to one mu, the root of the sum of squares. Moments are one Gaussian mechanism. A quantile is the
exponential mechanism of Smith 2011, which is epsilon-DP and so mu-GDP with mu = 2 Phi^-1(e^epsilon / (1 + e^epsilon)):
the trade-off function of epsilon-DP lies above the Gaussian one where both meet the diagonal, and that one is convex.

Nothing here looks at the data to learn its range: ranges are declared. Where they are known, scaling by them costs no
privacy at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from divulge.core.errors import InvalidInput, WrongShape
from divulge.core.validation import checked_choice, checked_number, checked_rows
from divulge.training.private.randomness import Randomness, SeededRandomness, SystemRandomness

Array = NDArray[np.float64]
Scaling = Literal["ranges", "moments", "quantiles"]
_LEAST = 0.02  # of a column's declared half width: the smallest scale, so that noise cannot blow a column up
_QUARTILES = (0.25, 0.5, 0.75)
_NORMAL_QUARTILES = 1.349  # between the quartiles of a normal distribution lie so many deviations


@dataclass(frozen=True)
class PrivateScale:
    """Where the columns of a table lie and how wide they are, released with differential privacy.

    Attributes
    ----------
    centre : ndarray [d]
        What is subtracted from each column.
    scale : ndarray [d]
        By what it is divided then.
    mu : float
        The Gaussian DP that the release spent; 0 where only declared ranges were used.
    """

    centre: Array
    scale: Array
    mu: float

    def __call__(self, X: Any) -> Array:
        """The rows, scaled."""
        return (np.asarray(X, dtype=np.float64) - self.centre) / self.scale


def source_of(seed: int | None) -> Randomness:
    """Noise from the operating system, or from a seed, which then gives no guarantee."""
    return SystemRandomness() if seed is None else SeededRandomness(seed)


def private_scale(
    X: Any, ranges: Any, *, mu: float, method: Scaling = "moments", seed: int | None = None
) -> PrivateScale:
    """Scale columns by what their declared ranges, private moments or private quartiles say.

    Parameters
    ----------
    X : array [n, d]
        The records.
    ranges : array [d, 2]
        The least and largest value of each column, from what is publicly known and not from the records.
    mu : float
        The Gaussian DP that may be spent; nothing is spent with ``"ranges"``.
    method : {"ranges", "moments", "quantiles"}, default "moments"
        The middle and half width of the ranges; private means and standard deviations; or private medians and
        distances of quartiles.
    seed : int, optional
        Repeats the noise. No privacy can be claimed then.

    Returns
    -------
    PrivateScale
        Centres, scales and what was spent.

    Raises
    ------
    InvalidInput
        A range is empty, or there is nothing to spend.
    WrongShape
        There is not one range for each column.

    Examples
    --------
    >>> import numpy as np
    >>> from divulge.protection import private_scale
    >>> X = np.random.default_rng(0).normal(50, 10, size=(5000, 2))
    >>> scale = private_scale(X, [(0, 100), (0, 100)], mu=0.5, seed=0)
    >>> bool(np.abs(scale.centre - 50).max() < 1), scale.mu
    (True, 0.5)
    """
    rows = checked_rows(X, what="records").numpy().astype(np.float64)
    low, high = checked_ranges(ranges, rows.shape[1])
    checked_choice("method", method, ("ranges", "moments", "quantiles"))
    middle, half = (low + high) / 2, (high - low) / 2
    if method == "ranges":
        return PrivateScale(middle, half, 0.0)
    checked_number("mu", mu, above=0, hint="It is the Gaussian DP that the scaler may spend.")
    inside = (np.clip(rows, low, high) - middle) / half  # every column in [-1, 1]
    noise = source_of(seed)
    found = _moments(inside, mu, noise) if method == "moments" else _quartiles(inside, mu, noise)
    return PrivateScale(middle + half * found[0], half * np.maximum(found[1], _LEAST), mu)


def checked_ranges(ranges: Any, columns: int) -> tuple[Array, Array]:
    """The least and largest value of each column [d], [d]; or a sentence about what is wrong."""
    both = np.asarray(ranges, dtype=np.float64)
    if both.shape != (columns, 2):
        raise WrongShape(f"Ranges are {columns} pairs (least, largest), one a column; got an array of {both.shape}.")
    if not np.isfinite(both).all() or (both[:, 0] >= both[:, 1]).any():
        raise InvalidInput("Each range goes from a least value to a larger one, both finite.")
    return both[:, 0], both[:, 1]


def _moments(inside: Array, mu: float, noise: Randomness) -> tuple[Array, Array]:
    """Means and deviations: one Gaussian release of sums, sums of squares and the count, of norm sqrt(2 d + 1)."""
    import torch

    width = inside.shape[1]
    sums = np.concatenate([inside.sum(axis=0), np.square(inside).sum(axis=0), [len(inside)]])
    deviation = math.sqrt(2 * width + 1) / mu
    sums = sums + noise.normal((2 * width + 1,), deviation, torch.float64).numpy()
    count = max(1.0, float(sums[-1]))
    means = np.clip(sums[:width] / count, -1, 1)
    squares = np.clip(sums[width:-1] / count, 0, 1)
    return means, np.sqrt(np.clip(squares - means**2, 0, None))


def _quartiles(inside: Array, mu: float, noise: Randomness) -> tuple[Array, Array]:
    """Medians and distances of quartiles, each by the exponential mechanism; all of them share mu equally."""
    each = mu / math.sqrt(len(_QUARTILES) * inside.shape[1])
    epsilon = epsilon_within(each)
    found = np.array([[_quantile(column, q, epsilon, noise) for q in _QUARTILES] for column in inside.T])
    found.sort(axis=1)
    return found[:, 1], (found[:, 2] - found[:, 0]) / _NORMAL_QUARTILES


def epsilon_within(mu: float) -> float:
    """The largest epsilon of pure DP that is mu-GDP."""
    from scipy.special import ndtr

    return float(math.log(ndtr(mu / 2)) - math.log(ndtr(-mu / 2)))


def mu_of_epsilon(epsilon: float) -> float:
    """The mu with which epsilon-DP is mu-GDP."""
    return float(2 * ndtri(1 / (1 + math.exp(-epsilon))))


def _quantile(column: Array, q: float, epsilon: float, noise: Randomness) -> float:
    """One quantile of values in [-1, 1]: an interval between neighbours, the likelier the nearer its rank is to q n.

    One record more or less moves a rank by 1 - q and q n by at most 1, together by at most max(q, 1 - q) < 1.
    """
    points = np.concatenate([[-1.0], np.clip(np.sort(column), -1, 1), [1.0]])
    ranks = np.arange(len(points) - 1)
    utility = -np.abs(ranks - q * len(column))
    lengths = np.diff(points)
    logs = epsilon / 2 * utility + np.log(
        np.where(lengths > 0, lengths, 0.0), where=lengths > 0, out=np.full(len(lengths), -np.inf)
    )
    chosen = int(np.argmax(logs + _gumbel(len(logs), noise)))
    return float(points[chosen] + (points[chosen + 1] - points[chosen]) * _uniform(1, noise)[0])


def _uniform(count: int, noise: Randomness) -> Array:
    import torch
    from scipy.special import ndtr

    drawn: Array = ndtr(noise.normal((count,), 1.0, torch.float64).numpy())
    return drawn


def _gumbel(count: int, noise: Randomness) -> Array:
    return -np.log(-np.log(np.clip(_uniform(count, noise), 1e-300, 1 - 1e-16)))

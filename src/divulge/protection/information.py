"""How much can a model say about one record? Bounds by mutual information and the dimension of the data.

The chance of a reconstruction stops being limited where epsilon passes a few dozen, because a few hundred records
cannot show that a blind guess is rarer than one in a few hundred. The error of a reconstruction stays limited for
records of many columns. Both bounds here are derived from first principles and hold under a stated assumption on the
prior.

**Information.** Let the record X be drawn from a prior, independent of the known records, and let Q be the law of the
model trained without it. Then I(X; model) <= E KL(model given X || Q), and KL is at most rho for rho-zCDP, mu^2 / 2
for mu-GDP, epsilon for (alpha, epsilon)-RDP of any order, and epsilon tanh(epsilon / 2) for pure DP (the largest
divergence of two laws whose ratio lies within e^-epsilon and e^epsilon). (epsilon, delta)-DP alone bounds no
divergence.

**Error.** By Shannon's converse an attack with mean squared error D needs I >= R(D), the rate-distortion function of
the prior. For a Gaussian prior R is known (reverse water-filling over the eigenvalues of the covariance): every
rebuilt record has an expected error of at least D(I). With d equal eigenvalues that is variance x e^(-2 I / d): the
information stands against the dimension.

**Chance.** For the same prior the chance of a blind guess within eta is at most the Chernoff bound min over t of exp(t
eta^2) / prod sqrt(1 + 2 t lambda), because by Anderson's inequality no centre beats the mean. It falls exponentially
with the number of directions in which records vary.

Both are as good as the assumption: an attacker for whom records vary less than a Gaussian of this covariance may do
better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from divulge.core.errors import InvalidInput
from divulge.core.validation import checked_choice, checked_number, checked_rows
from divulge.protection.bounds import Order, reconstruction_bound

Units = Literal["data", "scaled"]
Array = NDArray[np.float64]


def information_bound(
    *,
    epsilon: float | None = None,
    rdp: Order | Sequence[Order] | None = None,
    zcdp: float | None = None,
    gaussian: float | None = None,
) -> float:
    """The most that a model says about one record, in nats (1 nat is 1.44 bits).

    Parameters
    ----------
    epsilon : float, optional
        Of pure DP: epsilon tanh(epsilon / 2).
    rdp : (float, float) or list of (float, float), optional
        (alpha, epsilon) of Renyi DP; of several orders the best is taken.
    zcdp : float, optional
        rho of zero-concentrated DP.
    gaussian : float, optional
        mu of Gaussian DP: sqrt(steps) / noise_multiplier for full-batch training.

    Returns
    -------
    float
        Nats.

    Raises
    ------
    InvalidInput
        The privacy spent is given in no way or in several.

    Examples
    --------
    >>> from divulge.protection import information_bound
    >>> information_bound(gaussian=2.0), information_bound(zcdp=2.0)
    (2.0, 2.0)
    """
    given = {"epsilon": epsilon, "rdp": rdp, "zcdp": zcdp, "gaussian": gaussian}
    reconstruction_bound(0.5, **given)  # type: ignore[arg-type]  # refuses what makes no sense
    if gaussian is not None:
        return gaussian**2 / 2
    if zcdp is not None:
        return zcdp
    if epsilon is not None:
        return epsilon * math.tanh(epsilon / 2)
    assert rdp is not None
    orders: Any = [rdp] if isinstance(rdp[0], int | float) else rdp
    return float(min(spent for _, spent in orders))


@dataclass(frozen=True)
class Spread:
    """In how many directions records vary, and how much.

    Attributes
    ----------
    variances : ndarray [d]
        Eigenvalues of the covariance, the largest first.
    units : {"data", "scaled"}
        The units: those of the data, or each column in units of its own standard deviation.
    """

    variances: Array
    units: Units

    @property
    def total(self) -> float:
        """The sum of the variances."""
        return float(self.variances.sum())

    @property
    def effective_dimension(self) -> float:
        """The number of equal directions that would vary like these: (sum of variances)^2 / sum of squares."""
        return self.total**2 / float(np.square(self.variances).sum())


def spread_of(data: Any, *, units: Units = "data") -> Spread:
    """The variances of records along their principal directions.

    Parameters
    ----------
    data : array [n, d]
        Records, at least 20.
    units : {"data", "scaled"}, default "data"
        Errors are measured in the units of the data, or in units of each column's standard deviation, as the audit of
        a table does.

    Returns
    -------
    Spread
        The variances and the effective dimension.

    Raises
    ------
    InvalidInput
        There are fewer than 20 records, or none of the columns varies.

    Examples
    --------
    >>> import divulge
    >>> X = divulge.datasets.load("digits").train.X
    >>> round(divulge.protection.spread_of(X).effective_dimension, 1)
    13.1
    """
    checked_choice("units", units, ("data", "scaled"))
    X = checked_rows(data, what="records").numpy().astype(np.float64)
    if len(X) < 20:
        raise InvalidInput(f"{len(X)} records are too few to say how records vary; give at least 20.")
    deviation = X.std(axis=0)
    if not deviation.any():
        raise InvalidInput("No column varies, so there is nothing to rebuild.")
    if units == "scaled":
        X = X[:, deviation > 0] / deviation[deviation > 0]
    singular = np.linalg.svd(X - X.mean(axis=0), compute_uv=False)
    kept = singular > singular[0] * 1e-10
    return Spread(np.square(singular[kept]) / len(X), units)


def error_bound(spread: Spread | Sequence[float], nats: float) -> float:
    """The least share of the variance that every reconstruction misses on average, for a Gaussian prior.

    Parameters
    ----------
    spread : Spread or sequence of float
        The variances of the prior along its principal directions.
    nats : float
        What the model says about the record at most, from :func:`information_bound`.

    Returns
    -------
    float
        The expected squared error over the total variance: 1 for a guess at the mean, 0 for an exact record.

    Raises
    ------
    InvalidInput
        A variance is not positive, or the information is negative.

    Examples
    --------
    >>> from divulge.protection import error_bound
    >>> round(error_bound([1.0] * 100, nats=10.0), 3)  # e^(-2 x 10 / 100)
    0.819
    """
    variances = _checked(spread)
    checked_number("nats", nats, at_least=0)
    # reverse water-filling: with the k largest directions above the level, sum of log(variance) - k log(level) = 2 nats
    logs = np.cumsum(np.log(variances))
    counts = np.arange(1, len(variances) + 1)
    levels = (logs - 2 * nats) / counts
    following = np.append(np.log(variances[1:]), -np.inf)
    first = int(np.argmax(levels >= following))
    level = math.exp(levels[first])
    return float(np.minimum(variances, level).sum() / variances.sum())


def log_kappa_covariance(spread: Spread | Sequence[float], eta: float) -> float:
    """The logarithm of an upper limit on kappa for a Gaussian prior with these variances.

    Parameters
    ----------
    spread : Spread or sequence of float
        The variances of the prior along its principal directions.
    eta : float
        The Euclidean error within which a reconstruction counts, in the units of the spread.

    Returns
    -------
    float
        log kappa, at most 0 (nothing is limited).

    Raises
    ------
    InvalidInput
        A variance or eta is not positive.

    Examples
    --------
    >>> from divulge.protection import log_kappa_covariance, log_kappa_gaussian
    >>> log_kappa_covariance([1.0] * 50, 2.0) >= log_kappa_gaussian(50, 2.0)
    True
    """
    variances = _checked(spread)
    checked_number("eta", eta, above=0)
    if eta**2 >= variances.sum():
        return 0.0

    def exponent(log_t: float) -> float:
        t = math.exp(log_t)
        return float(t * eta**2 - np.log1p(2 * t * variances).sum() / 2)

    top = math.log(len(variances) / (2 * eta**2))  # beyond it the derivative is positive
    found = minimize_scalar(exponent, bounds=(top - 60, top + 1), method="bounded", options={"xatol": 1e-9})
    return min(0.0, float(found.fun))


def _checked(spread: Spread | Sequence[float]) -> Array:
    variances = np.asarray(spread.variances if isinstance(spread, Spread) else spread, dtype=np.float64)
    if variances.ndim != 1 or not len(variances) or not np.isfinite(variances).all() or variances.min() <= 0:
        raise InvalidInput("The variances of a prior are positive numbers, one a direction.")
    return np.sort(variances)[::-1]

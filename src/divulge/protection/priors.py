"""kappa: the chance that the best blind guess lands within eta of the record.

Balle et al. 2022, section VII-D: closed forms for the uniform prior on a ball (Proposition 6) and the Gaussian prior
(Proposition 7), exact and in logarithms rather than the paper's exponential bounds.

Beyond the paper: two limits from the user's own records, which are taken as independent draws from the prior.
``Kappa.upper`` holds for every guess that was tried, at once (a union bound over the guesses, each judged on records
that did not suggest it). It is kappa if the best blind guess is among those tried. ``Kappa.ceiling`` holds for every
guess there is. Let B be the ball of radius eta with the most probability, kappa. Among n further records either one
lies in B, and then B lies inside the ball of twice the radius around that record; or none does, which has probability
(1 - kappa)^n. With an error of a / 2 for each of the two, kappa is at most the larger of 1 - (a / 2)^(1 / n) and the
largest upper limit of the doubled balls.

Both are about a record of which only the population is known. For someone who knows part of the record, kappa is that
of the conditional distribution, and larger.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy.special import gammaincc, gammaln

from divulge.core.errors import InvalidInput
from divulge.core.statistics import rate_at_most
from divulge.core.validation import checked_choice, checked_number, checked_rows, checked_whole
from divulge.protection import blind_guess

if TYPE_CHECKING:
    from torch import Tensor

ErrorMeasure = Literal["mse", "l2", "l1", "max"]
_POWERS = {"mse": 2.0, "l2": 2.0, "l1": 1.0, "max": math.inf}


def log_kappa_uniform(dimension: int, eta: float) -> float:
    """The logarithm of kappa for records that are uniform on the unit ball (Balle 2022, Proposition 6): kappa = eta^d.

    Parameters
    ----------
    dimension : int
        d, the number of columns.
    eta : float
        The Euclidean error within which a reconstruction counts, between 0 and 1.

    Returns
    -------
    float
        log kappa.

    Raises
    ------
    InvalidInput
        A parameter is out of its range.

    Examples
    --------
    >>> from divulge.protection import log_kappa_uniform
    >>> round(log_kappa_uniform(10, 0.5), 3)
    -6.931
    """
    checked_whole("dimension", dimension, at_least=1)
    hint = "From eta = 1 on, kappa is 1: the centre of the ball is always within eta."
    checked_number("eta", eta, above=0, below=1, hint=hint)
    return dimension * math.log(eta)


def log_kappa_gaussian(dimension: int, eta: float, sigma: float = 1.0) -> float:
    """The logarithm of kappa for Gaussian records (Balle 2022, Proposition 7), exactly: P[chi^2_d <= (eta / sigma)^2].

    Parameters
    ----------
    dimension : int
        d, the number of columns.
    eta : float
        The Euclidean error within which a reconstruction counts.
    sigma : float, default 1.0
        The standard deviation of every column.

    Returns
    -------
    float
        log kappa.

    Raises
    ------
    InvalidInput
        A parameter is out of its range, or eta is so wide that kappa is 1.

    Examples
    --------
    >>> from divulge.protection import log_kappa_gaussian
    >>> round(log_kappa_gaussian(10, 1.0), 3)
    -8.667
    """
    checked_whole("dimension", dimension, at_least=1)
    for name, value in (("eta", eta), ("sigma", sigma)):
        checked_number(name, value, above=0, hint="Distances and deviations are positive.")
    a, x = dimension / 2, (eta / sigma) ** 2 / 2
    if x > a + 1:  # no underflow here, and the series below would be long
        log_kappa = float(np.log1p(-gammaincc(a, x)))
        if log_kappa == 0:
            raise InvalidInput(
                f"eta {eta:g} is so wide for {dimension} dimensions of deviation {sigma:g} that a blind guess at the "
                "mean is always right (kappa is 1); count only closer ones."
            )
        return log_kappa
    # lower incomplete gamma by its series: x^a e^-x / Gamma(a + 1) (1 + x / (a + 1) + x^2 / ((a + 1)(a + 2)) + ...)
    term, total, n = 1.0, 1.0, 0
    while term > 1e-17 * total:
        n += 1
        term *= x / (a + n)
        total += term
    return float(a * math.log(x) - x - gammaln(a + 1) + math.log(total))


@dataclass(frozen=True)
class Kappa:
    """kappa as the data show it.

    Attributes
    ----------
    estimate : float
        The largest share of fresh records within eta of one of the guesses tried.
    upper : float
        Upper confidence limit for all guesses tried, at once. It is a limit of kappa assuming that the best blind
        guess is among them.
    ceiling : float
        Upper confidence limit for every guess, tried or not, by doubling eta. It assumes nothing about the guesses and
        is far above ``upper`` for records of many columns.
    guess : Tensor [d]
        The guess that hit most often.
    guesses : int
        How many were judged.
    confidence : float
        With which each limit holds.
    records : int
        How many records the limits rest on.
    """

    estimate: float
    upper: float
    ceiling: float
    guess: Tensor
    guesses: int
    confidence: float
    records: int

    @property
    def log_upper(self) -> float:
        """The logarithm of ``upper``."""
        return math.log(self.upper)


def estimate_kappa(
    data: Any,
    eta: float,
    *,
    error: ErrorMeasure = "mse",
    confidence: float = 0.95,
    candidates: int = 1000,
    seed: int = 0,
) -> Kappa:
    """How often the best of many blind guesses is within eta of a record like these.

    Each half of the records suggests guesses (themselves, means of their neighbourhoods, and points between), and the
    other half judges the 50 most promising, so that no guess is judged on what suggested it.

    Parameters
    ----------
    data : array [n, d]
        Records, at least 20: independent draws from the population.
    eta : float
        The error within which a reconstruction counts.
    error : {"mse", "l2", "l1", "max"}, default "mse"
        The mean squared error, the Euclidean distance, the sum of absolute differences, or the largest of them.
    confidence : float, default 0.95
        With which each limit holds.
    candidates : int, default 1000
        Records around which the balls of the ceiling lie; the first 500 of them also suggest guesses.
    seed : int, default 0
        Cuts the records in two.

    Returns
    -------
    Kappa
        The share, its upper limit for the guesses tried, and the ceiling for every guess.

    Raises
    ------
    InvalidInput
        There are fewer than 20 records, or a parameter is out of its range.

    Examples
    --------
    >>> import divulge
    >>> X = divulge.datasets.load("iris").train.X
    >>> kappa = divulge.protection.estimate_kappa(X, eta=0.01)
    >>> kappa.estimate <= kappa.upper <= kappa.ceiling <= 1
    True
    """
    import torch  # which closed forms do without

    checked_number("confidence", confidence, above=0, below=1)
    checked_number("eta", eta, above=0)
    checked_choice("error", error, _POWERS)
    checked_whole("candidates", candidates, at_least=1)
    X = checked_rows(data, what="records")
    if len(X) < 20:
        raise InvalidInput(f"{len(X)} records are too few to estimate kappa; give at least 20.")
    radius, power = math.sqrt(eta * X.shape[1]) if error == "mse" else eta, _POWERS[error]
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(seed))
    halves = X[order[: len(X) // 2]], X[order[len(X) // 2 :]]
    doubt = 1 - confidence
    tried = [
        _judged(blind_guess.promising(half[:candidates], half, radius, power), other, radius, power)
        for half, other in (halves, halves[::-1])
    ]
    guesses = sum(len(guesses) for guesses, _, _ in tried)
    limits = [rate_at_most(int(hits.max()), judges, error=doubt / guesses) for _, hits, judges in tried]
    best = max(tried, key=lambda judged: float(judged[1].max()) / judged[2])
    return Kappa(
        estimate=float(best[1].max()) / best[2],
        upper=max(limits),
        ceiling=max(*limits, _ceiling(halves[0][:candidates], halves[1], radius, power, doubt)),
        guess=best[0][int(best[1].argmax())],
        guesses=guesses,
        confidence=confidence,
        records=len(X),
    )


def _judged(guesses: Tensor, judges: Tensor, radius: float, power: float) -> tuple[Tensor, Tensor, int]:
    """The guesses, how many judging records each is close to, and how many there are."""
    return guesses, blind_guess.within(guesses, judges, radius, power), len(judges)


def _ceiling(centres: Tensor, judges: Tensor, radius: float, power: float, doubt: float) -> float:
    """The limit for every guess: either no centre is in the best ball, or a doubled ball around one contains it."""
    missed = -math.expm1(math.log(doubt / 2) / len(centres))
    hits = blind_guess.within(centres, judges, 2 * radius, power)
    return max(missed, rate_at_most(int(hits.max()), len(judges), error=doubt / (2 * len(centres))))

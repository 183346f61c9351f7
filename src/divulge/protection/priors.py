"""kappa: the chance that the best blind guess lands within eta of the record.

Balle et al. 2022, section VII-D: closed forms for the uniform prior on a ball (Proposition 6) and the Gaussian prior
(Proposition 7), exact and in logarithms rather than the paper's exponential bounds, and, beyond the paper, an estimate
from the user's own data with a confidence bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy.special import betaincinv, gammaincc, gammaln

from divulge.errors import InvalidInput

if TYPE_CHECKING:
    from torch import Tensor

ErrorMeasure = Literal["mse", "l2", "l1", "max"]
_POWERS = {"mse": 2.0, "l2": 2.0, "l1": 1.0, "max": math.inf}


def log_kappa_uniform(dimension: int, eta: float) -> float:
    """Proposition 6: the prior is uniform on the unit ball of R^d, the error Euclidean; kappa = eta^d."""
    _check_dimension(dimension)
    if not 0 < eta < 1:
        raise InvalidInput(
            f"On the unit ball eta must lie strictly between 0 and 1; got {eta}. From eta = 1 on, kappa is 1: the "
            "centre of the ball is always within eta."
        )
    return dimension * math.log(eta)


def log_kappa_gaussian(dimension: int, eta: float, sigma: float = 1.0) -> float:
    """Proposition 7: the prior is N(w, sigma^2 I) in R^d, the error Euclidean; kappa = P[chi^2_d <= (eta/sigma)^2]."""
    _check_dimension(dimension)
    if not (eta > 0 and sigma > 0 and math.isfinite(eta) and math.isfinite(sigma)):
        raise InvalidInput(f"eta and sigma must be positive and finite; got {eta} and {sigma}.")
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
    """kappa as the data show it."""

    estimate: float
    """Share of fresh records within eta of the best guess found."""
    upper: float
    """Clopper-Pearson upper confidence limit for that guess."""
    ceiling: float
    """Upper limit for *every* guess, by doubling eta: conservative, and valid whatever guess we failed to try."""
    guess: Tensor
    confidence: float
    records: int

    @property
    def log_upper(self) -> float:
        return math.log(self.upper)


def estimate_kappa(
    data: Any,
    eta: float,
    *,
    error: ErrorMeasure = "mse",
    confidence: float = 0.95,
    candidates: int = 500,
    seed: int = 0,
) -> Kappa:
    """The best oblivious guess for records like ``data`` [n, d], and how often it is within eta.

    ``error`` is the mean squared error, the Euclidean distance ("l2"), the sum of absolute differences ("l1") or the
    largest of them ("max").

    Half of the records suggest guesses (themselves, and the means of their neighbourhoods), the other half judge the
    best one, so the estimate is not fitted to what it is measured on.
    """
    import torch  # which closed forms do without

    if not 0 < confidence < 1:
        raise InvalidInput(f"confidence must lie strictly between 0 and 1; got {confidence}.")
    if not (eta > 0 and math.isfinite(eta)):
        raise InvalidInput(f"eta must be positive and finite; got {eta}.")
    if error not in _POWERS:
        raise InvalidInput(f"error is {', '.join(_POWERS)}; got {error!r}.")
    try:
        X = torch.as_tensor(np.asarray(data, dtype=np.float64)).reshape(len(data), -1)
    except (TypeError, ValueError) as failure:
        raise InvalidInput(f"Records are rows of numbers [n, d]; these are not: {failure}") from failure
    if len(X) < 20:
        raise InvalidInput(f"{len(X)} records are too few to estimate kappa; give at least 20.")
    if not bool(torch.isfinite(X).all()):
        raise InvalidInput("The records hold NaN or infinity; kappa needs finite numbers.")
    radius, power = math.sqrt(eta * X.shape[1]) if error == "mse" else eta, _POWERS[error]
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(seed))
    proposing, judging = X[order[: len(X) // 2]], X[order[len(X) // 2 :]]
    guess = _best_guess(proposing, proposing[:candidates], radius, power)
    hits = int((torch.cdist(guess[None], judging, p=power)[0] <= radius).sum())
    # any ball of radius eta that holds a record lies inside the ball of twice the radius around that record
    centres = proposing[:candidates]
    doubled = (torch.cdist(centres, judging, p=power) <= 2 * radius).sum(dim=1)
    level = 1 - (1 - confidence) / len(centres)  # every centre at once (Bonferroni)
    return Kappa(
        estimate=hits / len(judging),
        upper=_clopper_pearson_upper(hits, len(judging), confidence),
        ceiling=_clopper_pearson_upper(int(doubled.max()), len(judging), level),
        guess=guess,
        confidence=confidence,
        records=len(X),
    )


def _best_guess(records: Tensor, starts: Tensor, radius: float, power: float) -> Tensor:
    """The point with the most records within ``radius``: every start and its mean shifts, the fullest ball wins."""
    import torch

    centres = torch.cat([starts, records.mean(dim=0, keepdim=True)])
    best, most = centres[0], -1
    for _ in range(4):
        near = torch.cdist(centres, records, p=power) <= radius
        counts = near.sum(dim=1)
        if int(counts.max()) > most:
            best, most = centres[int(counts.argmax())].clone(), int(counts.max())
        weights = near.to(records.dtype)
        centres = torch.where(counts[:, None] > 0, weights @ records / counts.clamp(min=1)[:, None], centres)
    return best


def _clopper_pearson_upper(hits: int, trials: int, confidence: float) -> float:
    return 1.0 if hits == trials else float(betaincinv(hits + 1, trials - hits, confidence))


def _check_dimension(dimension: int) -> None:
    if dimension < 1:
        raise InvalidInput(f"The dimension must be at least 1; got {dimension}.")

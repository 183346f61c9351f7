"""What private training costs in (epsilon, delta), and which noise a wanted epsilon needs.

Every number here comes from Google's dp-accounting library, by Renyi differential privacy (RDP) and by privacy-loss
distributions (PLD); none from a formula of our own. Neighbours differ by one record added or removed.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from divulge.errors import InvalidInput, MissingPackage
from divulge.progress import tick

Accountant = Literal["rdp", "pld"]


@dataclass(frozen=True)
class PrivacySpent:
    """epsilon at delta under both accountants, for so many noisy steps."""

    epsilon_rdp: float
    epsilon_pld: float
    delta: float
    noise_multiplier: float
    sampling_rate: float
    steps: int

    @property
    def epsilon(self) -> float:
        """The smaller of the two: both are valid."""
        return min(self.epsilon_rdp, self.epsilon_pld)


def privacy_spent(*, noise_multiplier: float, steps: int, delta: float, sampling_rate: float = 1.0) -> PrivacySpent:
    """epsilon at ``delta`` after ``steps`` noisy steps (Poisson sampling where ``sampling_rate`` is below 1)."""
    rdp, pld = (_epsilon(name, noise_multiplier, steps, delta, sampling_rate) for name in get_args(Accountant))
    return PrivacySpent(rdp, pld, delta, noise_multiplier, sampling_rate, steps)


def epsilon_spent(
    *, noise_multiplier: float, steps: int, delta: float, sampling_rate: float = 1.0, accountant: Accountant = "pld"
) -> float:
    """The same by one accountant."""
    epsilon = _epsilon(accountant, noise_multiplier, steps, delta, sampling_rate)
    if math.isinf(epsilon):
        raise InvalidInput(
            f"The {accountant.upper()} accountant cannot represent a delta of {delta:g} for noise multiplier "
            f"{noise_multiplier:g} and {steps} steps: its epsilon is infinite; ask for a larger delta."
        )
    return epsilon


def _epsilon(accountant: Accountant, noise_multiplier: float, steps: int, delta: float, sampling_rate: float) -> float:
    _check(steps=steps, delta=delta, sampling_rate=sampling_rate, noise_multiplier=noise_multiplier)
    tick()  # sampled batches take most of a second
    library = _library()
    with _without_warnings():
        if accountant == "pld" and sampling_rate == 1.0:
            return max(0.0, float(library.get_epsilon_gaussian(noise_multiplier / math.sqrt(steps), delta)))
        interval = loss_interval(noise_multiplier, steps, points=200_000)
        ledger = _accountant(library, accountant, interval)()
        ledger.compose(_event(library, noise_multiplier, steps, sampling_rate))
        return max(0.0, float(ledger.get_epsilon(delta)))


def loss_interval(noise_multiplier: float, steps: int, *, points: int, largest: float = math.inf) -> float:
    """The grid of a privacy-loss distribution: fine where losses are small, and never so many points that the
    accountant does not come back. It rounds losses up, so that a coarse grid is safe, only less tight."""
    mu = math.sqrt(steps) / noise_multiplier  # the composed loss has mean mu^2 / 2 and deviation mu, or less if sampled
    one = 1 / noise_multiplier
    reach = max(min(largest, 10 + mu**2 / 2 + 10 * mu), one**2 / 2 + 10 * one)
    return max(1e-3, reach / points)


def rdp_curve(*, noise_multiplier: float, steps: int, sampling_rate: float = 1.0) -> list[tuple[float, float]]:
    """(alpha, epsilon) of Renyi differential privacy at every order the accountant could compute, for Theorem 2."""
    _check(steps=steps, sampling_rate=sampling_rate, noise_multiplier=noise_multiplier)
    library = _library()
    ledger = _accountant(library, "rdp")()
    with _without_warnings():
        ledger.compose(_event(library, noise_multiplier, steps, sampling_rate))
    pairs = zip(ledger.orders.tolist(), ledger.rdp.tolist(), strict=True)
    return [(alpha, max(0.0, epsilon)) for alpha, epsilon in pairs if math.isfinite(epsilon)]  # rounding may go below


def noise_for(
    epsilon: float, *, delta: float, steps: int, sampling_rate: float = 1.0, accountant: Accountant = "pld"
) -> float:
    """The smallest noise multiplier that spends at most (epsilon, delta), by the accountant's own calibration."""
    _check(steps=steps, delta=delta, sampling_rate=sampling_rate)
    if not 0 < epsilon < math.inf:
        raise InvalidInput(
            f"epsilon must be positive and finite; got {epsilon}. "
            "An infinite epsilon is no protection and needs no noise."
        )
    library = _library()
    if sampling_rate == 1.0 and accountant == "pld":  # T full-batch steps are one Gaussian step with sigma / sqrt(T)
        with _without_warnings():
            return float(library.get_sigma_gaussian(epsilon, delta)) * math.sqrt(steps)
    make = _accountant(library, accountant)
    least, most = 0.2, 2.0 * math.sqrt(steps) * (1 + 10 / epsilon)
    try:
        with _without_warnings():
            noise = float(
                library.calibrate_dp_mechanism(
                    make,
                    lambda noise: _event(library, noise, steps, sampling_rate),
                    epsilon,
                    delta,
                    bracket_interval=library.ExplicitBracketInterval(least, most),
                    tol=1e-4,
                )
            )
    except ValueError as error:  # the library's word for: no such noise between the brackets
        raise InvalidInput(
            f"The {accountant.upper()} accountant cannot represent epsilon {epsilon:g} at delta {delta:g} in {steps} "
            f"steps by any noise multiplier from {least:g} to {most:.4g}; ask for a "
            f"{'smaller' if epsilon > 1 else 'larger'} epsilon."
        ) from error
    while _epsilon(accountant, noise, steps, delta, sampling_rate) > epsilon:  # on a finer grid than the calibration's
        noise *= 1 + 1e-4
    return noise


@contextmanager
def _without_warnings() -> Iterator[None]:
    """The library warns of every Renyi order it leaves out, which costs tightness and nothing else, and numpy of the
    logarithm of a delta that is zero."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with np.errstate(divide="ignore"):
            yield
    finally:
        logger.setLevel(before)


def _event(library: Any, noise: float, steps: int, sampling_rate: float) -> Any:
    step = library.GaussianDpEvent(noise)
    if sampling_rate < 1:
        step = library.PoissonSampledDpEvent(sampling_rate, step)
    return library.SelfComposedDpEvent(step, steps)


def _accountant(library: Any, name: Accountant, interval: float = 1e-3) -> Any:
    if name == "rdp":
        from dp_accounting.rdp import RdpAccountant

        return RdpAccountant
    if name == "pld":
        from dp_accounting.pld import PLDAccountant

        return lambda: PLDAccountant(value_discretization_interval=interval)
    raise InvalidInput(f'accountant is "pld" or "rdp", not {name!r}.')


def _check(
    *, steps: int, sampling_rate: float, delta: float | None = None, noise_multiplier: float | None = None
) -> None:
    if steps < 1:
        raise InvalidInput(f"Private training takes at least one step; got {steps}.")
    if noise_multiplier is not None and not 0 < noise_multiplier < math.inf:
        raise InvalidInput(f"The noise multiplier must be positive and finite; got {noise_multiplier}.")
    if not 0 < sampling_rate <= 1:
        raise InvalidInput(f"The sampling rate must lie in (0, 1]; got {sampling_rate}.")
    if delta is not None and not 0 < delta < 1:
        raise InvalidInput(
            f"Gaussian noise gives (epsilon, delta)-DP only with a delta strictly between 0 and 1; got {delta}. "
            "A usual choice is below one over the number of records."
        )


def _library() -> Any:
    try:
        import dp_accounting
    except ImportError as error:
        raise MissingPackage('Privacy accounting needs dp-accounting; install "divulge[privacy]".') from error
    return dp_accounting

"""The (epsilon, delta) that private training spends, and the noise that a given epsilon needs.

Every number here comes from Google's dp-accounting library, by Renyi differential privacy (RDP) and by privacy-loss
distributions (PLD); none from a formula of our own. Neighbours differ by one record added or removed.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np

from divulge.core.errors import InvalidInput, MissingPackage
from divulge.core.progress import tick
from divulge.core.validation import checked_choice, checked_number, checked_whole

Accountant = Literal["rdp", "pld"]
LARGEST_EPSILON = 1e12
"""Beyond it the accountant's search ends at too little noise: at 1e50 it spends fifty times what it should."""


@dataclass(frozen=True)
class PrivacySpent:
    """epsilon at delta under both accountants.

    Parameters
    ----------
    epsilon_rdp, epsilon_pld : float
        By Renyi differential privacy and by privacy-loss distributions.
    delta : float
        The delta at which both hold.
    noise_multiplier : float
        Standard deviation of the noise over the clipping norm.
    sampling_rate : float
        Each record's chance to be in a batch.
    steps : int
        Noisy steps.
    """

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
    """epsilon at ``delta`` by both accountants.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation of the noise over the clipping norm.
    steps : int
        Noisy steps.
    delta : float
        The delta of (epsilon, delta)-DP.
    sampling_rate : float, default 1.0
        Each record's chance to be in a batch (Poisson sampling); 1 for full batches.

    Returns
    -------
    PrivacySpent
        Both epsilons; ``epsilon`` is the smaller one, and both are valid.

    Raises
    ------
    InvalidInput
        A parameter is out of its range.
    MissingPackage
        dp-accounting is not installed (``divulge[privacy]``).

    Examples
    --------
    >>> from divulge.protection import privacy_spent
    >>> round(privacy_spent(noise_multiplier=10.0, steps=100, delta=1e-5).epsilon, 2)
    4.38
    """
    check_schedule(steps=steps, delta=delta, sampling_rate=sampling_rate, noise_multiplier=noise_multiplier)
    rdp, pld = (_epsilon(name, noise_multiplier, steps, delta, sampling_rate) for name in get_args(Accountant))
    return PrivacySpent(rdp, pld, delta, noise_multiplier, sampling_rate, steps)


def epsilon_spent(
    *, noise_multiplier: float, steps: int, delta: float, sampling_rate: float = 1.0, accountant: Accountant = "pld"
) -> float:
    """epsilon at ``delta`` by one accountant.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation of the noise over the clipping norm.
    steps : int
        Noisy steps.
    delta : float
        The delta of (epsilon, delta)-DP.
    sampling_rate : float, default 1.0
        Each record's chance to be in a batch (Poisson sampling); 1 for full batches.
    accountant : {"pld", "rdp"}, default "pld"
        Privacy-loss distributions or Renyi differential privacy.

    Returns
    -------
    float
        epsilon.

    Raises
    ------
    InvalidInput
        A parameter is out of its range, or the accountant cannot represent the delta.
    MissingPackage
        dp-accounting is not installed (``divulge[privacy]``).

    Examples
    --------
    >>> from divulge.protection import epsilon_spent
    >>> round(epsilon_spent(noise_multiplier=10.0, steps=100, delta=1e-5), 2)
    4.38
    """
    check_schedule(steps=steps, delta=delta, sampling_rate=sampling_rate, noise_multiplier=noise_multiplier)
    checked_choice("accountant", accountant, ("pld", "rdp"))
    epsilon = _epsilon(accountant, noise_multiplier, steps, delta, sampling_rate)
    if math.isinf(epsilon):
        raise InvalidInput(
            f"The {accountant.upper()} accountant cannot represent a delta of {delta:g} for noise multiplier "
            f"{noise_multiplier:g} and {steps} steps: its epsilon is infinite; ask for a larger delta."
        )
    return epsilon


@lru_cache(maxsize=256)
def _epsilon(accountant: Accountant, noise_multiplier: float, steps: int, delta: float, sampling_rate: float) -> float:
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
    """The grid of a privacy-loss distribution: fine where losses are small, with a limited number of points.

    The accountant rounds losses up, so that a coarse grid is valid, only less tight."""
    mu = math.sqrt(steps) / noise_multiplier  # the composed loss has mean mu^2 / 2 and deviation mu, or less if sampled
    one = 1 / noise_multiplier
    reach = max(min(largest, 10 + mu**2 / 2 + 10 * mu), one**2 / 2 + 10 * one)
    return max(1e-3, reach / points)


def rdp_curve(*, noise_multiplier: float, steps: int, sampling_rate: float = 1.0) -> list[tuple[float, float]]:
    """Renyi differential privacy at every order that the accountant can compute, for Theorem 2 of Balle 2022.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation of the noise over the clipping norm.
    steps : int
        Noisy steps.
    sampling_rate : float, default 1.0
        Each record's chance to be in a batch (Poisson sampling); 1 for full batches.

    Returns
    -------
    list of (float, float)
        (alpha, epsilon) pairs.

    Raises
    ------
    InvalidInput
        A parameter is out of its range.
    MissingPackage
        dp-accounting is not installed (``divulge[privacy]``).

    Examples
    --------
    >>> from divulge.protection import rdp_curve
    >>> curve = dict(rdp_curve(noise_multiplier=10.0, steps=100))
    >>> round(curve[2.0], 6)
    1.0
    """
    check_schedule(steps=steps, sampling_rate=sampling_rate, noise_multiplier=noise_multiplier)
    library = _library()
    ledger = _accountant(library, "rdp")()
    with _without_warnings():
        ledger.compose(_event(library, noise_multiplier, steps, sampling_rate))
    pairs = zip(ledger.orders.tolist(), ledger.rdp.tolist(), strict=True)
    return [(alpha, max(0.0, epsilon)) for alpha, epsilon in pairs if math.isfinite(epsilon)]  # rounding may go below


def noise_for(
    epsilon: float, *, delta: float, steps: int, sampling_rate: float = 1.0, accountant: Accountant = "pld"
) -> float:
    """The smallest noise multiplier that spends at most (epsilon, delta), by the accountant's own calibration.

    Parameters
    ----------
    epsilon : float
        What may be spent; positive and finite.
    delta : float
        The delta of (epsilon, delta)-DP.
    steps : int
        Noisy steps.
    sampling_rate : float, default 1.0
        Each record's chance to be in a batch (Poisson sampling); 1 for full batches.
    accountant : {"pld", "rdp"}, default "pld"
        Privacy-loss distributions or Renyi differential privacy.

    Returns
    -------
    float
        The noise multiplier.

    Raises
    ------
    InvalidInput
        A parameter is out of its range, or no noise gives this epsilon.
    MissingPackage
        dp-accounting is not installed (``divulge[privacy]``).

    Examples
    --------
    >>> from divulge.protection import noise_for
    >>> round(noise_for(8.0, delta=1e-5, steps=100), 2)
    6.0
    """
    check_schedule(steps=steps, delta=delta, sampling_rate=sampling_rate)
    if not 0 < epsilon < math.inf:
        raise InvalidInput(
            f"epsilon must be positive and finite; got {epsilon}. "
            "An infinite epsilon is no protection and needs no noise."
        )
    if epsilon > LARGEST_EPSILON:
        raise InvalidInput(f"epsilon is at most {LARGEST_EPSILON:g}; got {epsilon:g}, which protects nobody.")
    checked_choice("accountant", accountant, ("pld", "rdp"))
    return _calibrated(accountant, epsilon, delta, steps, sampling_rate)


@lru_cache(maxsize=256)
def _calibrated(accountant: Accountant, epsilon: float, delta: float, steps: int, sampling_rate: float) -> float:
    """``noise_for`` of valid arguments; sampled batches take a second, and callers come back with the same ones."""
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
    if checked_choice("accountant", name, ("pld", "rdp")) == "rdp":
        from dp_accounting.rdp import RdpAccountant

        return RdpAccountant
    from dp_accounting.pld import PLDAccountant

    return lambda: PLDAccountant(value_discretization_interval=interval)


def check_schedule(
    *, steps: int, sampling_rate: float = 1.0, delta: float | None = None, noise_multiplier: float | None = None
) -> None:
    """Raise InvalidInput for a schedule that makes no sense."""
    checked_whole("steps", steps, at_least=1, hint="Private training takes at least one step.")
    if noise_multiplier is not None:
        checked_number("The noise multiplier", noise_multiplier, above=0)
    checked_number("The sampling rate", sampling_rate, above=0, at_most=1)
    if delta is not None:
        hint = "A usual choice is below one over the number of records; Gaussian noise gives no pure DP."
        checked_number("delta", delta, above=0, below=1, hint=hint)


def _library() -> Any:
    try:
        import dp_accounting
    except ImportError as error:
        raise MissingPackage('Privacy accounting needs dp-accounting; install "divulge[privacy]".') from error
    return dp_accounting

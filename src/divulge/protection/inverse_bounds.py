"""The bounds turned round: the largest privacy loss, or the smallest noise, at which a bound stays below gamma."""

from __future__ import annotations

import math

from scipy.optimize import brentq
from scipy.special import ndtri_exp

from divulge.core.errors import InvalidInput
from divulge.core.validation import checked_choice, checked_number
from divulge.protection.bounds import checked_log_kappa
from divulge.protection.mechanisms import log_subsampled_bound
from divulge.training.private.accounting import check_schedule

_LEAST_NOISE = 0.3  # below this the accountant's grid grows without bound
_TOLERANCE = 1e-3  # of the logarithm of the noise


def largest_epsilon(log_kappa: float, gamma: float) -> float:
    """The largest epsilon of pure DP that keeps the bound at or below gamma.

    Parameters
    ----------
    log_kappa : float
        The logarithm of kappa, the chance of the best blind guess.
    gamma : float
        The chance that is accepted, above kappa and below 1.

    Returns
    -------
    float
        epsilon.

    Raises
    ------
    InvalidInput
        gamma is not above kappa: no training can keep it there.

    Examples
    --------
    >>> import math
    >>> from divulge.protection import largest_epsilon
    >>> round(largest_epsilon(math.log(1e-3), 0.05), 3)
    3.912
    """
    log_gamma = _target(log_kappa, gamma)
    steep = log_gamma - log_kappa
    flat = math.log1p(-math.exp(log_kappa)) - math.log1p(-gamma)
    return max(steep, flat)


def largest_rho(log_kappa: float, gamma: float) -> float:
    """The largest rho of zero-concentrated DP that keeps the bound at or below gamma.

    Parameters
    ----------
    log_kappa : float
        The logarithm of kappa, the chance of the best blind guess.
    gamma : float
        The chance that is accepted, above kappa and below 1.

    Returns
    -------
    float
        rho.

    Raises
    ------
    InvalidInput
        gamma is not above kappa: no training can keep it there.

    Examples
    --------
    >>> import math
    >>> from divulge.protection import largest_rho
    >>> round(largest_rho(math.log(1e-3), 0.05), 3)
    0.805
    """
    return float((math.sqrt(-log_kappa) - math.sqrt(-_target(log_kappa, gamma))) ** 2)


def largest_mu(log_kappa: float, gamma: float) -> float:
    """The largest mu of Gaussian DP that keeps the bound at or below gamma.

    Parameters
    ----------
    log_kappa : float
        The logarithm of kappa, the chance of the best blind guess.
    gamma : float
        The chance that is accepted, above kappa and below 1.

    Returns
    -------
    float
        mu.

    Raises
    ------
    InvalidInput
        gamma is not above kappa: no training can keep it there.

    Examples
    --------
    >>> import math
    >>> from divulge.protection import largest_mu
    >>> round(largest_mu(math.log(1e-3), 0.05), 3)
    1.445
    """
    return float(ndtri_exp(_target(log_kappa, gamma)) - ndtri_exp(log_kappa))


def smallest_noise(
    log_kappa: float, gamma: float, *, steps: int, sampling_rate: float = 1.0, theorem: str = "gaussian"
) -> float:
    """The smallest noise multiplier of private training that keeps the bound at or below gamma.

    Parameters
    ----------
    log_kappa : float
        The logarithm of kappa, the chance of the best blind guess.
    gamma : float
        The chance that is accepted, above kappa and below 1.
    steps : int
        Noisy steps.
    sampling_rate : float, default 1.0
        Each record's chance to be in a batch (Poisson sampling); 1 for full batches.
    theorem : {"gaussian", "zcdp"}, default "gaussian"
        The tight bound (by privacy-loss distributions where batches are sampled), or Corollary 4 of Balle 2022,
        which is for full batches.

    Returns
    -------
    float
        The noise multiplier.

    Raises
    ------
    InvalidInput
        gamma is not above kappa, or Corollary 4 is asked for sampled batches.

    Examples
    --------
    >>> import math
    >>> from divulge.protection import smallest_noise
    >>> round(smallest_noise(math.log(1e-3), 0.05, steps=100), 2)
    6.92
    """
    check_schedule(steps=steps, sampling_rate=sampling_rate)
    if checked_choice("theorem", theorem, ("gaussian", "zcdp")) == "zcdp":
        if sampling_rate != 1.0:
            raise InvalidInput('Corollary 4 has no form for sampled batches; use theorem="gaussian".')
        return math.sqrt(steps / (2 * largest_rho(log_kappa, gamma)))
    full_batch = math.sqrt(steps) / largest_mu(log_kappa, gamma)
    if sampling_rate == 1.0:
        return full_batch
    log_gamma = math.log(gamma)

    def excess(log_noise: float) -> float:
        return log_subsampled_bound(log_kappa, math.exp(log_noise), sampling_rate, steps) - log_gamma

    high = low = math.log(full_batch)  # sampling only helps, so the full batch's noise is enough
    while excess(low) <= 0:
        if low < math.log(_LEAST_NOISE):  # a record that is rarely sampled needs next to none
            return math.exp(low)
        high, low = low, low - 0.4
    if low == high:
        return full_batch
    return math.exp(min(high, brentq(excess, low, high, xtol=_TOLERANCE) + _TOLERANCE))  # on the safe side


def _target(log_kappa: float, gamma: float) -> float:
    checked_number("gamma", gamma, above=0, below=1, hint="It is the chance you accept.")
    log_k = checked_log_kappa(None, log_kappa)
    if math.log(gamma) <= log_k:
        raise InvalidInput(
            f"A blind guess already succeeds with chance {math.exp(log_k):.3g}, so no training can keep it at "
            f"{gamma:.3g}; accept a larger gamma or count only closer reconstructions (a smaller eta)."
        )
    return math.log(gamma)

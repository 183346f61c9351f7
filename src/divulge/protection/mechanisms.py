"""The bound of the two mechanisms of private training: full batches, and Poisson-sampled batches.

Full-batch training with noise composes to one Gaussian mechanism, whose trade-off function is known. With sampled
batches the bound is read off the privacy-loss distribution of the composed mechanism (Hayes, Mahloujifar and Balle
2023), which dp-accounting computes and rounds up.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from divulge.core.errors import MissingPackage
from divulge.core.progress import tick
from divulge.protection.bounds import checked_log_kappa
from divulge.training.private.accounting import check_schedule, loss_interval

_LARGEST_LOSS = 600.0  # e^600 is still a float
_GRID = 20_000  # points of the composed privacy-loss distribution; its interpolation error is of second order


def gaussian_mu(noise_multiplier: float, steps: int) -> float:
    """mu of the Gaussian mechanism that full-batch private training composes to.

    Each step is a Gaussian mechanism of sensitivity ``clip`` and noise ``noise_multiplier * clip``; mu composes as the
    root of the sum of squares.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation of the noise over the clipping norm.
    steps : int
        Full-batch steps.

    Returns
    -------
    float
        sqrt(steps) / noise_multiplier.

    Raises
    ------
    InvalidInput
        There is no step, or the noise is not positive.

    Examples
    --------
    >>> from divulge.protection import gaussian_mu
    >>> gaussian_mu(10.0, 100)
    1.0
    """
    check_schedule(steps=steps, noise_multiplier=noise_multiplier)
    return math.sqrt(steps) / noise_multiplier


def subsampled_bound(
    kappa: float | None = None,
    *,
    log_kappa: float | None = None,
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
) -> float:
    """gamma for DP-SGD with Poisson sampling, from the privacy-loss distribution of the composed mechanism.

    By the Neyman-Pearson lemma the best attacker's chance is the smallest kappa e^epsilon + delta(epsilon) over all
    epsilon. delta(epsilon) is the accountant's, rounded up, so the bound is safe.

    Parameters
    ----------
    kappa : float, optional
        The chance of the best blind guess, strictly between 0 and 1.
    log_kappa : float, optional
        Its logarithm, instead of ``kappa``.
    noise_multiplier : float
        Standard deviation of the noise over the clipping norm.
    sampling_rate : float
        Each record's chance to be in a batch.
    steps : int
        Noisy steps.

    Returns
    -------
    float
        gamma, at most 1.

    Raises
    ------
    InvalidInput
        A parameter is out of its range.
    MissingPackage
        dp-accounting is not installed (``divulge[privacy]``).

    Examples
    --------
    >>> from divulge.protection import subsampled_bound
    >>> round(subsampled_bound(1e-3, noise_multiplier=1.0, sampling_rate=0.01, steps=100), 4)
    0.0018
    """
    return math.exp(log_subsampled_bound(checked_log_kappa(kappa, log_kappa), noise_multiplier, sampling_rate, steps))


def log_subsampled_bound(log_kappa: float, noise_multiplier: float, sampling_rate: float, steps: int) -> float:
    """The same in logarithms."""
    epsilons, log_deltas = _privacy_profile(noise_multiplier, sampling_rate, steps)
    return min(0.0, float(np.logaddexp(log_kappa + epsilons, log_deltas).min()))


@lru_cache(maxsize=64)
def _privacy_profile(noise_multiplier: float, sampling_rate: float, steps: int) -> tuple[Any, Any]:
    """epsilon and log delta(epsilon) of composed, Poisson-sampled Gaussian steps on a grid."""
    tick()
    check_schedule(steps=steps, sampling_rate=sampling_rate, noise_multiplier=noise_multiplier)
    try:
        from dp_accounting.pld import privacy_loss_distribution
    except ImportError as error:
        raise MissingPackage('The bound for DP-SGD needs dp-accounting; install "divulge[privacy]".') from error
    # where the composed privacy loss lies: a Gaussian limit of mean mu^2 / 2 and deviation mu
    mu = sampling_rate * math.sqrt(steps * math.expm1(min(_LARGEST_LOSS, noise_multiplier**-2)))
    mu = min(mu, gaussian_mu(noise_multiplier, steps))
    reach = min(_LARGEST_LOSS, 10 + mu**2 / 2 + 10 * mu)
    single = privacy_loss_distribution.from_gaussian_mechanism(
        noise_multiplier,
        sampling_prob=sampling_rate,
        value_discretization_interval=loss_interval(noise_multiplier, steps, points=_GRID, largest=reach),
    )
    epsilons = np.concatenate([-np.geomspace(10, 1e-3, 40), [0.0], np.geomspace(1e-3, reach, 300)])
    deltas = np.asarray(single.self_compose(steps).get_delta_for_epsilon(epsilons))
    return epsilons, np.log(np.clip(np.nan_to_num(deltas, nan=1.0), 1e-300, 1.0))

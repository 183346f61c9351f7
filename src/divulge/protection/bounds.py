"""How likely can any attacker rebuild a record? Upper bounds on the success of reconstruction, from the privacy spent.

Balle et al. 2022, section VII. A mechanism is (eta, gamma)-robust when no informed adversary, whatever it does with the
released model, rebuilds the unknown record to within an error of eta with probability above gamma. The prior enters
through one number, kappa: the success probability of the best *oblivious* guess, made without looking at the model
(``divulge.protection.priors`` computes it).

The proofs compare the released model's distribution with one that does not depend on the record, so they hold for
add-or-remove neighbours (the reference is the model trained without the record) as for replacement. All privacy
parameters here are those of **add-or-remove** neighbours, which is what accountants report.

Beyond the paper: for mechanisms whose trade-off function f is known the bound is read off it directly, gamma = 1 -
f(kappa) (Hayes, Mahloujifar and Balle 2023; Kaissis et al. 2023). For the composed Gaussian mechanism of full-batch
private training that is Phi(Phi^-1(kappa) + mu), and it is tight. Everything is computed in logarithms, because kappa
of a picture with 3,072 pixels is far below the smallest float.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtri_exp

from divulge.errors import InvalidInput, MissingPackage
from divulge.progress import tick
from divulge.protection.accounting import loss_interval

Order = tuple[float, float]  # (alpha, epsilon) of Renyi differential privacy


def reconstruction_bound(
    kappa: float | None = None,
    *,
    log_kappa: float | None = None,
    epsilon: float | None = None,
    delta: float = 0.0,
    rdp: Order | Sequence[Order] | None = None,
    zcdp: float | None = None,
    gaussian: float | None = None,
) -> float:
    """The largest chance gamma that any attacker has of a reconstruction within eta.

    Give kappa (or its logarithm), and exactly one description of the privacy spent: ``epsilon`` (with ``delta``),
    ``rdp`` (one order or many, of which the best is taken), ``zcdp`` (rho) or ``gaussian`` (mu of the composed
    Gaussian mechanism: sqrt(steps) / noise_multiplier for full-batch training).
    """
    log_k = _log_kappa(kappa, log_kappa)
    given = {"epsilon": epsilon, "rdp": rdp, "zcdp": zcdp, "gaussian": gaussian}
    chosen = [name for name, value in given.items() if value is not None]
    if len(chosen) != 1:
        raise InvalidInput(
            "Say the privacy spent in exactly one way (epsilon, rdp, zcdp or gaussian); got "
            f"{', '.join(chosen) or 'none'}."
        )
    if epsilon is not None:
        log_gamma = log_bound_dp(log_k, epsilon, delta)
    elif zcdp is not None:
        log_gamma = log_bound_zcdp(log_k, zcdp)
    elif gaussian is not None:
        log_gamma = log_bound_gaussian(log_k, gaussian)
    else:
        assert rdp is not None
        orders = [rdp] if rdp and isinstance(rdp[0], int | float) else list(rdp)
        if not orders:
            raise InvalidInput("rdp is (alpha, epsilon), or a list of such pairs; got none.")
        log_gamma = min(log_bound_rdp(log_k, *order) for order in orders)  # type: ignore[misc]
    return math.exp(log_gamma)


# -- one function a theorem, in logarithms: log kappa in, log gamma out -----------------------------------------------


def log_bound_rdp(log_kappa: float, alpha: float, epsilon: float) -> float:
    """Theorem 2: (alpha, epsilon)-RDP gives gamma = (kappa e^epsilon)^((alpha - 1) / alpha)."""
    if not alpha > 1:
        raise InvalidInput(f"A Renyi order must be larger than 1; got {alpha}.")
    _check_privacy("epsilon", epsilon)
    power = 1.0 if math.isinf(alpha) else (alpha - 1) / alpha
    return min(0.0, power * (log_kappa + epsilon))


def log_bound_dp(log_kappa: float, epsilon: float, delta: float = 0.0) -> float:
    """Corollary 3, kappa e^epsilon, sharpened by the whole trade-off function of (epsilon, delta)-DP."""
    _check_privacy("epsilon", epsilon)
    if not 0 <= delta < 1:
        raise InvalidInput(f"delta must lie in [0, 1); got {delta}.")
    steep = log_kappa + epsilon
    if delta > 0:
        steep = float(np.logaddexp(steep, math.log(delta)))
    # the other branch of the trade-off function matters for likely records: gamma <= 1 - e^-epsilon (1 - delta - kappa)
    flat = math.log1p(-math.exp(-epsilon) * max(0.0, 1 - delta - math.exp(log_kappa)))
    return min(0.0, steep, flat)


def log_bound_zcdp(log_kappa: float, rho: float) -> float:
    """Corollary 4: rho-zCDP gives gamma = exp(-(sqrt(log 1/kappa) - sqrt(rho))^2) where rho < log 1/kappa."""
    _check_privacy("rho", rho)
    if rho >= -log_kappa:
        return 0.0
    return float(-((math.sqrt(-log_kappa) - math.sqrt(rho)) ** 2))


def log_bound_gaussian(log_kappa: float, mu: float) -> float:
    """The tight bound for the Gaussian mechanism: gamma = Phi(Phi^-1(kappa) + mu)."""
    _check_privacy("mu", mu)
    return float(log_ndtr(ndtri_exp(log_kappa) + mu))


def dp_from_robustness(epsilon: float, gamma: float) -> float:
    """Theorem 5: robustness gamma against exact reconstruction, for every prior on a pair of records with odds
    e^epsilon, gives back (epsilon, delta)-DP; this is its delta."""
    _check_privacy("epsilon", epsilon)
    if not 0 <= gamma <= 1:
        raise InvalidInput(f"gamma is a probability; got {gamma}.")
    if gamma == 1.0:
        return 1.0
    # (e^epsilon + 1) gamma - e^epsilon, arranged so that a large epsilon does not cancel
    return max(0.0, gamma - math.exp(epsilon + math.log1p(-gamma)))


# -- the mechanisms of private training -------------------------------------------------------------------------------


def gaussian_mu(noise_multiplier: float, steps: int) -> float:
    """mu of ``steps`` full-batch private gradient steps: each is a Gaussian mechanism of sensitivity clip and noise
    noise_multiplier x clip, and mu composes as the root of the sum of squares."""
    _check_noise(noise_multiplier)
    _check_steps(steps)
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
    epsilon; delta(epsilon) is the accountant's, rounded up, so the bound is safe.
    """
    return math.exp(log_subsampled_bound(_log_kappa(kappa, log_kappa), noise_multiplier, sampling_rate, steps))


def log_subsampled_bound(log_kappa: float, noise_multiplier: float, sampling_rate: float, steps: int) -> float:
    """The same in logarithms."""
    epsilons, log_deltas = _privacy_profile(noise_multiplier, sampling_rate, steps)
    return min(0.0, float(np.logaddexp(log_kappa + epsilons, log_deltas).min()))


@lru_cache(maxsize=64)
def _privacy_profile(noise_multiplier: float, sampling_rate: float, steps: int) -> tuple[Any, Any]:
    """epsilon and log delta(epsilon) of composed, Poisson-sampled Gaussian steps on a grid."""
    tick()
    _check_noise(noise_multiplier)
    if not 0 < sampling_rate <= 1:
        raise InvalidInput(f"The sampling rate must lie in (0, 1]; got {sampling_rate}.")
    try:
        from dp_accounting.pld import privacy_loss_distribution
    except ImportError as error:
        raise MissingPackage('The bound for DP-SGD needs dp-accounting; install "divulge[privacy]".') from error
    # where the composed privacy loss lives: a Gaussian limit of mean mu^2 / 2 and deviation mu
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


_LEAST_NOISE = 0.3  # below this the accountant's grid grows without bound
_LARGEST_LOSS = 600.0  # e^600 is still a float
_GRID = 20_000  # points of the composed privacy-loss distribution; its interpolation error is of second order


# -- the inverse question: how much protection is enough? -------------------------------------------------------------


def largest_epsilon(log_kappa: float, gamma: float) -> float:
    """The largest epsilon of pure DP that keeps every attacker's chance at or below gamma."""
    log_gamma = _target(log_kappa, gamma)
    steep = log_gamma - log_kappa
    flat = math.log1p(-math.exp(log_kappa)) - math.log1p(-gamma)
    return max(steep, flat)


def largest_rho(log_kappa: float, gamma: float) -> float:
    """The largest rho of zCDP that keeps every attacker's chance at or below gamma."""
    return float((math.sqrt(-log_kappa) - math.sqrt(-_target(log_kappa, gamma))) ** 2)


def largest_mu(log_kappa: float, gamma: float) -> float:
    """The largest mu of Gaussian DP that keeps every attacker's chance at or below gamma."""
    return float(ndtri_exp(_target(log_kappa, gamma)) - ndtri_exp(log_kappa))


def smallest_noise(
    log_kappa: float, gamma: float, *, steps: int, sampling_rate: float = 1.0, theorem: str = "gaussian"
) -> float:
    """The smallest noise multiplier of private training that keeps every attacker's chance at or below gamma.

    ``theorem`` chooses the bound: "gaussian" (tight, and by privacy-loss distributions where batches are sampled) or
    "zcdp" (Corollary 4; full batch only).
    """
    _check_steps(steps)
    if theorem == "zcdp":
        if sampling_rate != 1.0:
            raise InvalidInput('Corollary 4 has no form for sampled batches; use theorem="gaussian".')
        return math.sqrt(steps / (2 * largest_rho(log_kappa, gamma)))
    if theorem != "gaussian":
        raise InvalidInput(f'theorem is "gaussian" or "zcdp", not {theorem!r}.')
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
    return math.exp(high if low == high else brentq(excess, low, high, xtol=1e-3))


# -- parameters at the door -------------------------------------------------------------------------------------------


def _log_kappa(kappa: float | None, log_kappa: float | None) -> float:
    if (kappa is None) == (log_kappa is None):
        raise InvalidInput("Give kappa or log_kappa, one of the two.")
    if kappa is not None:
        if not 0 < kappa < 1:
            raise InvalidInput(
                f"kappa is the chance of a blind guess and must lie strictly between 0 and 1; got {kappa}. "
                "With kappa = 1 every guess is right beforehand, and no training can prevent that."
            )
        return math.log(kappa)
    assert log_kappa is not None
    if not -math.inf < log_kappa < 0:
        raise InvalidInput(
            f"log_kappa must be finite and negative; got {log_kappa}. At 0 kappa is 1: every guess is right "
            "beforehand, and no training can prevent that."
        )
    return log_kappa


def _target(log_kappa: float, gamma: float) -> float:
    if not 0 < gamma < 1:
        raise InvalidInput(f"gamma is the chance you accept and must lie strictly between 0 and 1; got {gamma}.")
    log_k = _log_kappa(None, log_kappa)
    if math.log(gamma) <= log_k:
        raise InvalidInput(
            f"A blind guess already succeeds with chance {math.exp(log_k):.3g}, so no training can keep it at "
            f"{gamma:.3g}; accept a larger gamma or count only closer reconstructions (a smaller eta)."
        )
    return math.log(gamma)


def _check_privacy(name: str, value: float) -> None:
    if math.isnan(value) or value < 0:
        raise InvalidInput(f"{name} must be zero or more; got {value}.")
    if math.isinf(value):
        raise InvalidInput(f"An infinite {name} is no protection at all: the bound is 1, whatever the prior.")


def _check_noise(noise_multiplier: float) -> None:
    if not 0 < noise_multiplier < math.inf:
        raise InvalidInput(f"The noise multiplier must be positive and finite; got {noise_multiplier}.")


def _check_steps(steps: int) -> None:
    if steps < 1:
        raise InvalidInput(f"Private training takes at least one step; got {steps}.")

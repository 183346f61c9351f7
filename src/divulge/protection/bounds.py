"""How likely is a reconstruction? Upper bounds on the chance of an informed adversary, from the privacy spent.

Balle et al. 2022, section VII. The informed adversary knows the released model, the training algorithm and every record
but one, and of that one the distribution that it was drawn from: the prior. A mechanism is (eta, gamma)-robust for a
prior when no such adversary rebuilds the record to within an error of eta with probability above gamma. The prior
enters through one number, kappa: the success probability of the best *oblivious* guess, made without looking at the
model (``divulge.protection.priors`` computes it). Who knows more of the record than the prior says (all columns but
one, say) has another prior with a larger kappa; a bound computed with the smaller kappa does not hold for them.

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

import numpy as np
from scipy.special import log_ndtr, ndtri_exp

from divulge.core.errors import InvalidInput
from divulge.core.validation import checked_number

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
    """The largest chance gamma of a reconstruction within eta, for attackers with this kappa (Balle 2022, section VII).

    It holds for every attacker who knows all other records and for whom the best guess without the model succeeds with
    chance kappa.

    The privacy spent is given in exactly one way: ``epsilon`` (with ``delta``), ``rdp``, ``zcdp`` or ``gaussian``.

    Parameters
    ----------
    kappa : float, optional
        The chance that the best blind guess is within eta of the record, strictly between 0 and 1.
    log_kappa : float, optional
        Its logarithm, instead of ``kappa``; for records of many columns kappa is below the smallest float.
    epsilon : float, optional
        Of (epsilon, delta)-DP.
    delta : float, default 0.0
        Goes with ``epsilon``.
    rdp : (float, float) or list of (float, float), optional
        (alpha, epsilon) of Renyi DP; of several orders the best is taken.
    zcdp : float, optional
        rho of zero-concentrated DP.
    gaussian : float, optional
        mu of the composed Gaussian mechanism: sqrt(steps) / noise_multiplier for full-batch training.

    Returns
    -------
    float
        gamma, at most 1.

    Raises
    ------
    InvalidInput
        kappa is not strictly between 0 and 1, or the privacy spent is given in no way or in several.

    Examples
    --------
    >>> from divulge.protection import reconstruction_bound
    >>> round(reconstruction_bound(1e-3, epsilon=3.0), 4)
    0.0201
    >>> round(reconstruction_bound(1e-3, gaussian=1.0), 4)
    0.0183
    """
    log_k = checked_log_kappa(kappa, log_kappa)
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
    checked_number("delta", delta, at_least=0, below=1)
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
    """The delta of (epsilon, delta)-DP that reconstruction robustness gives back (Balle 2022, Theorem 5).

    Parameters
    ----------
    epsilon : float
        Robustness holds for every prior on a pair of records with odds e^epsilon.
    gamma : float
        The largest chance of an exact reconstruction, between 0 and 1.

    Returns
    -------
    float
        delta.

    Raises
    ------
    InvalidInput
        epsilon is negative or infinite, or gamma is no probability.

    Examples
    --------
    >>> from divulge.protection import dp_from_robustness
    >>> round(dp_from_robustness(1.0, 0.8), 4)
    0.2563
    """
    _check_privacy("epsilon", epsilon)
    checked_number("gamma", gamma, at_least=0, at_most=1, hint="It is a probability.")
    if gamma == 1.0:
        return 1.0
    # (e^epsilon + 1) gamma - e^epsilon, arranged so that a large epsilon does not cancel
    return max(0.0, gamma - math.exp(epsilon + math.log1p(-gamma)))


def checked_log_kappa(kappa: float | None, log_kappa: float | None) -> float:
    """The logarithm of kappa, given in one of two ways.

    Parameters
    ----------
    kappa : float or None
        The chance of the best blind guess, strictly between 0 and 1.
    log_kappa : float or None
        Its logarithm.

    Returns
    -------
    float
        log kappa.

    Raises
    ------
    InvalidInput
        Both or none are given, or the number is out of its range.
    """
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


def _check_privacy(name: str, value: float) -> None:
    if math.isnan(value) or value < 0:
        raise InvalidInput(f"{name} must be zero or more; got {value}.")
    if math.isinf(value):
        raise InvalidInput(f"An infinite {name} is no protection at all: the bound is 1, whatever the prior.")

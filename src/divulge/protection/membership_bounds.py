"""How well can anybody tell who was in it? Upper bounds on membership inference from the privacy spent.

A membership test with false positive rate alpha finds at most 1 - f(alpha) of the members, where f is the trade-off
function of the mechanism (Wasserman and Zhou 2010; Dong, Roth and Su 2022). That is the bound on a reconstruction
(``bounds``) with kappa = alpha, because both compare the probability of one event under two neighbouring training sets.
Renyi and zero-concentrated DP bound the divergence of a test's answers, Bernoulli(TPR) from Bernoulli(FPR), at every
order and in both directions, which is tighter than the bound on one event. Kulynych et al. 2024 read attack risks off f
in the same way.

The same bound limits attribute inference: an attacker whose best guess without the model is right with chance p is
right with chance ``reconstruction_bound(p, ...)`` at most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from divulge.core.validation import checked_number
from divulge.protection.bounds import Order, reconstruction_bound

Array = NDArray[np.float64]
ORDERS = 1 + np.geomspace(1e-4, 1e3, 2_000)
"""Orders at which zero-concentrated DP is read as Renyi DP; any of them gives a bound, and the smallest is taken."""


def membership_bound(
    fpr: float,
    *,
    epsilon: float | None = None,
    delta: float = 0.0,
    rdp: Order | Sequence[Order] | None = None,
    zcdp: float | None = None,
    gaussian: float | None = None,
) -> float:
    """The largest share of members that any test finds at a false positive rate.

    The privacy spent is given in exactly one way: ``epsilon`` (with ``delta``), ``rdp``, ``zcdp`` or ``gaussian``, for
    add-or-remove neighbours.

    Parameters
    ----------
    fpr : float
        The false positive rate, strictly between 0 and 1.
    epsilon, delta : float, optional
        Of (epsilon, delta)-DP.
    rdp : (float, float) or list of (float, float), optional
        (alpha, epsilon) of Renyi DP; of several orders the best is taken.
    zcdp : float, optional
        rho of zero-concentrated DP.
    gaussian : float, optional
        mu of Gaussian DP: sqrt(steps) / noise_multiplier for full-batch training.

    Returns
    -------
    float
        The true positive rate, at most 1.

    Raises
    ------
    InvalidInput
        The rate is not strictly between 0 and 1, or the privacy spent is given in no way or in several.

    Examples
    --------
    >>> from divulge.protection import membership_bound
    >>> round(membership_bound(0.01, epsilon=1.0, delta=1e-5), 4)
    0.0272
    >>> round(membership_bound(0.01, gaussian=1.0), 4)
    0.0924
    """
    level = checked_number("A false positive rate", fpr, above=0, below=1)
    given = {"epsilon": epsilon, "delta": delta, "rdp": rdp, "zcdp": zcdp, "gaussian": gaussian}
    direct = reconstruction_bound(level, **given)  # type: ignore[arg-type]
    if epsilon is not None or gaussian is not None:
        return direct  # these trade-off functions are symmetric
    return min(direct, _largest(np.array(level), *_orders(rdp, zcdp)))


def _orders(rdp: Order | Sequence[Order] | None, zcdp: float | None) -> tuple[Array, Array]:
    """The orders alpha > 1 at which Renyi DP holds, and its epsilon at each."""
    if zcdp is not None:
        return ORDERS, zcdp * ORDERS
    given = np.atleast_2d(np.asarray(rdp, dtype=np.float64))
    kept = given[(given[:, 0] > 1) & np.isfinite(given).all(axis=1)]
    return kept[:, 0], kept[:, 1]


def _largest(level: Array, alpha: Array, epsilon: Array) -> float:
    """The largest true positive rate that the divergence of the test's answers allows at every order, both ways."""
    low, high = np.broadcast_to(level, alpha.shape).copy(), np.ones(alpha.shape)
    for _ in range(60):
        middle = (low + high) / 2
        allowed = _allowed(middle, level, alpha, epsilon)
        low, high = np.where(allowed, middle, low), np.where(allowed, high, middle)
    return float(np.min(high, initial=1.0))


def _allowed(tpr: Array, fpr: Array, alpha: Array, epsilon: Array) -> NDArray[np.bool_]:
    """Whether Bernoulli(tpr) and Bernoulli(fpr) are as close as Renyi DP of this order makes every answer."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = [np.log(one) for one in (tpr, 1 - tpr, fpr, 1 - fpr)]
        forth = np.logaddexp(alpha * logs[0] + (1 - alpha) * logs[2], alpha * logs[1] + (1 - alpha) * logs[3])
        back = np.logaddexp(alpha * logs[2] + (1 - alpha) * logs[0], alpha * logs[3] + (1 - alpha) * logs[1])
    return np.asarray(np.maximum(forth, back) <= (alpha - 1) * epsilon)


def membership_advantage_bound(
    *,
    epsilon: float | None = None,
    delta: float = 0.0,
    rdp: Order | Sequence[Order] | None = None,
    zcdp: float | None = None,
    gaussian: float | None = None,
) -> float:
    """The largest advantage of any membership test: true positive rate less false positive rate.

    Parameters
    ----------
    epsilon, delta : float, optional
        Of (epsilon, delta)-DP: (e^epsilon - 1 + 2 delta) / (e^epsilon + 1), by Humphries et al. 2023.
    rdp : (float, float) or list of (float, float), optional
        (alpha, epsilon) of Renyi DP; of several orders the best is taken.
    zcdp : float, optional
        rho of zero-concentrated DP.
    gaussian : float, optional
        mu of Gaussian DP: 2 Phi(mu / 2) - 1.

    Returns
    -------
    float
        From 0 to 1.

    Raises
    ------
    InvalidInput
        The privacy spent is given in no way or in several.

    Examples
    --------
    >>> from divulge.protection import membership_advantage_bound
    >>> round(membership_advantage_bound(epsilon=1.0), 4), round(membership_advantage_bound(gaussian=1.0), 4)
    (0.4621, 0.3829)
    """
    given = {"epsilon": epsilon, "delta": delta, "rdp": rdp, "zcdp": zcdp, "gaussian": gaussian}
    reconstruction_bound(0.5, **given)  # type: ignore[arg-type]  # refuses what makes no sense
    if epsilon is not None:
        return min(1.0, math.tanh(epsilon / 2) + 2 * delta / (math.exp(min(epsilon, 700.0)) + 1))
    if gaussian is not None:
        return float(2 * ndtr(gaussian / 2) - 1)
    # what is allowed is convex and the same for (fpr, tpr) and (1 - tpr, 1 - fpr), so the best test has fpr = 1 - tpr
    alpha, orders = _orders(rdp, zcdp)
    low, high = np.full(alpha.shape, 0.5), np.ones(alpha.shape)
    for _ in range(60):
        middle = (low + high) / 2
        allowed = _allowed(middle, 1 - middle, alpha, orders)
        low, high = np.where(allowed, middle, low), np.where(allowed, high, middle)
    return float(2 * np.min(high, initial=1.0) - 1)

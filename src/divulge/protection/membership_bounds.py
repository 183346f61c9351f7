"""How well can anybody tell who was in it? Upper bounds on membership inference from the privacy spent.

A membership test with false positive rate alpha finds at most 1 - f(alpha) of the members, where f is the trade-off
function of the mechanism (Wasserman and Zhou 2010; Dong, Roth and Su 2022). That is the bound on a reconstruction
(``bounds``) with kappa = alpha, because both compare the probability of one event under two neighbouring training sets.
Here the neighbours' roles may be exchanged too, which is tighter at large alpha. Kulynych et al. 2024 read attack risks
off f in the same way.

The same bound limits attribute inference: an attacker whose best guess without the model is right with chance p is
right with chance ``reconstruction_bound(p, ...)`` at most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import ndtr

from divulge.core.validation import checked_number
from divulge.protection.bounds import Order, reconstruction_bound

GRID = 2_000
"""False positive rates among which the largest advantage is looked for, where it has no closed form."""


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
    low, high = 0.0, 1.0  # the smallest share of members missed whose own bound allows 1 - fpr
    for _ in range(60):
        middle = (low + high) / 2
        if reconstruction_bound(middle, **given) >= 1 - level:  # type: ignore[arg-type]
            high = middle
        else:
            low = middle
    return min(direct, 1 - low)


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
    levels = np.linspace(0, 1, GRID + 1)
    found = [membership_bound(float(level), **given) for level in levels[1:-1]]  # type: ignore[arg-type]
    # between two grid points the true positive rate is at most that at the next one
    return float(min(1.0, max(np.append(found, 1.0) - levels[:-1])))

"""How much does taking part raise an attacker's chance, whatever the attacker knows already?

A bound on the *chance* of a reconstruction needs kappa, the chance of the best blind guess. Whoever knows part of the
record has a larger kappa, and a bound that was computed with the population's kappa does not hold for them: that is
the warning of Guerra-Balboa, Sauer, Arcolezi and Strufe 2026 (arXiv 2603.12142). The *reconstruction advantage*, which
they propose instead, needs no kappa. Only the abstract of that paper was at hand, so what is bounded here is defined
and proven here, and no theorem of theirs is claimed.

*Definition.* The chance of an attack on the model that was trained with the record, less the chance of the same attack
on a model that was trained without it.

*Bound.* Fix the record, everything the attacker knows, and what counts as a success. The attack succeeds on a set of
models, and the probabilities of one set under two distributions differ by at most their total variation. Privacy limits
that total variation for every record and every knowledge, so it limits the average over them too.

Privacy parameters here are those of add-or-remove neighbours, so two counterfactuals are offered: the record is
*absent*, or *replaced* by another draw of the population, which is one removal and one addition.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from scipy.special import ndtr

from divulge.core.validation import checked_choice, checked_number
from divulge.protection.bounds import Order, reconstruction_bound
from divulge.protection.membership_bounds import membership_advantage_bound

Counterfactual = Literal["absent", "replaced"]


def reconstruction_advantage_bound(
    *,
    epsilon: float | None = None,
    delta: float = 0.0,
    rdp: Order | Sequence[Order] | None = None,
    zcdp: float | None = None,
    gaussian: float | None = None,
    counterfactual: Counterfactual = "absent",
    kappa: float | None = None,
    same: float = 0.0,
) -> float:
    """The most by which taking part raises the chance of any attack on a record, whatever the attacker knows.

    The privacy spent is given in exactly one way: ``epsilon`` (with ``delta``), ``rdp``, ``zcdp`` or ``gaussian``, for
    add-or-remove neighbours.

    Parameters
    ----------
    epsilon, delta : float, optional
        Of (epsilon, delta)-DP.
    rdp : (float, float) or list of (float, float), optional
        (alpha, epsilon) of Renyi DP; of several orders the best is taken.
    zcdp : float, optional
        rho of zero-concentrated DP.
    gaussian : float, optional
        mu of Gaussian DP: sqrt(steps) / noise_multiplier for full-batch training.
    counterfactual : {"absent", "replaced"}, default "absent"
        What is compared with: a model trained without the record, or with another draw in its place.
    kappa : float, optional
        The chance that an attacker with this knowledge has without the model, where it is known. The advantage is then
        also at most the bound on the chance less kappa.
    same : float, default 0.0
        With ``"replaced"``: the chance that two draws of the population are the same record.

    Returns
    -------
    float
        From 0 to 1.

    Raises
    ------
    InvalidInput
        A parameter is out of its range, or the privacy spent is given in no way or in several.

    Examples
    --------
    >>> from divulge.protection import reconstruction_advantage_bound
    >>> round(reconstruction_advantage_bound(gaussian=1.0), 3)
    0.383
    >>> round(reconstruction_advantage_bound(gaussian=1.0, kappa=0.01), 3)
    0.082
    """
    checked_choice("counterfactual", counterfactual, ("absent", "replaced"))
    checked_number("same", same, at_least=0, at_most=1)
    given = {"epsilon": epsilon, "delta": delta, "rdp": rdp, "zcdp": zcdp, "gaussian": gaussian}
    absent = membership_advantage_bound(**given)  # type: ignore[arg-type]
    if kappa is not None:
        absent = min(absent, reconstruction_bound(kappa, **given) - kappa)  # type: ignore[arg-type]
    if counterfactual == "absent":
        return absent
    replaced = min(1.0, 2 * absent)  # total variation is a distance
    if kappa is None and gaussian is not None:
        replaced = min(replaced, float(2 * ndtr(gaussian) - 1))  # one removal and one addition: 2 mu
    elif kappa is None and epsilon is not None and delta == 0:
        replaced = min(replaced, math.tanh(epsilon))  # 2 epsilon
    return replaced * (1 - same)

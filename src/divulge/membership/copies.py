"""``membership.on_copy``: does a copy of an endpoint tell who was in the endpoint's training set?

Whoever has extracted or learned a copy asks it as often as he likes, unseen. The same attack runs at the endpoint and
on the copy, with the same records and the same reference models. The copy was never trained on the members: what it
still tells of them went through the endpoint's answers.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from divulge.core.result import AttackResult
from divulge.core.roc import Estimate, area_difference
from divulge.membership.attack import Method, attack
from divulge.membership.reference_models import Train
from divulge.membership.result import Membership
from divulge.oracles import Access

EXPOSED = 0.05
"""Part of the members that counts as the most exposed; at least ten of them."""


@dataclass(frozen=True)
class CopyMembership(AttackResult):
    """Membership on a copy of an endpoint beside membership at the endpoint.

    Attributes
    ----------
    endpoint, copy : Membership
        The attack at the endpoint, and the same attack on the copy.
    difference : (float, float, float)
        The copy's area under the ROC curve less the endpoint's, with its 95 % interval over the same records.
    correlation : float
        Spearman's rank correlation of the members' scores.
    shared : float
        The part of the endpoint's most exposed members that are among the copy's most exposed.
    """

    endpoint: Membership
    copy: Membership
    difference: Estimate = field(default=Estimate(0.0, 0.0, 0.0))
    correlation: float = 0.0
    shared: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return super().as_dict() | {
            "endpoint": self.endpoint.as_dict(), "copy": self.copy.as_dict(), "difference": list(self.difference),
            "correlation": self.correlation, "shared_among_most_exposed": self.shared,
        }  # fmt: skip


def on_copy(
    model: object,
    copy: object,
    members: object,
    non_members: object,
    *,
    train: Train | None = None,
    method: Method = "auto",
    shadows: int = 8,
    access: Access | None = None,
    seed: int = 0,
) -> CopyMembership:
    """The same membership attack at an endpoint and on a copy of it.

    Parameters
    ----------
    model : object
        The endpoint: an oracle, or anything that :func:`divulge.oracle` takes.
    copy : object
        The copy, such as ``stolen.model``; it answers with values.
    members : (array [n, d], array [n])
        Records that the endpoint's model was trained on, with their labels or targets.
    non_members : (array [m, d], array [m])
        Records of the same kind that it was not trained on, and that the copy did not ask about.
    train : Recipe, estimator, callable or None, default None
        How models like the endpoint's are trained; the reference models serve both attacks.
    method : str, default "auto"
        As in :func:`divulge.membership.attack`; what fits the endpoint runs on both.
    shadows : int, default 8
        Number of reference models.
    access : {"label", "value", "gradient", "weights"}, optional
        What may be asked of an endpoint that is not an oracle yet.
    seed : int, default 0
        Fixes every random choice.

    Returns
    -------
    CopyMembership
        Both attacks and what lies between them. It succeeds where the attack on the copy does.

    Raises
    ------
    InvalidInput
        If the records or the method do not fit the endpoint or the copy.

    Examples
    --------
    >>> import divulge, numpy
    >>> from sklearn.ensemble import RandomForestClassifier
    >>> draw = numpy.random.default_rng(0)
    >>> X, y = draw.normal(size=(400, 5)), draw.integers(0, 2, 400)
    >>> forest = RandomForestClassifier(20, random_state=0).fit(X[:200], y[:200])
    >>> risk = divulge.membership.on_copy(forest, forest, (X[:200], y[:200]), (X[200:], y[200:]))
    >>> risk.difference.value, round(risk.correlation, 6), risk.shared
    (0.0, 1.0, 1.0)
    """
    from scipy.stats import spearmanr

    started = time.perf_counter()
    options: dict[str, Any] = {"train": train, "shadows": shadows, "seed": seed}
    with tempfile.TemporaryDirectory() as folder:
        options |= {"folder": folder if train is not None else None}
        endpoint = attack(model, members, non_members, method=method, access=access, **options)
        same: Any = endpoint.method
        copied = attack(copy, members, non_members, method=same, check_distribution=False, **options)
    top = max(10, int(EXPOSED * len(endpoint.scores)))
    shared = len(np.intersect1d(endpoint.worst(top), copied.worst(top))) / min(top, len(endpoint.scores))
    steady = min(float(np.ptp(one.scores)) for one in (endpoint, copied)) == 0
    return CopyMembership(
        endpoint, copied, _difference(endpoint, copied),
        0.0 if steady else float(spearmanr(endpoint.scores, copied.scores).statistic), shared, method=endpoint.method,
        seed=endpoint.seed, ledger=endpoint.ledger, reason=copied.reason, notes=endpoint.notes,
        seconds=time.perf_counter() - started,
    )  # fmt: skip


def _difference(endpoint: Membership, copied: Membership) -> Estimate:
    pairs = [(one.scores, one.non_member_scores) for one in (endpoint, copied)]
    return area_difference(pairs[0], pairs[1])

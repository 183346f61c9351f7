"""What a membership attack returns: a score for every record, and how well the scores tell members from others."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from divulge.core.errors import InvalidInput
from divulge.core.result import AttackResult
from divulge.core.roc import Estimate, RocCurve, rate_at, roc_curve
from divulge.core.validation import checked_whole

LEVELS = (0.1, 0.01, 0.001)
"""False positive rates that a result lists."""


@dataclass(frozen=True)
class Membership(AttackResult):
    """How well an attack tells the members of a training set from others.

    Attributes
    ----------
    scores : ndarray [n]
        A score for each member, in the order they were given; higher is more exposed.
    non_member_scores : ndarray [m]
        The same for each non-member.
    auc : float
        The area under the ROC curve: the chance that a member scores above a non-member.
    auc_interval : (float, float)
        Its 95 % interval (DeLong).
    control : (float, float, float)
        The area with its interval for one half of the non-members against the other: chance, one half.
    distribution : (float, float, float)
        The area with its interval of a classifier that sees the rows and never the model. NaN if it was not asked for.
    epsilon : float
        A lower limit on epsilon of (epsilon, delta)-DP, if it was chance who became a member.
    delta : float
        The delta at which it holds.
    confidence : float
        The confidence with which it holds.
    by_class : dict
        For each class the number of members, the area with its interval, the limit that the areas of all classes
        together exceed with a confidence of 99 % (None below 30 records a side), and the rate at a false positive rate
        of 1 %.
    by_group : dict
        The same for each subgroup that the caller named.
    kinds : dict
        For each kind of record (outlier, mislabelled, rare, duplicate) its share among the most exposed members and
        among all.
    """

    scores: NDArray[np.float64] = field(repr=False)
    non_member_scores: NDArray[np.float64] = field(repr=False)
    auc: float
    auc_interval: tuple[float, float]
    control: tuple[float, float, float]
    distribution: tuple[float, float, float]
    epsilon: float
    delta: float
    confidence: float
    by_class: dict[str, dict[str, Any]] = field(default_factory=dict)
    by_group: dict[str, dict[str, Any]] = field(default_factory=dict)
    kinds: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def exposed_class(self) -> str | None:
        """The class whose members are told from others most surely; None where that may be chance."""
        return exposed_class_of(self.by_class)

    def tpr(self, fpr: float) -> tuple[float, float, float]:
        """The share of members found when at most a share ``fpr`` of non-members is taken for members.

        Parameters
        ----------
        fpr : float
            The false positive rate, strictly between 0 and 1.

        Returns
        -------
        (float, float, float)
            The rate and its 95 % interval, which covers that the threshold is estimated too.

        Raises
        ------
        InvalidInput
            If there are too few non-members to show this false positive rate.
        """
        return rate_at(self.scores, self.non_member_scores, fpr)

    def worst(self, count: int = 10) -> NDArray[np.int64]:
        """The most exposed members.

        Parameters
        ----------
        count : int, default 10
            How many; all of them if there are fewer.

        Returns
        -------
        ndarray of int
            Their indices, the most exposed first.
        """
        count = min(checked_whole("count", count, at_least=1), len(self.scores))
        return np.argsort(-self.scores, kind="stable")[:count]

    def false_positive_rates(self) -> NDArray[np.float64]:
        """For each member the share of non-members that score at least as high [n]: small is exposed."""
        ordered = np.sort(self.non_member_scores)
        return np.asarray(1 - np.searchsorted(ordered, self.scores, side="left") / len(ordered))

    def roc(self) -> RocCurve:
        """False and true positive rates along all thresholds."""
        return roc_curve(self.scores, self.non_member_scores)

    def rates(self) -> dict[float, Estimate | None]:
        """The rate and interval at false positive rates of 10 %, 1 % and 0.1 %; None where non-members are too few."""
        found: dict[float, Estimate | None] = {}
        for level in LEVELS:
            try:
                found[level] = rate_at(self.scores, self.non_member_scores, level)
            except InvalidInput:
                found[level] = None
        return found

    def picture(self, path: str | Path) -> Path:
        """Write the ROC curve on logarithmic axes as a picture, with chance as a line. Returns the path."""
        from divulge.core.plots import save
        from divulge.membership.figure import roc_figure

        return save(roc_figure(self), path)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; scores are left out."""
        worst = self.worst(10)
        rates = self.false_positive_rates()
        return super().as_dict() | {
            "members": len(self.scores),
            "non_members": len(self.non_member_scores),
            "auc": self.auc,
            "auc_interval": list(self.auc_interval),
            "tpr_at_fpr": {f"{level:g}": None if rate is None else list(rate) for level, rate in self.rates().items()},
            "control_auc": list(self.control),
            "distribution_auc": list(self.distribution),
            "epsilon": self.epsilon,
            "delta": self.delta,
            "confidence": self.confidence,
            "most_exposed": [
                {"member": int(i), "score": float(self.scores[i]), "false_positive_rate": float(rates[i])}
                for i in worst
            ],
            "by_class": self.by_class,
            "by_group": self.by_group,
            "kinds": self.kinds,
        }


def exposed_class_of(by_class: dict[str, dict[str, Any]]) -> str | None:
    """The class with the largest proven area, if that is above one half."""
    proven = {name: entry["auc_at_least"] for name, entry in by_class.items() if entry["auc_at_least"] is not None}
    name = max(proven, key=lambda name: proven[name], default=None)
    return name if name is not None and proven[name] > 0.5 else None

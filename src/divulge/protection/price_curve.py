"""The curve of a price study: its points, the limits that somebody accepts, and the epsilon that keeps them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from divulge.core import plots
from divulge.core.errors import DivulgeError, InvalidInput
from divulge.core.roc import Estimate
from divulge.core.validation import checked_number
from divulge.protection.recommend import epsilon_axes, legend_above


@dataclass(frozen=True)
class Limits:
    """What somebody accepts.

    Parameters
    ----------
    membership : (float, float), optional
        The largest share of members found, and the false positive rate at which it is measured: (0.05, 0.01).
    reconstruction : float, optional
        The largest chance that a record is rebuilt.

    Examples
    --------
    >>> from divulge.protection import Limits
    >>> Limits.parse("0.05@0.01", 0.05)
    Limits(membership=(0.05, 0.01), reconstruction=0.05)
    """

    membership: tuple[float, float] | None = None
    reconstruction: float | None = None

    def __post_init__(self) -> None:
        if self.membership is not None:
            found, at = self.membership
            checked_number("The share of members found", found, above=0, below=1)
            checked_number("The false positive rate", at, above=0, below=1)
            if found <= at:
                raise InvalidInput(
                    f"Of the members {found:g} are found by chance alone at a false positive rate of {at:g}; accept "
                    "more."
                )
        if self.reconstruction is not None:
            checked_number("The accepted chance of a reconstruction", self.reconstruction, above=0, below=1)

    @classmethod
    def parse(cls, membership: str | None, reconstruction: float | None) -> Limits:
        """Limits as the command line has them: ``0.05@0.01`` is a share of 0.05 at a false positive rate of 0.01."""
        if not membership:
            return cls(None, reconstruction)
        share, _, rate = membership.partition("@")
        try:
            return cls((float(share), float(rate)), reconstruction)
        except ValueError as error:
            if isinstance(error, DivulgeError):
                raise
            raise InvalidInput(
                f"A limit on membership is RATE@FALSE-POSITIVES, such as 0.05@0.01; got {membership!r}."
            ) from error


@dataclass(frozen=True)
class PricePoint:
    """One epsilon: how good the model still is, what attacks got, and what is proven.

    Attributes
    ----------
    epsilon : float
        What is spent; infinite for training without noise.
    noise_multiplier : float or None
        The noise, where the training has one.
    accuracy, balanced_accuracy, auc : float
        On unseen records, the means over the runs. The AUC is the mean over classes of one against the rest.
    spread : float
        The standard deviation of the balanced accuracy over the runs.
    membership : Estimate or None
        The share of members found at the false positive rate, with its 95 % interval; None where the records are too
        few to show it.
    membership_auc : float
        The area under the attack's ROC curve.
    membership_bound : float
        What is proven of that share.
    attribute : (str, float, float) or None
        The column with the largest advantage of the attack on hidden columns, that advantage, and its lower limit.
    candidates : Estimate
        How often the right record is picked among ten candidates; a blind guess does that in a tenth.
    candidates_bound : float
        What is proven of that.
    rebuilt : Estimate or None
        The share of records that the insider rebuilt.
    rebuilt_error : float or None
        The median error of the insider's reconstructions, as a part of the variance.
    rebuilt_bound : float or None
        What is proven of the share rebuilt, where the chance of a blind guess is known.
    """

    epsilon: float
    noise_multiplier: float | None
    accuracy: float
    balanced_accuracy: float
    auc: float
    spread: float
    membership: Estimate | None
    membership_auc: float
    membership_bound: float
    attribute: tuple[str, float, float] | None
    candidates: Estimate
    candidates_bound: float
    rebuilt: Estimate | None
    rebuilt_error: float | None
    rebuilt_bound: float | None

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; an infinite epsilon is None."""
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in self.__dict__.items()}
        return {**plain, "epsilon": self.epsilon if math.isfinite(self.epsilon) else None}


@dataclass(frozen=True)
class Recommendation:
    """The largest epsilon for the limits, in two ways.

    Attributes
    ----------
    proven : float or None
        At which theorems keep the limits of ``covers``; None where no noise that the accountant can represent does.
    proven_noise : float or None
        The noise multiplier that spends it.
    measured : float or None
        The largest epsilon of the curve up to which the attacks that ran stayed within every limit.
    certain : bool
        Whether the upper ends of the attacks' intervals stayed within the limits too.
    untested : tuple of str
        The limits that no attack tested, in a sentence each.
    covers : tuple of {"membership", "reconstruction"}
        The limits that theorems keep at ``proven``.
    """

    proven: float | None
    proven_noise: float | None
    measured: float | None
    certain: bool
    untested: tuple[str, ...] = ()
    covers: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**self.__dict__, "untested": list(self.untested), "covers": list(self.covers)}


@dataclass(frozen=True)
class PriceCurve:
    """What protection costs and brings along a grid of epsilon.

    Attributes
    ----------
    points : tuple of PricePoint
        By epsilon, the smallest first; the last is without noise.
    limits : Limits
        What is accepted.
    recommendation : Recommendation
        The largest epsilon for the limits.
    delta : float
        Of (epsilon, delta)-DP.
    fpr : float
        The false positive rate at which membership is measured.
    recipe : str
        How the training is done, in words.
    notes : tuple of str
        What was not measured, and why.
    """

    points: tuple[PricePoint, ...]
    limits: Limits
    recommendation: Recommendation
    delta: float
    fpr: float
    recipe: str
    notes: tuple[str, ...] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "points": [point.as_dict() for point in self.points],
            "limits": {"membership": self.limits.membership, "reconstruction": self.limits.reconstruction},
            "recommendation": self.recommendation.as_dict(),
            "delta": self.delta, "fpr": self.fpr, "recipe": self.recipe, "notes": list(self.notes),
        }  # fmt: skip

    def plot(self) -> bytes:
        """A PNG: accuracy and what attacks got against epsilon. Lines differ in style, so that it reads in grey."""
        private = [point for point in self.points if math.isfinite(point.epsilon)]
        figure, axes = epsilon_axes(self.delta)
        x = [point.epsilon for point in private]
        lines: list[tuple[str, list[float | None], str]] = [
            ("balanced accuracy, unseen", [p.balanced_accuracy for p in private], "o-"),
            ("AUC, unseen", [p.auc for p in private], "s-"),
            (f"members found at {self.fpr:g}", [p.membership and p.membership.value for p in private], "^--"),
            ("the same, proven at most", [p.membership_bound for p in private], ":"),
            ("records rebuilt by the insider", [p.rebuilt and p.rebuilt.value for p in private], "v--"),
            ("right among ten candidates", [p.candidates.value for p in private], "x--"),
        ]
        for number, (label, values, style) in enumerate(lines):
            if any(value is not None for value in values):
                y = [math.nan if value is None else float(value) for value in values]
                axes.plot(x, y, style, color=str(0.12 * number), label=label, markersize=5)
        axes.set_ylim(-0.02, 1.02)
        axes.set_ylabel("share")
        legend_above(axes)
        return plots.png(figure)

"""Sentences about the measured price of protection."""

from __future__ import annotations

import math
from collections.abc import Iterator

from divulge.auditing.wording import percent, size
from divulge.protection.price_curve import PriceCurve, PricePoint

CAPTION = "What the model is still worth on unseen records, and what attacks got, at each epsilon."
TABLE = "The same training at each epsilon; the last row is without noise"
COLUMNS = (
    "epsilon", "accuracy", "balanced accuracy", "AUC", "members found", "proven at most", "hidden column, advantage",
    "right among ten", "rebuilt by the insider", "proven at most", "members found, low", "members found, high",
)  # fmt: skip
CERTAINTY = (
    "Each epsilon was trained anew with seeded noise, on the same records, and attacked once. What attacks get is "
    "measured and may be beaten by better attacks; what is proven holds for all of them."
)


def title(curve: PriceCurve) -> str:
    """The title of the finding."""
    chosen = curve.recommendation
    if chosen.proven is None:
        return "No epsilon keeps the accepted limits by a theorem"
    beside = ""
    if chosen.measured is not None:
        beside = f"; the attacks that ran stayed within what is accepted up to {_epsilon(chosen.measured)}"
    return f"By theorems {kept(curve)} up to epsilon {size(chosen.proven)}{beside}"


def kept(curve: PriceCurve) -> str:
    """Which of the accepted limits theorems keep."""
    given = curve.limits.membership is not None, curve.limits.reconstruction is not None
    covers = curve.recommendation.covers
    if len(covers) == sum(given):
        return "the accepted limits hold" if all(given) else "the accepted limit holds"
    other = "reconstructions" if "membership" in covers else "membership"
    return f"the accepted limit on {' and '.join(covers)}, not that on {other}, holds"


def meaning(curve: PriceCurve, plain: PricePoint | None, best: PricePoint | None) -> str:
    """What the recommended epsilon costs and brings."""
    said = [
        "Epsilon says how much one record can change what is released: a smaller epsilon protects better, and costs "
        f"accuracy. The training was repeated at {len(curve.points)} values of it ({curve.recipe})."
    ]
    if plain is not None and best is not None:
        said.append(
            f"At epsilon {size(best.epsilon)} the balanced accuracy on unseen records (the mean over classes of the "
            f"share that is decided correctly) is {percent(best.balanced_accuracy)} instead of "
            f"{percent(plain.balanced_accuracy)}, and the AUC (the chance that a record of a class is ranked above one "
            f"of another) {size(best.auc)} instead of {size(plain.auc)}."
        )
    return " ".join(said)


def remedies(curve: PriceCurve, plain: PricePoint | None, best: PricePoint | None) -> Iterator[str]:
    """The recommended training, with its price."""
    chosen = curve.recommendation
    if chosen.proven is not None:
        noise = "" if chosen.proven_noise is None else f" (noise multiplier {size(chosen.proven_noise)})"
        price = ""
        if plain is not None and best is not None:
            lost = 100 * max(0.0, plain.balanced_accuracy - best.balanced_accuracy)
            points = f"{lost:.1f} points" if math.isfinite(lost) else "an unknown amount"
            price = f" Measured price: {points} of balanced accuracy on unseen records."
        yield f"Train privately at epsilon {size(chosen.proven)}{noise}: by theorems {kept(curve)}.{price}"
    if chosen.measured is not None and chosen.measured != chosen.proven:
        sure = "with their 95 % intervals" if chosen.certain else "though not with their 95 % intervals"
        yield (
            f"Up to {_epsilon(chosen.measured)} the attacks of this audit stayed within the accepted limits, {sure}. "
            "That is no proof."
        )


def alt(curve: PriceCurve) -> str:
    """The plot in words: where each line begins and ends."""
    private = [point for point in curve.points if math.isfinite(point.epsilon)]
    if not private:
        return "No training with noise was measured"
    first, last = private[0], private[-1]
    lines: list[tuple[str, float | None, float | None]] = [
        ("balanced accuracy", first.balanced_accuracy, last.balanced_accuracy),
        ("AUC", first.auc, last.auc),
        ("members found", first.membership and first.membership.value, last.membership and last.membership.value),
        ("the same, proven at most", first.membership_bound, last.membership_bound),
        ("records rebuilt by the insider", first.rebuilt and first.rebuilt.value, last.rebuilt and last.rebuilt.value),
        ("right among ten candidates", first.candidates.value, last.candidates.value),
    ]
    said = [
        f"{name} {percent(low)} and {percent(high)}"
        for name, low, high in lines
        if low is not None and high is not None
    ]
    return f"At epsilon {size(first.epsilon)} and {size(last.epsilon)}: " + "; ".join(said)


def by_chance(curve: PriceCurve, others: int) -> tuple[str, ...]:
    """Where the measured share of members is above the proven one: the records are too few to show the rate."""
    over = [p for p in curve.points if p.membership is not None and p.membership.value > p.membership_bound]
    if not over:
        return ()
    points = ", ".join(_epsilon(point.epsilon) for point in over)
    widest = max((p.membership for p in over if p.membership is not None), key=lambda found: found.high - found.low)
    return (
        f"At {points} the measured share of members is above what is proven. {others:,} unseen records show a false "
        f"positive rate of {percent(curve.fpr)} only roughly: the 95 % interval of the share is {percent(widest.low)} "
        f"to {percent(widest.high)}.",
    )


def cut_short(left: list[float]) -> str:
    """What there was no time for."""
    return f"There was no time for {', '.join(_epsilon(epsilon) for epsilon in left)}."


def stand_in(linear: bool, mixed: bool) -> tuple[str, ...]:
    """What a private pipeline assumes, for numbers alone or for a table of ``mixed`` columns."""
    if not linear:
        return ()
    categories = (
        " For the same reason each category that the unseen records have became a column of its own, instead of those "
        "that an encoder finds in the records; declare the categories in the same way."
    )
    return (
        "The columns were scaled by ranges instead of a scaler that is fitted to records: such a scaler gives records "
        "away too. The ranges of the unseen records stood in for ranges that you would declare."
        + (categories if mixed else ""),
    )


def _epsilon(value: float) -> str:
    return "training without noise" if math.isinf(value) else f"epsilon {size(value)}"

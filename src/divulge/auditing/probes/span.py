"""Which part of the input does my model depend on? Span recovery by each client, and what can be hidden from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from divulge.auditing import commands
from divulge.auditing.probes.probe import Probe, deadline
from divulge.auditing.sentences import copies, spans
from divulge.auditing.severity import severity_of
from divulge.auditing.target import Target
from divulge.core.plots import curve, picture_grid
from divulge.report.findings import ADVERSARIES, Finding, Outcome, Picture, Table

SHOWN, JUDGED = 8, 500
"""Inputs that a picture shows, and inputs, at most, to which noise is added to see what the model ignores."""
UNCHANGED, ROUNDED = 1e-6, 1000
"""Answers that move by less than this part of their spread, or this many roundings of it, count as the same."""
MOSTLY, MOSTLY_QUANTITY = 1.0, 0.1
"""Answers that move by more than this part of their spread depend on more than the directions that were found. Where no
decision shows whether a movement matters, because the model predicts a quantity, less is allowed."""
STEPS_SHOWN = 12
SpanAccess = Literal["label", "value", "gradient"]


def _recover(target: Target, access: SpanAccess) -> Any:
    from divulge import span

    if access == "label":
        return span.from_labels(target.oracle("label"), inputs=target.example_inputs, seed=target.seed)
    return span.from_gradients(target.oracle(access), inputs=target.example_inputs, seed=target.seed)


def _run(access: SpanAccess) -> Callable[[Target, float], Finding]:
    def run(target: Target, seconds: float) -> Finding:
        with deadline(seconds):
            span = _recover(target, access)
        hidden = target.input_dim - span.rank
        outcome: Outcome = "failed" if hidden == 0 or span.rank == 0 else "succeeded" if span.complete else "partly"
        notes = tuple(span.notes)
        measures: dict[str, Any] = {"directions_seen": span.rank, "gap_in_the_spectrum": span.gap}
        pictures = [_rank_curve(span)] if span.rank > 1 else []
        if outcome != "failed" and target.inputs is not None:
            shown, figures = _obfuscated(target, span)
            measures |= figures
            pictures = shown + pictures
            outcome, more = _judged(
                outcome, figures, max(UNCHANGED, ROUNDED * target.oracle(access).eps), quantity=_quantity(target)
            )
            notes += more
        elif not span.complete:
            outcome = "failed"
        linear = outcome != "failed" and span.rank <= target.output_dim and target.kind in ("linear", "constant")
        return _finding(target, access, span, "failed" if linear else outcome, measures, pictures, notes, linear=linear)

    return run


def _finding(
    target: Target, access: SpanAccess, span: Any, outcome: Outcome, measures: dict[str, Any],
    pictures: list[Picture], notes: tuple[str, ...], *, linear: bool,
) -> Finding:  # fmt: skip
    adversary, hidden = ADVERSARIES[access], target.input_dim - span.rank
    return Finding(
        name=f"span-from-{access}s",
        question="span",
        adversary=adversary,
        title=spans.title(outcome, span.rank, target.input_dim, access, linear),
        outcome=outcome,
        severity=severity_of("span", adversary, outcome),
        meaning=spans.meaning(outcome, span.rank, hidden, linear, quantity=_quantity(target)),
        certainty=spans.certainty(span.gap, span.complete),
        measures={"directions_ignored": hidden, **measures} if outcome == "succeeded" or linear else measures,
        ledger=span.ledger,
        seconds=span.seconds,
        seed=target.seed,
        untested=(spans.check_inputs(), spans.cannot_hide()) if outcome != "failed" else (),
        command=commands.span(target, access),
        pictures=tuple(pictures),
        tables=(_rank_table(span),) if span.rank > 1 else (),
        notes=notes,
    )


def _judged(
    outcome: Outcome, figures: dict[str, Any], allowed: float, *, quantity: bool = False
) -> tuple[Outcome, tuple[str, ...]]:
    """The outcome after noise was added in the directions that the span leaves out."""
    if figures["decisions_changed_under_noise"]:
        return "failed", ()
    if "largest_output_change" not in figures or figures["output_spread"] == 0:
        return outcome, ()
    share = figures["largest_output_change"] / figures["output_spread"]
    if share <= allowed:
        return outcome, ()
    most = MOSTLY_QUANTITY if quantity else MOSTLY
    return "partly" if share <= most else "failed", (spans.moved(share),)


def _quantity(target: Target) -> bool:
    """Whether the model predicts a quantity, so that it makes no decisions."""
    return target.labels is not None and target.labels.is_floating_point()


def _obfuscated(target: Target, span: Any) -> tuple[list[Picture], dict[str, Any]]:
    from divulge.span import measure, obfuscate

    assert target.inputs is not None
    known = target.inputs if target.unseen is None else torch.cat([target.inputs[: JUDGED // 2], target.unseen])
    originals = known[: target.affordable(JUDGED)]
    noisy: Tensor = obfuscate(originals, span, scale=10.0, seed=target.seed)
    measured = measure(target.oracle("value" if target.grants("value") else "label"), originals, noisy)
    figures: dict[str, Any] = {
        "noise_over_input_norm": 10.0,
        "decisions_changed_under_noise": int((~measured.label_kept).sum()),
    }
    if measured.output_change is not None:
        figures["largest_output_change"] = float(measured.output_change.max())
        figures["output_spread"] = float(target.oracle("value").value(originals).double().std())
    if target.shape is None:
        return [], figures
    shift = target.mean if target.mean is not None else torch.zeros(target.input_dim, dtype=torch.float64)
    originals, noisy = originals[:SHOWN], noisy[:SHOWN]
    grid = picture_grid([("input", originals + shift), ("same answer", noisy + shift)], target.shape)
    words = f"{len(originals)} training inputs above the same inputs buried in noise ten times as strong"
    caption = "Each input above a version full of noise that the model answers the same."
    return [Picture(grid, words, caption, records=True)], figures


def _rank_curve(span: Any) -> Picture:
    steps = list(range(1, len(span.curve) + 1))
    png = curve([("rank", steps, list(span.curve))], x_label="samples asked", y_label="rank found")
    caption = "Rank against samples: where it flattens, there is no more to find."
    return Picture(png, spans.curve_words(span.rank, len(steps)), caption)


def _rank_table(span: Any) -> Table:
    """Where the rank grew, thinned out where it grew often."""
    grew = [step for step, rank in enumerate(span.curve) if step == 0 or rank > span.curve[step - 1]]
    shown = sorted({*grew[:: math.ceil(len(grew) / STEPS_SHOWN)], grew[-1], len(span.curve) - 1})
    return Table("Rank against samples", ("samples", "rank"), tuple((step + 1, span.curve[step]) for step in shown))


def _obstacle(access: SpanAccess) -> Callable[[Target], str]:
    def obstacle(target: Target) -> str:
        if not target.grants(access):
            return f"the access granted ({target.access}) does not include {access} queries."
        if target.vocabulary is not None:
            return copies.TOKENS
        if access == "label" and target.kind not in ("smooth", "unknown") and target.kind_is_known:
            return f"it is {target.description}; span recovery from labels is for smooth ones."
        if target.kind == "piecewise constant":
            return f"it is {target.description}: almost everywhere it has no gradient."
        if access == "value" and target.grants("gradient"):
            return "gradients were granted, which give the same answer with fewer queries."
        return ""

    return obstacle


def _seconds(access: SpanAccess) -> Callable[[Target], float]:
    def seconds(target: Target) -> float:
        """From runs on one core: about two gradients for each direction; from labels hundreds of queries for each."""
        queries = {"gradient": 2, "value": 4 * target.input_dim, "label": 2000}[access] * target.input_dim
        return 2.0 + 2e-5 * queries + queries * target.seconds_per_row

    return seconds


_ACCESSES: tuple[SpanAccess, ...] = ("gradient", "value", "label")
PROBES = tuple(
    Probe(
        f"span-from-{access}s",
        f"Span recovery from {access}s",
        _obstacle(access),
        _run(access),
        _seconds(access),
        "medium",
    )
    for access in _ACCESSES
)

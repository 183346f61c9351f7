"""Which part of the input does my model listen to? Span recovery by each client, and what can be hidden from it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from divulge.auditing.finding import ADVERSARIES, Finding, Outcome, Picture, Table, severity_of
from divulge.auditing.probe import Probe, deadline
from divulge.auditing.target import Target
from divulge.oracles.base import Access
from divulge.report.pictures import curve, picture_grid

SHOWN = 8
UNCHANGED, ROUNDED = 1e-6, 1000
"""Answers that move by less than this part of their spread, or this many roundings of it, count as the same."""
STEPS_SHOWN = 12


def _recover(target: Target, access: Access) -> Any:
    from divulge import span

    if access == "label":
        return span.from_labels(target.oracle("label"), seed=target.seed)
    return span.from_gradients(target.oracle(access), seed=target.seed)


def _run(access: Access) -> Any:
    adversary = ADVERSARIES[access]

    def run(target: Target, seconds: float) -> Finding:
        with deadline(seconds):
            span = _recover(target, access)
        hidden = target.input_dim - span.rank
        outcome: Outcome = "failed" if hidden == 0 or span.rank == 0 else "succeeded" if span.complete else "partly"
        notes = span.notes
        measures: dict[str, Any] = {"directions_seen": span.rank, "gap_in_the_spectrum": span.gap}
        pictures = [_rank_curve(span)] if span.rank > 1 else []
        if outcome != "failed" and target.inputs is not None:
            shown, figures = _obfuscated(target, span)
            measures |= figures
            pictures = shown + pictures
            outcome, more = _judged(outcome, figures, max(UNCHANGED, ROUNDED * target.oracle(access).eps))
            notes += more
        elif not span.complete:
            outcome = "failed"
        return Finding(
            name=f"span-from-{access}s",
            question="span",
            adversary=adversary,
            title=_title(span, target, outcome, access),
            outcome=outcome,
            severity=severity_of("span", adversary, outcome),
            meaning=_meaning(outcome, span.rank, hidden),
            certainty=f"The rank was decided by a gap of {span.gap:.2g} between what was kept and what was dropped"
            + ("." if span.complete else "; directions may be missing."),
            measures={"directions_ignored": hidden, **measures} if outcome == "succeeded" else measures,
            ledger=span.ledger,
            seconds=span.seconds,
            seed=target.seed,
            remedies=(
                "Check inputs for content outside the span before answering: the basis is known to you as to them.",
                "Nothing at the endpoint hides the span from someone who may ask often; it follows from the answers.",
            )
            if outcome != "failed"
            else (),
            command=target.command("span", "--access", access),
            pictures=tuple(pictures),
            tables=(_rank_table(span),) if span.rank > 1 else (),
            notes=notes,
        )

    return run


def _judged(outcome: Outcome, figures: dict[str, Any], allowed: float) -> tuple[Outcome, tuple[str, ...]]:
    """The outcome after noise was put where the span says that the model does not look."""
    if figures["decisions_changed_under_noise"]:
        return "failed", ()
    if figures.get("largest_output_change", 0.0) > figures.get("output_spread", math.inf) * allowed:
        moved = figures["largest_output_change"] / figures["output_spread"]
        return "partly", (
            f"Answers moved by up to {moved:.1g} of their spread under the noise: a direction was missed.",
        )
    return outcome, ()


def _meaning(outcome: Outcome, seen: int, hidden: int) -> str:
    if outcome == "partly":
        return (
            f"Most of what the model looks at lies in {seen} directions of its input: noise in the other {hidden} "
            "changed no decision that was tried, though some of them may matter."
        )
    if outcome == "succeeded":
        return (
            f"The model ignores {hidden} directions of its input: anyone can hide content there that a person sees and "
            "the model does not, or the other way round."
        )
    if hidden == 0:
        return "The model listens to its whole input; there is nothing it ignores."
    return "The attack found directions that matter, but not all: it cannot tell what the model ignores."


def _title(span: Any, target: Target, outcome: Outcome, access: Access) -> str:
    if outcome == "failed" and span.rank < target.input_dim:
        return f"Span recovery from {access}s did not succeed"
    return f"The model looks {'mostly ' * (outcome == 'partly')}at {span.rank} of {target.input_dim} input directions"


def _obfuscated(target: Target, span: Any) -> tuple[list[Picture], dict[str, Any]]:
    from divulge.span import measure, obfuscate

    assert target.inputs is not None
    originals = target.inputs[:SHOWN]
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
    grid = picture_grid([("input", originals + shift), ("same answer", noisy + shift)], target.shape)
    words = f"{len(originals)} training inputs above the same inputs buried in noise ten times as strong"
    return [Picture(grid, words, "Each input above a version full of noise that the model answers the same.")], figures


def _rank_curve(span: Any) -> Picture:
    steps = list(range(1, len(span.curve) + 1))
    png = curve([("rank", steps, list(span.curve))], x_label="samples asked", y_label="rank found")
    words = f"The rank found grows to {span.rank} over {len(steps)} samples and stays there"
    return Picture(png, words, "Rank against samples: where it flattens, nothing more is to be found.")


def _rank_table(span: Any) -> Table:
    """Where the rank grew, thinned out where it grew often."""
    grew = [step for step, rank in enumerate(span.curve) if step == 0 or rank > span.curve[step - 1]]
    shown = sorted({*grew[:: math.ceil(len(grew) / STEPS_SHOWN)], grew[-1], len(span.curve) - 1})
    return Table("Rank against samples", ("samples", "rank"), tuple((step + 1, span.curve[step]) for step in shown))


def _obstacle(access: Access) -> Any:
    def obstacle(target: Target) -> str:
        if not target.grants(access):
            return f"the access granted ({target.access}) does not include {access} queries."
        if access == "label" and target.kind not in ("smooth", "unknown"):
            return f"it is {target.description}; span recovery from labels is for smooth ones."
        if target.kind == "piecewise constant":
            return f"it is {target.description}: almost everywhere it has no gradient."
        if access == "value" and target.grants("gradient"):
            return "gradients were granted, which give the same answer with fewer queries."
        return ""

    return obstacle


PROBES = tuple(
    Probe(f"span-from-{access}s", f"Span recovery from {access}s", _obstacle(access), _run(access), share=1.0)
    for access in ("gradient", "value", "label")
)

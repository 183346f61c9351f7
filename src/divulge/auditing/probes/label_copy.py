"""Can they copy my model from decisions alone? Extraction from hard labels by the label client."""

from __future__ import annotations

from typing import Any

from divulge.auditing import commands
from divulge.auditing.fidelity import Judge, judge_of, judging_rows
from divulge.auditing.probes.exact_copy import contradicts
from divulge.auditing.probes.probe import Probe, TimeUp, deadline
from divulge.auditing.sentences import copies
from divulge.auditing.severity import severity_of
from divulge.auditing.target import Target
from divulge.core.errors import BudgetExhausted, DivulgeError
from divulge.report.findings import ADVERSARIES, Finding, Outcome
from divulge.report.text import asked

NAME = "copy-from-labels"
LABELS_PER_PARAMETER = 70
"""Labels for each parameter of the network, from ``python -m experiments extraction_labels``."""
SECONDS_PER_LABEL = 4e-5


def _obstacle(target: Target) -> str:
    if target.labels is not None and target.labels.is_floating_point():
        return "it predicts a quantity, and makes no decisions to follow."
    if target.vocabulary is not None:
        return copies.TOKENS
    if target.input_dim < 2:
        return "it takes a single number, and the boundary is followed in planes."
    if target.kind_is_known and target.kind in ("smooth", "piecewise constant", "piecewise linear"):
        reach = "an audit copies at most one hidden ReLU layer from labels; two take longer."
        return copies.no_copy_fits(target.description, reach)
    return ""


def _attempt(target: Target, seconds: float) -> tuple[Any, DivulgeError | None]:
    """The copy; where time or budget ended too soon, the one that was there by then, and what ended it."""
    from divulge import extraction

    try:
        with deadline(seconds):
            return extraction.from_labels(target.oracle("label"), inputs=target.example_inputs, seed=target.seed), None
    except (TimeUp, BudgetExhausted) as error:
        if error.partial is None:
            raise
        return error.partial, error


def _run(target: Target, seconds: float) -> Finding:
    found, stopped = _attempt(target, seconds)
    judge = judge_of(target, *judging_rows(target)[:2], unseen=judging_rows(target)[2]).of_decisions()
    likeness = judge.likeness(found.model)
    equivalent = bool(found.equivalent) and not contradicts(judge, likeness)
    outcome: Outcome = "succeeded" if equivalent else judge.outcome(likeness)
    if judge.constant:
        outcome = "failed"
    if stopped is not None and outcome == "failed":
        raise stopped
    return _finding(target, found, judge, likeness, outcome, equivalent=equivalent)


def _finding(
    target: Target, found: Any, judge: Judge, likeness: float, outcome: Outcome, *, equivalent: bool
) -> Finding:
    parameters = max(1, sum(p.numel() for p in found.model.parameters()))
    how = "up to a scale" if equivalent else f"in {copies.likeness(likeness, quantity=False)}"
    return Finding(
        name=NAME,
        question="copy",
        adversary=ADVERSARIES["label"],
        title=copies.exact_title(outcome, asked(found.cost, shown=target.answers), how, "label"),
        outcome=outcome,
        severity=severity_of("copy", ADVERSARIES["label"], outcome),
        meaning=copies.label_meaning(outcome, found.reason),
        certainty=copies.label_certainty(found.verified_rows, found.agreement, equivalent),
        measures={
            "equivalent": equivalent,
            "hidden_units_found": found.width,
            "same_decision": likeness,
            **judge.measures(found.model),
            "judging_rows": len(judge.rows),
            "labels_per_parameter": found.queries / parameters,
            "requests": found.requests,
        },
        ledger=found.cost,
        seconds=found.seconds,
        seed=target.seed,
        untested=(copies.labels_slow_down(found.queries),) if outcome in ("succeeded", "partly") else (),
        command=commands.extract(target, "label"),
        notes=tuple(found.notes),
    )


def _seconds(target: Target) -> float:
    """From runs on one core."""
    if target.kind == "linear":
        return 2.0
    labels = LABELS_PER_PARAMETER * (target.parameters or 30 * target.input_dim)
    return 2.0 + labels * (SECONDS_PER_LABEL + target.seconds_per_row)


PROBES = (Probe(NAME, "A copy from decisions alone", _obstacle, _run, _seconds, "high"),)

"""Can they tell what somebody did not say? Hidden columns of training records, against imputation."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from scipy.special import ndtri

from divulge.auditing import commands
from divulge.auditing.probes.membership import sides_of
from divulge.auditing.probes.probe import Probe, TimeUp, deadline, too_short
from divulge.auditing.sentences import members as sentences
from divulge.auditing.severity import severity_of
from divulge.auditing.target import Target
from divulge.core.result import Spent
from divulge.report.findings import ADVERSARIES, Finding, Outcome, Table

if TYPE_CHECKING:
    from divulge.attributes import Attribute

NAME = "attribute-inference"
MOST = 1_000
"""Records whose columns are hidden."""
FEWEST = 100
COLUMNS = 3
"""Columns that an audit hides, those with the fewest different values first."""
CLEAR = 0.1
"""An advantage is clear if its lower limit reaches this."""


def _obstacle(target: Target) -> str:
    if target.inputs is None or target.labels is None:
        return "the training data was not given; hidden columns are judged by it."
    if target.shape is not None:
        return "inputs are pictures; hidden columns are for tables."
    if len(target.inputs) < FEWEST:
        return f"it takes at least {FEWEST} training records."
    if target.access == "label" and target.labels.is_floating_point():
        return "labels alone say nothing about a regression."
    return "" if _columns(target) else "no column varies."


def _columns(target: Target) -> list[int]:
    assert target.inputs is not None
    counts = [len(torch.unique(target.inputs[:MOST, column])) for column in range(min(200, target.inputs.shape[1]))]
    varied = [column for column, count in enumerate(counts) if count > 1]
    return sorted(varied, key=lambda column: counts[column])[:COLUMNS]


def _run(target: Target, seconds: float) -> Finding:
    from divulge import attributes

    started = time.perf_counter()
    access = "value" if target.grants("value") else "label"
    (X, y), _ = sides_of(target) if target.unseen_labels is not None else ((target.inputs, target.labels), None)
    assert X is not None
    kept = torch.randperm(len(X), generator=torch.Generator().manual_seed(target.seed))[:MOST].sort().values
    columns, found = _columns(target), dict[int, "Attribute"]()
    with suppress(TimeUp), deadline(0.9 * seconds):
        for column in columns:
            found[column] = attributes.attack(
                target.oracle(access), X[kept], y[kept], column=column, seed=target.seed  # type: ignore[index,arg-type]
            )  # fmt: skip
    if not found:
        raise TimeUp(too_short(seconds))
    return _finding(target, found, [_name(target, column) for column in columns if column not in found], started)


def _corrected(risk: Attribute, tests: int) -> float:
    """The lower limit of the advantage, at a confidence that covers all columns together."""
    value, low, _ = risk.advantage
    return value - (value - low) * float(ndtri(1 - 0.025 / tests) / ndtri(0.975))


def _finding(target: Target, found: dict[int, Attribute], left: list[str], started: float) -> Finding:
    limits = {column: _corrected(risk, len(found)) for column, risk in found.items()}
    worst = max(limits, key=lambda column: limits[column])
    outcome: Outcome = "succeeded" if limits[worst] >= CLEAR else "partly" if limits[worst] > 0 else "failed"
    adversary = ADVERSARIES["value" if target.grants("value") else "label"]
    rows: list[tuple[Any, ...]] = [
        (_name(target, column), risk.accuracy, risk.baseline, float(risk.advantage), limits[column])
        for column, risk in found.items()
    ]
    caption = "Hidden columns: share of records guessed right"
    return Finding(
        name=NAME,
        question="attributes",
        adversary=adversary,
        title=sentences.attributes_title(outcome, _name(target, worst), float(found[worst].advantage)),
        outcome=outcome,
        severity=severity_of("attributes", adversary, outcome),
        meaning=sentences.attributes_meaning(outcome),
        certainty=sentences.attributes_certainty(len(found[worst].scores), len(found)),
        measures={"columns_tried": len(found), "largest_advantage": float(found[worst].advantage)},
        ledger=sum((risk.ledger for risk in found.values()), Spent()),
        seconds=time.perf_counter() - started,
        seed=target.seed,
        untested=(sentences.regularise(),) if outcome in ("succeeded", "partly") else (),
        command=commands.attributes(target, [_name(target, column) for column in found]),
        tables=(Table(caption, ("column", "with the model", "without", "advantage", "at least"), tuple(rows)),),
        notes=(sentences.columns_left(left),) if left else (),
    )


def _name(target: Target, column: int) -> str:
    return target.columns[column] if target.columns else str(column)


def _seconds(target: Target) -> float:
    return 8.0 * COLUMNS


PROBES = [Probe(NAME, "Hidden columns of training records", _obstacle, _run, _seconds, at_stake="high")]

"""What does the file itself contain? Training records, sums, extremes and categories, read out of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from divulge.auditing import commands
from divulge.auditing.probes.probe import Probe
from divulge.auditing.sentences import contents as sentences
from divulge.auditing.severity import severity_of
from divulge.auditing.target import Target
from divulge.core.errors import DivulgeError
from divulge.report.findings import Finding, Outcome, Table

if TYPE_CHECKING:
    from divulge.contents import Contents, Holding
    from divulge.contents.result import HoldingKind

NAME = "file-contents"
SHOWN = 12
"""Places, and columns of the record, that the report lists."""


def _obstacle(target: Target) -> str:
    if target.held is None:
        return f"the access granted ({target.access}) does not include the file of the model."
    try:
        found = _read(target)
    except DivulgeError as error:
        return str(error)
    return "" if found.success else found.reason


def _read(target: Target) -> Contents:
    """What the model holds; read once."""
    from divulge import contents

    if NAME not in target.memo:
        known = target.frame if target.frame is not None or target.inputs is None else target.inputs.numpy()
        target.memo[NAME] = contents.read(target.held, known)
    found: Contents = target.memo[NAME]
    return found


def _run(target: Target, seconds: float) -> Finding:
    found = _read(target)
    rows = found.of_kind("records")
    whole = [holding for holding in rows if holding.verbatim]
    outcome: Outcome = "succeeded" if whole else "partly"
    most = max(whole or rows, key=lambda holding: holding.count, default=None)
    return Finding(
        name=NAME,
        question="contents",
        adversary="holder of the weights",
        title=_title(found, whole),
        outcome=outcome,
        severity=severity_of("contents", "holder of the weights", outcome),
        meaning=sentences.meaning(outcome),
        certainty=sentences.certainty(most.count if most else 0, most.in_training_data if most else None),
        measures={
            "records_in_the_file": max((holding.count for holding in whole), default=0),
            "equal_to_a_training_record": most.in_training_data if most else None,
            "places": len(found.holdings),
        },
        seconds=found.seconds,
        seed=target.seed,
        untested=(sentences.other_model(),) if whole else (sentences.public_preprocessing(),),
        command=commands.contents(target),
        tables=(_places(found.holdings), *_one_record(target, whole)),
    )


def _title(found: Contents, whole: list[Holding]) -> str:
    if not whole:
        kinds: tuple[HoldingKind, ...] = ("records", "sums", "values", "categories", "labels")
        return sentences.parts_title(*(sum(holding.count for holding in found.of_kind(kind)) for kind in kinds))
    first = max(whole, key=lambda holding: holding.count)
    return sentences.records_title(_known(first), first.where)


def _known(holding: Holding) -> int:
    """Rows that are training records: those that were compared and equal one, or all where nothing was compared."""
    return holding.count if holding.in_training_data is None else holding.in_training_data


def _places(holdings: tuple[Holding, ...]) -> Table:
    rows = tuple((h.where, h.kind, h.count, h.detail) for h in holdings[:SHOWN])
    return Table("What the file holds", ("where", "what", "how many", "in words"), rows)


def _one_record(target: Target, whole: list[Holding]) -> tuple[Table, ...]:
    """One of the records, column by column; left out of a report that does not show records."""
    first = max(whole, key=lambda holding: holding.count, default=None)
    if first is None or first.rows is None:
        return ()
    record: Any = first.rows[0]
    names = target.columns if len(target.columns) == len(record) else [f"column {i}" for i in range(len(record))]
    cells = tuple((name, _plain(value)) for name, value in list(zip(names, record, strict=True))[:SHOWN])
    return (Table("One of the records", ("column", "value"), cells, records=True),)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


PROBES = (Probe(NAME, "What the file itself contains", _obstacle, _run, lambda target: 0.1, "critical"),)

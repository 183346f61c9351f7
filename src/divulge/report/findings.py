"""A finding: what one adversary got out of the model, how well, at what cost, what it means and what stops it.

Severity follows a written rule (docs/severity.md), which ``divulge.auditing.severity`` applies. An attack ends in one
of three states: something was *taken*; nothing was taken although it ran to its end (*not taken*); or it did not run to
its end, so that nothing can be said (*inconclusive*).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from divulge.oracles.base import Access
from divulge.oracles.ledger import Spent

Question = Literal["contents", "copy", "span", "training-data", "informed", "membership", "attributes", "protection"]
Adversary = Literal["label client", "prediction client", "explanation client", "holder of the weights", "insider"]
Outcome = Literal["succeeded", "partly", "failed", "inconclusive"]
Severity = Literal["critical", "high", "medium", "low", "none"]
State = Literal["taken", "not taken", "inconclusive"]
Ending = Literal["does not fit", "not tried", "unfinished", "failed"]

SEVERITIES: tuple[Severity, ...] = ("none", "low", "medium", "high", "critical")
"""Every severity, the least first."""
QUESTIONS: dict[Question, str] = {
    "contents": "What does the file itself contain?",
    "copy": "Can they copy my model?",
    "span": "Which part of the input does my model depend on?",
    "training-data": "Can they get my training data out of it?",
    "informed": "Can someone who knows the rest rebuild one record?",
    "membership": "Can they tell that somebody was in it?",
    "attributes": "Can they tell what somebody did not say?",
    "protection": "How much protection is enough?",
}
STOPPED_SHORT = "queries_needed_to_say_more"
"""The measure of a finding whose attack was too short to say that nothing can be taken: the queries it would need."""
ADVERSARIES: dict[Access, Adversary] = {
    "label": "label client",
    "value": "prediction client",
    "gradient": "explanation client",
    "weights": "holder of the weights",
}
"""Who has each access."""
REMOTE: frozenset[Adversary] = frozenset({"label client", "prediction client", "explanation client"})
"""The adversaries who are clients of an endpoint."""
RECORDS_LEFT_OUT = (
    "Training records and what was rebuilt of them are not shown; repeat the audit with show_records to see."
)


@dataclass(frozen=True)
class Picture:
    """A picture for the report.

    Parameters
    ----------
    png : bytes
        The picture.
    alt : str
        What it shows, in words.
    caption : str
        The line below it.
    wide : bool, default True
        Whether it takes a row of its own.
    records : bool, default False
        Whether it shows training records. Such a picture is left out of a report that does not show records.

    Examples
    --------
    >>> from divulge.auditing import Picture
    >>> Picture(b"", "A curve that rises", "Rank against samples.").wide
    True
    """

    png: bytes = field(repr=False)
    alt: str
    caption: str
    wide: bool = True
    records: bool = False


@dataclass(frozen=True)
class Table:
    """A table for the report.

    Parameters
    ----------
    caption : str
        The line above it.
    columns : tuple of str
        The headings.
    rows : tuple of tuple
        The cells, row by row.
    records : bool, default False
        Whether it shows training records. Such a table is left out of a report that does not show records.

    Examples
    --------
    >>> from divulge.auditing import Table
    >>> Table("Copies against queries", ("queries", "same decisions"), ((30, 0.91),)).columns
    ('queries', 'same decisions')
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    records: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        rows = [list(row) for row in self.rows]
        return {"caption": self.caption, "columns": list(self.columns), "rows": rows, "records": self.records}


@dataclass(frozen=True)
class Finding:
    """The result of one attack that ran in an audit.

    Parameters
    ----------
    name : str
        Identifies the attack, such as ``"copy-from-values"``.
    question : {"contents", "copy", "span", "training-data", "informed", "membership", "attributes", "protection"}
        What the attack is after.
    adversary : str or None
        Who attacks; None for advice on protection.
    title : str
        What came of it, in one line.
    outcome : {"succeeded", "partly", "failed", "inconclusive"}
        What came of it, in one word. An attack that did not run to its end and got nothing is inconclusive.
    severity : {"critical", "high", "medium", "low", "none"}
        By the written rule, ``divulge.auditing.severity_of``.
    meaning : str
        What it means, in plain sentences.
    certainty : str
        What was checked, and what was not.
    measures : dict
        How well it did, by name.
    ledger : Spent
        What it cost in queries.
    seconds : float
        What it cost in time.
    seed : int
        The seed that repeats it.
    remedies : tuple of str
        What stops it: only what this audit measured against this attack, or what a theorem covers.
    untested : tuple of str
        What may help and was neither measured nor proven.
    command : str
        The shell command that repeats it.
    pictures : tuple of Picture
        What there is to see.
    tables : tuple of Table
        The numbers.
    notes : tuple of str
        What else a reader must know.
    worst_record : str, default ""
        The record that was hit hardest, by its number and not its content, in one sentence.

    Examples
    --------
    >>> from divulge.auditing import Finding
    >>> Finding("x", "copy", "label client", "No copy", "failed", "none", "Nothing was taken.", "One run.").state
    'not taken'
    """

    name: str
    question: Question
    adversary: Adversary | None
    title: str
    outcome: Outcome
    severity: Severity
    meaning: str
    certainty: str
    measures: dict[str, Any] = field(default_factory=dict)
    ledger: Spent = field(default_factory=Spent)
    seconds: float = 0.0
    seed: int = 0
    remedies: tuple[str, ...] = ()
    untested: tuple[str, ...] = ()
    command: str = ""
    pictures: tuple[Picture, ...] = ()
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    worst_record: str = ""

    @property
    def state(self) -> State:
        """Whether something was taken."""
        if self.outcome == "inconclusive":
            return "inconclusive"
        return "not taken" if self.severity == "none" else "taken"

    @property
    def is_advice(self) -> bool:
        """Whether it is advice on protection and no attack."""
        return self.adversary is None

    def without_records(self) -> Finding:
        """The same finding without the tables and pictures that show training records."""
        shown = [part.records for part in self.pictures] + [part.records for part in self.tables]
        if not any(shown):
            return self
        return replace(
            self,
            pictures=tuple(picture for picture in self.pictures if not picture.records),
            tables=tuple(table for table in self.tables if not table.records),
            notes=(*self.notes, RECORDS_LEFT_OUT),
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values for report.json; pictures by their words only."""
        return {
            "name": self.name,
            "question": self.question,
            "adversary": self.adversary,
            "title": self.title,
            "outcome": self.outcome,
            "state": None if self.is_advice else self.state,
            "severity": self.severity,
            "meaning": self.meaning,
            "certainty": self.certainty,
            "measures": self.measures,
            "queries": self.ledger.as_dict(),
            "seconds": round(self.seconds, 3),
            "seed": self.seed,
            "remedies": list(self.remedies),
            "untested": list(self.untested),
            "command": self.command,
            "pictures": [{"alt": p.alt, "caption": p.caption} for p in self.pictures],
            "tables": [table.as_dict() for table in self.tables],
            "notes": list(self.notes),
            "worst_record": self.worst_record,
        }


@dataclass(frozen=True)
class Skipped:
    """An attack that has no finding, and why.

    Parameters
    ----------
    name : str
        Identifies the attack.
    title : str
        What the report calls it.
    reason : str
        Why there is no finding, in one sentence.
    ending : {"does not fit", "not tried", "unfinished", "failed"}, default "does not fit"
        The attack does not fit the target; it fits and was not started; it was started and did not run to its end; or
        it ran to its end and got nothing.
    at_stake : {"critical", "high", "medium", "low", "none"}, default "none"
        How severe its finding would be, had it succeeded.
    target_failed : bool, default False
        Whether it did not run to its end because the target stopped answering.

    Examples
    --------
    >>> from divulge.auditing import Skipped
    >>> Skipped("copy-from-values", "Exact copy", "The time was used up.", "not tried", "high").state
    'inconclusive'
    """

    name: str
    title: str
    reason: str
    ending: Ending = "does not fit"
    at_stake: Severity = "none"
    target_failed: bool = False

    @property
    def tried(self) -> bool:
        """Whether it was started."""
        return self.ending in ("unfinished", "failed")

    @property
    def state(self) -> State | None:
        """Whether something was taken; None where the attack does not fit."""
        if self.ending == "does not fit":
            return None
        return "not taken" if self.ending == "failed" else "inconclusive"

    def as_dict(self) -> dict[str, Any]:
        """Plain values for report.json."""
        return {
            "name": self.name,
            "title": self.title,
            "reason": self.reason,
            "ending": self.ending,
            "state": self.state,
            "at_stake": self.at_stake,
        }


def worst(findings: Iterable[Finding]) -> Severity:
    """The most severe of the findings; "none" if there are none."""
    return max((finding.severity for finding in findings), key=SEVERITIES.index, default="none")


def at_least(severity: Severity, threshold: Severity) -> bool:
    """Whether a severity reaches a threshold."""
    return SEVERITIES.index(severity) >= SEVERITIES.index(threshold)

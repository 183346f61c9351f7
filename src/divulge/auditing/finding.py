"""A finding: what one adversary got out of the model, how well, at what cost, what it means and what stops it.

Severity follows a written rule (docs/severity.md), applied by ``severity_of`` and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from divulge.oracles.base import Access, Spent

Question = Literal["copy", "span", "training-data", "informed", "protection"]
Adversary = Literal["label client", "prediction client", "explanation client", "holder of the weights", "insider"]
Outcome = Literal["succeeded", "partly", "failed"]
Severity = Literal["critical", "high", "medium", "low", "none"]

SEVERITIES: tuple[Severity, ...] = ("none", "low", "medium", "high", "critical")
QUESTIONS: dict[Question, str] = {
    "copy": "Can they copy my model?",
    "span": "Which part of the input does my model listen to?",
    "training-data": "Can they get my training data out of it?",
    "informed": "Can someone who knows the rest rebuild one record?",
    "protection": "How much protection is enough?",
}
ADVERSARIES: dict[Access, Adversary] = {
    "label": "label client",
    "value": "prediction client",
    "gradient": "explanation client",
    "weights": "holder of the weights",
}
"""Who has each access."""
REMOTE: frozenset[Adversary] = frozenset({"label client", "prediction client", "explanation client"})


@dataclass(frozen=True)
class Picture:
    """A picture for the report: PNG bytes, what it shows in words for whoever cannot see it, and a caption."""

    png: bytes
    alt: str
    caption: str
    wide: bool = True


@dataclass(frozen=True)
class Table:
    """Numbers for the report."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class Finding:
    """The result of one attack in an audit."""

    name: str
    question: Question
    adversary: Adversary | None
    title: str
    outcome: Outcome
    severity: Severity
    meaning: str
    """What it means, in one plain sentence."""
    certainty: str
    """How sure we are, and what was checked."""
    measures: dict[str, Any] = field(default_factory=dict)
    """How well: worst-case error, fidelity, correlation, ... by name."""
    ledger: Spent = field(default_factory=Spent)
    seconds: float = 0.0
    seed: int = 0
    remedies: tuple[str, ...] = ()
    """What stops it, with the measured or proven price."""
    command: str = ""
    """The command that repeats it."""
    pictures: tuple[Picture, ...] = ()
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values for report.json; pictures by their words only."""
        return {
            "name": self.name,
            "question": self.question,
            "adversary": self.adversary,
            "title": self.title,
            "outcome": self.outcome,
            "severity": self.severity,
            "meaning": self.meaning,
            "certainty": self.certainty,
            "measures": self.measures,
            "queries": self.ledger.as_dict(),
            "seconds": round(self.seconds, 3),
            "seed": self.seed,
            "remedies": list(self.remedies),
            "command": self.command,
            "pictures": [{"alt": p.alt, "caption": p.caption} for p in self.pictures],
            "tables": [
                {"caption": t.caption, "columns": list(t.columns), "rows": [list(row) for row in t.rows]}
                for t in self.tables
            ],
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class Skipped:
    """An attack that has no finding, and why: it was not run, or (``tried``) it ran and could not finish."""

    name: str
    title: str
    reason: str
    tried: bool = False
    target_failed: bool = False
    """It could not finish because the target stopped answering."""

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "title": self.title, "reason": self.reason, "tried": self.tried}


def severity_of(question: Question, adversary: Adversary | None, outcome: Outcome) -> Severity:
    """The written rule: what was taken, and who could take it."""
    if outcome == "failed" or question == "protection" or adversary is None:
        return "none"
    remote = adversary in REMOTE
    if question in ("training-data", "informed"):
        if outcome == "succeeded":
            return "critical" if remote else "high"
        return "high" if remote else "medium"
    if question == "copy":
        return "high" if outcome == "succeeded" else "medium"
    return "medium" if outcome == "succeeded" else "low"


def worst(findings: list[Finding]) -> Severity:
    """The most severe of them; "none" of an empty list."""
    return max((finding.severity for finding in findings), key=SEVERITIES.index, default="none")

"""The report: one audit's findings as a page to look at, a JSON for programs, and Markdown for a pull request."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from divulge.auditing.finding import (
    QUESTIONS,
    SEVERITIES,
    Adversary,
    Finding,
    Question,
    Severity,
    Skipped,
    worst,
)
from divulge.errors import InvalidInput
from divulge.oracles.base import Spent

SCHEMA_VERSION = 1
SHARES = ("same_decision", "variance", "by_", "right_answers", "control", "blind_guess", "accepted_chance", "accuracy",
          "fidelity", "sampling_rate")  # fmt: skip
"""How measures are called that are shares of one."""
_WHO: dict[Adversary, str] = {
    "label client": "Anyone who sees its decisions",
    "prediction client": "Anyone who may ask for predictions",
    "explanation client": "Anyone who may ask for explanations",
    "holder of the weights": "Whoever holds the weights",
    "insider": "An insider who knows all other records",
}
_WHAT: dict[Question, tuple[str, str]] = {
    "copy": ("copy the model", "copy much of the model"),
    "span": ("find input that it ignores", "find some input that it ignores"),
    "training-data": ("compute training records", "compute some training records, or parts of them"),
    "informed": ("compute the missing one", "sometimes compute the missing one"),
}
"""What was taken, and what was taken of it in part."""
_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Report:
    """Everything an audit found, and what it did not try."""

    target: dict[str, Any]
    """What was audited: its name, kind, shapes and the access that was granted."""
    findings: list[Finding]
    skipped: list[Skipped]
    seconds: float
    seed: int
    finished: bool = True
    target_failed: bool = False
    """The target stopped answering before all attacks were done."""
    price: float | None = None
    """Price of 1,000 queries, to show costs in money."""
    versions: dict[str, str] = field(default_factory=dict)
    command: str = ""
    date: str = ""

    @property
    def severity(self) -> Severity:
        """The worst severity among the findings."""
        return worst(self.findings)

    @property
    def verdict(self) -> list[str]:
        """Who could take what, in a sentence each, the worst first."""
        ranked = sorted(self.findings, key=lambda finding: -SEVERITIES.index(finding.severity))
        taken: dict[str, list[str]] = {}
        for finding in ranked:
            if finding.severity != "none" and finding.adversary is not None:
                taken.setdefault(_WHO[finding.adversary], []).append(
                    _WHAT[finding.question][finding.outcome == "partly"]
                )
        told = [f"{who} can {' and '.join(dict.fromkeys(what))}." for who, what in taken.items()]
        unfinished = sum(skip.tried for skip in self.skipped)
        rest = [f"{unfinished} attack{'s' if unfinished > 1 else ''} ended without a result."] if unfinished else []
        doubt = [self.target["warning"]] if "warning" in self.target else []
        return (told or ["Nothing was taken by the attacks that ran."]) + rest + doubt

    def reaches(self, threshold: Severity) -> bool:
        """True if any finding is at least this severe: what a build server fails on."""
        return SEVERITIES.index(self.severity) >= SEVERITIES.index(threshold)

    def money(self, finding: Finding) -> float | None:
        """What the finding's queries would have cost the attacker."""
        return None if self.price is None else round(self.price * finding.ledger.total / 1000, 4)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as the published schema describes them."""
        return {
            "schema_version": SCHEMA_VERSION,
            "target": self.target,
            "severity": self.severity,
            "finished": self.finished,
            "target_failed": self.target_failed,
            "findings": [{**f.as_dict(), "price": self.money(f)} for f in self.findings],
            "skipped": [s.as_dict() for s in self.skipped],
            "seconds": round(self.seconds, 3),
            "seed": self.seed,
            "versions": self.versions,
            "command": self.command,
            "date": self.date,
        }

    def save(self, path: str | Path) -> Path:
        """Write the report; the ending of the name decides the form: .html, .json or .md."""
        path = Path(path)
        forms = {".html": self.html, ".json": self.json, ".md": self.markdown}
        if path.suffix not in forms:
            raise InvalidInput(f"A report is saved as .html, .json or .md; {path.name!r} is none of them.")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(forms[path.suffix](), encoding="utf-8")
        return path

    def json(self) -> str:
        return json.dumps(_plain(self.as_dict()), indent=2) + "\n"

    def html(self) -> str:
        """One self-contained page: no script, no request, everything from models and files escaped."""
        return str(_environment(autoescape=True).get_template("page.html").render(**self._view()))

    def markdown(self) -> str:
        """The same in Markdown, without the pictures."""
        text = str(_environment(autoescape=False).get_template("page.md").render(**self._view()))
        return re.sub(r"\n{3,}", "\n\n", text)

    def _view(self) -> dict[str, Any]:
        by_question = {q: [f for f in self.findings if f.question == q] for q in QUESTIONS}
        return {
            "report": self,
            "questions": [(q, title, by_question[q]) for q, title in QUESTIONS.items() if by_question[q]],
            "missing": [
                (key, heading, items)
                for key, heading, tried in (
                    ("unfinished", "What was tried without a result", True),
                    ("skipped", "What was not tried, and why", False),
                )
                if (items := [item for item in self.skipped if item.tried == tried])
            ],
            "style": (_HERE / "page.css").read_text(encoding="utf-8"),
        }


def schema() -> dict[str, Any]:
    """The JSON schema of report.json."""
    published: dict[str, Any] = json.loads((_HERE / "schema.json").read_text(encoding="utf-8"))
    return published


def _environment(*, autoescape: bool) -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=autoescape, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["number"] = number
    environment.filters["data_uri"] = lambda png: "data:image/png;base64," + base64.b64encode(png).decode("ascii")
    environment.filters["duration"] = duration
    environment.filters["measure"] = measure
    environment.filters["badge"] = lambda finding: "advice" if finding.adversary is None else finding.severity
    environment.filters["queries"] = queries
    environment.filters["code"] = lambda text: _markdown_cell(text) if re.search(r"[`<>\n\r]", text) else f"`{text}`"
    environment.filters["cell"] = lambda value: _markdown_cell(number(value))
    return environment


def number(value: Any) -> str:
    """A value for a person: thousands separated, small and large floats in three digits."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if value == 0 or 1e-3 <= abs(value) < 1e5:
            return f"{value:,.4g}"
        return f"{value:.2e}"
    return str(value)


def measure(value: Any, name: str) -> str:
    """A finding's measure for a person; shares in percent."""
    share = name.startswith(SHARES) and isinstance(value, float) and 0 <= value <= 1
    return f"{100 * value:.4g}%" if share else number(value)


def queries(spent: Spent) -> str:
    """What was asked, by kind."""
    kinds = {"values": spent.value, "gradients": spent.gradient, "labels": spent.label}
    return ", ".join(f"{rows:,} {kind}" for kind, rows in kinds.items() if rows) or "none"


def asked(spent: Spent) -> str:
    """The same in words for a title: what a client of the endpoint would call it."""
    kinds = {"explanation": spent.gradient, "prediction": spent.value, "decision": spent.label}
    told = [f"{rows:,} {kind}" + ("s" if rows > 1 else "") for kind, rows in kinds.items() if rows]
    return " and ".join(told) or "No queries"


def duration(seconds: float) -> str:
    if seconds < 1:
        return "under a second"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min"


def _markdown_cell(text: str) -> str:
    """Text that cannot break out of a table or turn into markup."""
    return re.sub(r"([\\`*_{}\[\]<>#|~])", r"\\\1", text).replace("\n", " ").replace("\r", " ")


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null, which every reader understands."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return value if isinstance(value, str | int | float | bool | None) else str(value)

"""The report: the findings of one audit as a page to look at, a JSON for programs, and Markdown for a pull request."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from divulge.core.errors import InvalidInput
from divulge.core.html import cell, table
from divulge.core.json import dumps
from divulge.core.storage import write
from divulge.core.text import clean
from divulge.report import regulation, text, words
from divulge.report import verdict as verdicts
from divulge.report.findings import QUESTIONS, SEVERITIES, Finding, Severity, Skipped, State, at_least, worst

if TYPE_CHECKING:
    import pandas

SCHEMA_VERSION = 3
_TEMPLATES = Path(__file__).parent / "templates"
_ENDINGS = {
    "unfinished": "What was started and did not run to its end",
    "not tried": "What fits and was not started",
    "failed": "What ran to its end without a result",
    "does not fit": "What was not tried, and why",
}


@dataclass(frozen=True)
class Report:
    """Everything that an audit found, and what it did not try.

    Parameters
    ----------
    target : dict
        What was audited: its name, kind and shapes, and the access that was granted.
    findings : list of Finding
        The results of the attacks that ran.
    skipped : list of Skipped
        The attacks without a finding, and why.
    seconds : float
        How long the audit took, with the findings that it kept from an earlier run.
    seed : int
        The seed that repeats it.
    finished : bool, default True
        Whether every attack that fits ran to its end.
    interrupted : bool, default False
        Whether the user stopped the audit.
    target_failed : bool, default False
        Whether the target stopped answering.
    price : float, optional
        Price of 1,000 queries, to show costs in money.
    missing : tuple of str
        What a further audit could be given, in a sentence each.
    versions : dict
        The versions of divulge and of what it computes with.
    command : str
        The shell command that made the report.
    date : str
        The day of the audit.
    auditor : str
        Who made the audit, as they said it.
    controls : tuple of str
        Controls that the owner declares, such as a rate limit. An audit does not test them.
    digests : dict
        SHA-256 digests of the model and the data.

    Examples
    --------
    >>> from divulge.report import Report
    >>> report = Report({"name": "m", "kind": "a linear model"}, [], [], seconds=1.0, seed=0)
    >>> report.state
    'inconclusive'
    """

    target: dict[str, Any]
    findings: list[Finding]
    skipped: list[Skipped]
    seconds: float
    seed: int
    finished: bool = True
    interrupted: bool = False
    target_failed: bool = False
    price: float | None = None
    missing: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    command: str = ""
    date: str = ""
    auditor: str = ""
    controls: tuple[str, ...] = ()
    digests: dict[str, str] = field(default_factory=dict)

    @property
    def severity(self) -> Severity:
        """The worst severity among the findings."""
        return worst(self.findings)

    @property
    def state(self) -> State:
        """Taken, not taken by the attacks that ran to their end, or inconclusive."""
        return verdicts.state_of(self.findings, self.skipped)

    @property
    def headline(self) -> str:
        """One word for the whole: the severity of what was taken, "not taken", or "inconclusive"."""
        return self.severity if self.state == "taken" else self.state

    @property
    def verdict(self) -> list[str]:
        """Who could take what, in a sentence each, the worst first; or why nothing can be said."""
        said = verdicts.sentences(self.findings, self.skipped, missing=self.missing, target_failed=self.target_failed)
        private = self.target.get("differential_privacy")
        said += [f"By its recipe it was trained with differential privacy: {private}."] if private else []
        return said + ([self.target["warning"]] if "warning" in self.target else [])

    @property
    def guarantee(self) -> str:
        """The differential privacy that the training guarantees, in words; empty where none is."""
        said = str(self.target.get("differential_privacy", ""))
        return "" if said.startswith("not claimed") else said

    @property
    def scope(self) -> list[regulation.ScopeRow]:
        """What the audit says about each class of attacks that regulators and standards name."""
        return regulation.scope(self.findings, self.skipped, guarantee=self.guarantee)

    def gate(self, fail_on: Severity | None, *, require: Sequence[str] = ()) -> verdicts.Gate:
        """Whether the audit passes a gate in a build.

        Parameters
        ----------
        fail_on : {"low", "medium", "high", "critical"}, optional
            The severity that must not be reached.
        require : sequence of str, default ()
            Names of attacks that must have run to their end.

        Returns
        -------
        Gate
            ``"met"``, ``"not met"``, or ``"inconclusive"`` if an attack that could decide it did not run to its end.

        Examples
        --------
        >>> from divulge.report import Report
        >>> Report({"name": "m", "kind": "a linear model"}, [], [], seconds=1.0, seed=0).gate("low").result
        'inconclusive'
        """
        return verdicts.gate(self.findings, self.skipped, fail_on=fail_on, require=require)

    def reaches(self, threshold: Severity) -> bool:
        """Whether any finding is at least this severe."""
        return at_least(self.severity, threshold)

    def money(self, finding: Finding) -> float | None:
        """What the queries of a finding would have cost the attacker; None without a price."""
        return None if self.price is None else round(self.price * finding.ledger.total / 1000, 4)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as the published schema describes them."""
        return {
            "schema_version": SCHEMA_VERSION,
            "target": self.target,
            "state": self.state,
            "severity": self.severity,
            "verdict": self.verdict,
            "finished": self.finished,
            "interrupted": self.interrupted,
            "target_failed": self.target_failed,
            "unfinished": [attack.name for attack in verdicts.unfinished(self.findings, self.skipped)],
            "findings": [{**f.as_dict(), "price": self.money(f)} for f in self.findings],
            "skipped": [s.as_dict() for s in self.skipped],
            "seconds": round(self.seconds, 3),
            "seed": self.seed,
            "versions": self.versions,
            "command": self.command,
            "date": self.date,
            "auditor": self.auditor,
            "controls": list(self.controls),
            "digests": self.digests,
            "scope": [row.as_dict() for row in self.scope],
        }

    def save(self, path: str | Path) -> Path:
        """Write the report.

        Parameters
        ----------
        path : path
            Where to. The ending of the name decides the form: .html, .pdf, .md, .json, .sarif (for code scanning) or
            .cdx.json (a CycloneDX fragment).

        Returns
        -------
        Path
            The file that was written.

        Raises
        ------
        InvalidInput
            If the name has another ending.
        MissingPackage
            If a PDF is asked for and WeasyPrint is not installed.

        Examples
        --------
        >>> import tempfile
        >>> from divulge.report import Report
        >>> report = Report({"name": "m", "kind": "a linear model"}, [], [], seconds=1.0, seed=0)
        >>> report.save(tempfile.mkdtemp() + "/report.md").name
        'report.md'
        """
        from divulge.report import exports, signoff

        path = Path(path)
        forms: dict[str, Callable[[], str | bytes]] = {
            ".cdx.json": lambda: dumps(exports.cyclonedx(self), indent=2) + "\n",
            ".sarif": lambda: dumps(exports.sarif(self), indent=2) + "\n",
            ".pdf": lambda: signoff.pdf(self),
            ".html": self.html,
            ".json": self.json,
            ".md": self.markdown,
        }
        form = next((make for ending, make in forms.items() if path.name.endswith(ending)), None)
        if form is None:
            raise InvalidInput(f"A report is saved as {text.either(list(forms))}; {path.name!r} is none of them.")
        return write(path, form())

    def to_frame(self) -> pandas.DataFrame:
        """The findings as a pandas table, one row a finding and one column a measure.

        Returns
        -------
        DataFrame
            Name, question, adversary, title, outcome, state, severity, queries and seconds of each finding, then its
            measures, each column named ``measures.`` and the measure.

        Raises
        ------
        MissingPackage
            If pandas is not installed.

        Examples
        --------
        >>> from divulge.report import Report
        >>> Report({"name": "m", "kind": "a linear model"}, [], [], seconds=1.0, seed=0).to_frame().shape
        (0, 9)
        """
        from divulge.report import exports

        return exports.frame(self)

    def json(self) -> str:
        """The report as JSON, by the schema of :func:`divulge.report.schema`."""
        return dumps(self.as_dict(), indent=2) + "\n"

    def html(self) -> str:
        """One self-contained page: no script, no request, everything from models and files escaped."""
        return str(environment(autoescape=True).get_template("page.html").render(**self._view()))

    def markdown(self) -> str:
        """The same in Markdown, without the pictures."""
        page = str(environment(autoescape=False).get_template("page.md").render(**self._view()))
        return re.sub(r"\n{3,}", "\n\n", page)

    def _repr_html_(self) -> str:
        """What a notebook shows: the verdict and a line for each finding, without the pictures."""
        said = "".join(f"<li>{cell(sentence)}</li>" for sentence in self.verdict[:8])
        rows = [(f.name, f.title, f.severity, f.outcome, text.queries(f.ledger)) for f in ranked(self.findings)]
        found = table(
            f"{self.target.get('name', '')}: {self.headline}", rows, header=("attack", "finding", "severity", "outcome",
            "queries"), most=24, length=160,
        )  # fmt: skip
        return f"{found}<ul>{said}</ul><p>{len(self.skipped)} attacks without a finding.</p>"

    def _view(self) -> dict[str, Any]:
        by_question = {q: [f for f in self.findings if f.question == q] for q in QUESTIONS}
        return {
            "report": self,
            "ranked": ranked(self.findings),
            "questions": [(q, title, by_question[q]) for q, title in QUESTIONS.items() if by_question[q]],
            "missing": [
                (ending.replace(" ", "-"), heading, items)
                for ending, heading in _ENDINGS.items()
                if (items := [item for item in self.skipped if item.ending == ending])
            ],
            "disclaimer": regulation.DISCLAIMER,
            "who": words.ADVERSARIES,
            "words": words.WORDS,
            "style": style(),
        }


def schema() -> dict[str, Any]:
    """The JSON schema of report.json.

    Returns
    -------
    dict
        The schema.

    Examples
    --------
    >>> from divulge.report import schema
    >>> schema()["properties"]["schema_version"]["const"]
    3
    """
    published: dict[str, Any] = json.loads((_TEMPLATES / "schema.json").read_text(encoding="utf-8"))
    return published


def badge(finding: Finding) -> str:
    """One word for a finding: its severity, "not taken", "inconclusive", or "advice"."""
    if finding.is_advice:
        return "advice"
    return finding.severity if finding.state == "taken" else finding.state


def ranked(findings: Sequence[Finding]) -> list[Finding]:
    """What was taken first, the worst before the others; then what is inconclusive or not taken; advice last."""

    def rank(finding: Finding) -> tuple[bool, int, bool]:
        return finding.is_advice, -SEVERITIES.index(finding.severity), finding.state != "inconclusive"

    return sorted(findings, key=rank)


def style() -> str:
    """The style sheet of pages."""
    return (_TEMPLATES / "page.css").read_text(encoding="utf-8")


def environment(*, autoescape: bool) -> Any:
    """The templates, with everything that comes from models and files made safe to print."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    def finalize(value: Any) -> Any:
        return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=autoescape, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, finalize=finalize,
    )  # fmt: skip
    environment.filters["number"] = text.number
    environment.filters["data_uri"] = lambda png: "data:image/png;base64," + base64.b64encode(png).decode("ascii")
    environment.filters["duration"] = text.duration
    environment.filters["measure"] = text.measure
    environment.filters["badge"] = badge
    environment.filters["queries"] = text.queries
    environment.filters["code"] = text.markdown_code
    environment.filters["cell"] = lambda value: text.markdown(text.number(value))
    environment.filters["cssname"] = lambda words: words.replace(" ", "-")
    return environment

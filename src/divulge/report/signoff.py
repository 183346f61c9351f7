"""The sign-off summary: what a privacy officer decides on, on two printed pages.

It shows the worst case of each adversary, not the mean. Measured attacks, proven bounds and declared controls stand in
three columns and are never combined into one number. No training record is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from divulge.core.errors import MissingPackage
from divulge.report import regulation, text, words
from divulge.report.findings import SEVERITIES, Finding

if TYPE_CHECKING:
    from divulge.report.document import Report

_STYLE = Path(__file__).parent / "templates" / "signoff.css"
LONGEST = 160
"""Characters of a name or a sentence that a cell holds; the rest is in the full report."""
CONTROL = 60
"""The same for declared controls, which stand in a narrow column."""
SENTENCE = 260
"""The same for sentences that must be read whole."""
COMMAND = 520
"""The same for the command: five lines."""
_PRICE = "price-of-protection"
_MEMBERS, _LOW = 4, 10
"""Where the share of members found stands in a row of the measured price, and where its interval begins."""
_DECISIONS, _REBUILT = 0, 3
"""Rows of the residual risk: right decisions, and records rebuilt."""


@dataclass(frozen=True)
class Residual:
    """What one attack got without protection, with the recommended one, and what is proven of the latter.

    Parameters
    ----------
    risk : str
        What is measured, in words.
    without, with_protection, proven : str
        Shares; a dash where nothing was measured or is proven.
    """

    risk: str
    without: str
    with_protection: str
    proven: str


def residuals(report: Report) -> tuple[str, list[Residual]]:
    """The residual risk with and without the recommended private training, as the audit measured it.

    Parameters
    ----------
    report : Report
        The report.

    Returns
    -------
    epsilon : str
        The recommended epsilon; empty where no price was measured.
    rows : list of Residual
    """
    study = next((f for f in report.findings if f.name == _PRICE and f.tables), None)
    wanted = None if study is None else study.measures.get("recommended_epsilon_by_theorems")
    if study is None or not isinstance(wanted, int | float):
        return "", []
    rows = {str(row[0]): row for row in study.tables[0].rows}
    plain, chosen = rows.get("none"), rows.get(str(wanted))
    if plain is None or chosen is None:
        return "", []
    rate = study.measures.get("membership_false_positive_rate")
    alarms = f" while {_share(rate)} of others are taken for members" if isinstance(rate, int | float) else ""
    shown = [
        ("right decisions on unseen records, mean over classes", 2, None),
        (f"members found{alarms}", _MEMBERS, 5),
        ("the right record picked among ten", 7, None),
        ("records rebuilt by an insider", 8, 9),
    ]
    return text.number(float(wanted)), [
        Residual(name, _with_interval(plain, at), _with_interval(chosen, at), _share(chosen[limit]) if limit else "–")
        for name, at, limit in shown
    ]


def _with_interval(row: Sequence[object], at: int) -> str:
    """A share; that of members found with its 95 % interval, where the row ends with it."""
    if at != _MEMBERS or len(row) < _LOW + 2 or row[_LOW] is None:
        return _share(row[at])
    return f"{_share(row[at])} ({_share(row[_LOW])} to {_share(row[_LOW + 1])})"


def _share(value: object) -> str:
    return f"{100 * value:.1f} %" if isinstance(value, int | float) else "not measured"


@dataclass(frozen=True)
class WorstCase:
    """The worst that one adversary got, beside what is proven and what is declared.

    Parameters
    ----------
    adversary : str
        Who attacks.
    result : str
        A severity, "not taken" or "inconclusive".
    measured : str
        What the worst attack got, and at what cost.
    record : str
        The record that was hit hardest; empty where none was.
    proven : str
        The bound that holds for this adversary.
    with_protection : str
        What was measured or proven to remain with the protection that the report recommends.
    """

    adversary: str
    result: str
    measured: str
    record: str
    proven: str
    with_protection: str


def worst_cases(report: Report) -> list[WorstCase]:
    """The worst case of each adversary whose attacks have a finding, the worst first.

    Parameters
    ----------
    report : Report
        The report.

    Returns
    -------
    list of WorstCase
    """
    by_adversary: dict[str, list[Finding]] = {}
    for finding in report.findings:
        if finding.adversary is not None:
            by_adversary.setdefault(finding.adversary, []).append(finding)
    cases = [_worst_case(report, adversary, found) for adversary, found in by_adversary.items()]
    order = ["not taken", "inconclusive", *SEVERITIES[1:]]
    cases.sort(key=lambda case: -order.index(case.result))
    first = {case.with_protection: place for place, case in reversed(list(enumerate(cases)))}
    long = [len(case.with_protection) > CONTROL and first[case.with_protection] != i for i, case in enumerate(cases)]
    return [
        replace(case, with_protection="as above") if again else case for case, again in zip(cases, long, strict=True)
    ]


def _worst_case(report: Report, adversary: str, found: list[Finding]) -> WorstCase:
    worst = max(found, key=lambda f: (SEVERITIES.index(f.severity), f.state == "inconclusive"))
    result = worst.severity if worst.state == "taken" else worst.state
    asked = text.asked(worst.ledger) if worst.ledger.total else "no question to the model"
    cost = f" Cost: {asked}, {text.duration(worst.seconds)}."
    records = next((f.worst_record for f in sorted(found, key=_rank) if f.worst_record), "")
    about_records = any(f.question not in ("copy", "span") for f in found)
    proven = report.guarantee if report.guarantee and about_records else "none"
    return WorstCase(
        adversary, result, _short(worst.title, SENTENCE) + "." + cost, _short(records), _short(proven),
        "–" if worst.state != "taken" else _protected(report, worst),
    )  # fmt: skip


def _protected(report: Report, worst: Finding) -> str:
    """What is left with a protection that was tried, in the words of the finding or of the measured price."""
    if worst.remedies:
        return _short(worst.remedies[0], SENTENCE)
    epsilon, rows = residuals(report)
    if worst.adversary != "insider" or not rows or rows[_REBUILT].with_protection == "not measured":
        return "not measured"
    left = rows[_REBUILT]
    return (
        f"Private training at epsilon {epsilon}: {left.with_protection} rebuilt instead of {left.without}, see below."
    )


def _rank(finding: Finding) -> int:
    return -SEVERITIES.index(finding.severity)


def changes(report: Report) -> list[str]:
    """What would change the verdict, in a sentence each.

    Parameters
    ----------
    report : Report
        The report.

    Returns
    -------
    list of str
    """
    from divulge.report.verdict import unfinished

    said = [f"{attack.title}: run it to its end." for attack in unfinished(report.findings, report.skipped)]
    if any(skip.name == _PRICE and skip.ending in ("not tried", "unfinished") for skip in report.skipped):
        said.append("The residual risk with private training was asked for and not measured: give the audit more time.")
    said += list(report.missing)
    epsilon, rows = residuals(report)
    if rows:
        right = rows[_DECISIONS]
        said.append(
            f"Private training at epsilon {epsilon}, with the residual risk above: {right.with_protection} of "
            f"decisions are right instead of {right.without}."
        )
    taken = [f for f in sorted(report.findings, key=_rank) if f.state == "taken" and f.remedies and not f.is_advice]
    against: dict[str, list[str]] = {}
    for finding in taken:
        against.setdefault(finding.remedies[0], []).append(finding.title)
    for remedy, titles in against.items():
        more = f", and {len(titles) - 1} more" if len(titles) > 1 else ""
        said.append(f"{remedy} This is against: {titles[0]}{more}.")
    return [_short(sentence, LONGEST + SENTENCE) for sentence in dict.fromkeys(said)][:6]


def html(report: Report) -> str:
    """The summary as a page for print.

    Parameters
    ----------
    report : Report
        The report.

    Returns
    -------
    str
        HTML without scripts, requests or training records.
    """
    from divulge.report.document import environment

    view: dict[str, Any] = {
        "report": report,
        "name": _short(str(report.target.get("name", "the model")), 80),
        "facts": _facts(report),
        "cases": worst_cases(report),
        "changes": changes(report),
        "scope": _by_source(report.scope),
        "controls": [_short(control, CONTROL) for control in report.controls[:4]],
        "residuals": residuals(report),
        "verdict": [_short(sentence, LONGEST + SENTENCE) for sentence in report.verdict[:6]],
        "who": words.ADVERSARIES,
        "severity": report.state == "taken",
        "explained": _first_rows(report.scope),
        "disclaimer": regulation.DISCLAIMER,
        "style": _STYLE.read_text(encoding="utf-8"),
    }
    page = environment(autoescape=True).get_template("signoff.html")
    return str(page.render(**view, words=words.used_in(page.render(**{**view, "style": ""}, words=()))))


def pdf(report: Report) -> bytes:
    """The summary as a tagged PDF.

    Parameters
    ----------
    report : Report
        The report.

    Returns
    -------
    bytes
        A PDF/UA-1 document.

    Raises
    ------
    MissingPackage
        If WeasyPrint, or the Pango library that it needs, is not installed.
    """
    try:
        from weasyprint import HTML
    except (ImportError, OSError) as error:
        raise MissingPackage(
            "A PDF needs WeasyPrint and the Pango library: pip install 'divulge[pdf]', and the system's package "
            "libpango-1.0-0. A browser prints report.html without them."
        ) from error
    document: bytes = HTML(string=html(report), url_fetcher=_no_request).write_pdf(pdf_variant="pdf/ua-1")
    return document


def _no_request(url: str, *arguments: object, **options: object) -> dict[str, Any]:
    """Refuse every request: the page holds all that it shows."""
    raise ValueError(f"The page asks for {url}.")


def _by_source(rows: list[regulation.ScopeRow]) -> list[tuple[str, list[tuple[regulation.ScopeRow, str]]]]:
    """The rows of each text with the reason of each, which is written out where it stands first."""
    said: dict[str, str] = {}
    first = [said.setdefault(row.why, row.attack.source + row.attack.name) for row in rows]
    why = [
        _short(row.why) if place == row.attack.source + row.attack.name else "As above."
        for row, place in zip(rows, first, strict=True)
    ]
    sources = dict.fromkeys(row.attack.source for row in rows)
    both = list(zip(rows, why, strict=True))
    return [(source, [(row, reason) for row, reason in both if row.attack.source == source]) for source in sources]


def _first_rows(rows: list[regulation.ScopeRow]) -> set[str]:
    """The names of the classes that are the first to have their meaning, which the table explains there."""
    meanings: dict[str, str] = {}
    for row in rows:
        meanings.setdefault(row.attack.plain, row.attack.source + row.attack.name)
    return set(meanings.values())


def _facts(report: Report) -> list[tuple[str, str]]:
    """What was audited, by whom, when and how."""
    target = report.target
    facts = [
        ("model", str(target.get("name", ""))),
        ("kind", str(target.get("kind", ""))),
        ("access granted to the attacker", str(target.get("access_granted", ""))),
        ("training records given", text.number(target.get("training_records"))),
        *((f"digest of the {part}", value) for part, value in report.digests.items()),
        ("private training", str(target.get("differential_privacy", "none declared"))),
        ("date", report.date),
        ("auditor", report.auditor or "not named"),
        ("command", _short(report.command, COMMAND) or "called from Python"),
        ("seed of random choices; time", f"{report.seed}; {text.duration(report.seconds)}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in report.versions.items())),
    ]
    return [(name, value if name == "command" else _short(value)) for name, value in facts if value]


def _short(sentence: str, longest: int = LONGEST) -> str:
    """As much as fits: up to the end of a sentence, if one ends in the second half, and else up to a letter."""
    if len(sentence) <= longest:
        return sentence
    cut = sentence[: longest - 2]
    end = cut.rfind(". ") + 1
    return f"{cut[:end]} …" if 2 * end > longest else cut.rstrip() + "…"

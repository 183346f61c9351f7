"""The report for other programs: SARIF for code scanning, a CycloneDX fragment, a pandas table."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from divulge.core.errors import MissingPackage
from divulge.core.text import clean
from divulge.report.findings import Finding, Severity

if TYPE_CHECKING:
    import pandas

    from divulge.report.document import Report

_LEVELS: dict[Severity, str] = {
    "critical": "error",
    "high": "error",
    "medium": "warning",
    "low": "note",
    "none": "none",
}
_SCORES: dict[Severity, str] = {"critical": "9.5", "high": "8.0", "medium": "5.5", "low": "2.0", "none": "0.0"}
"""GitHub sorts alerts by these: above 9 is critical, from 7 high, from 4 medium."""
_NAMESPACE = uuid.UUID("6f0d2c1e-6b0f-5c53-9f0b-3a2f1d0f8a11")
"""From which serial numbers of fragments are computed: the same report has the same number."""


def sarif(report: Report) -> dict[str, Any]:
    """The report as SARIF 2.1.0: one rule an attack, one result where something was taken or cannot be said.

    Parameters
    ----------
    report : Report
        The report.

    Returns
    -------
    dict
        The SARIF log.
    """
    attacks = [finding for finding in report.findings if not finding.is_advice]
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "divulge",
                        "version": report.versions.get("divulge", "0"),
                        "rules": [_rule(finding) for finding in attacks],
                    }
                },
                "results": [_result(report, f) for f in attacks if f.state != "not taken"],
                "properties": {"state": report.state, "severity": report.severity, "verdict": report.verdict},
            }
        ],
    }


def _rule(finding: Finding) -> dict[str, Any]:
    return {
        "id": finding.name,
        "shortDescription": {"text": clean(finding.title)},
        "fullDescription": {"text": clean(finding.meaning)},
        "help": {"text": clean(" ".join([*finding.remedies, *finding.untested]) or "No remedy was measured.")},
        "properties": {"security-severity": _SCORES[finding.severity], "tags": ["security", "privacy"]},
    }


def _result(report: Report, finding: Finding) -> dict[str, Any]:
    inconclusive = finding.state == "inconclusive"
    return {
        "ruleId": finding.name,
        "kind": "open" if inconclusive else "fail",
        "level": "none" if inconclusive else _LEVELS[finding.severity],
        "message": {"text": clean(f"{finding.title}. {finding.meaning}")},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": _uri(report)},
                    "region": {"startLine": 1},
                }
            }
        ],
        "properties": {"adversary": finding.adversary, "queries": finding.ledger.total},
    }


def _uri(report: Report) -> str:
    """The model's name as a relative address; code scanning shows a file of that name."""
    from urllib.parse import quote

    return quote(clean(str(report.target.get("name", "model"))), safe="/._-") or "model"


def cyclonedx(report: Report) -> dict[str, Any]:
    """The report as a CycloneDX 1.6 fragment: the model as a component, with what the audit found as properties.

    Parameters
    ----------
    report : Report
        The report.

    Returns
    -------
    dict
        A bill of materials with one component, to merge into another.
    """
    name = clean(str(report.target.get("name", "model")))
    component: dict[str, Any] = {
        "type": "machine-learning-model",
        "bom-ref": f"model-{report.digests.get('model', '')[:16] or 'unknown'}",
        "name": name,
        "modelCard": {
            "considerations": {
                "technicalLimitations": [clean(sentence) for sentence in report.verdict],
                "ethicalConsiderations": [
                    {"name": clean(f.title), "mitigationStrategy": clean(" ".join(f.remedies) or "none measured")}
                    for f in report.findings
                    if f.state == "taken" and not f.is_advice
                ],
            }
        },
        "properties": [
            {"name": "divulge:state", "value": report.state},
            {"name": "divulge:severity", "value": report.severity},
            *({"name": f"divulge:scope:{row.attack.name}", "value": row.coverage} for row in report.scope),
        ],
    }
    if "model" in report.digests:
        component["properties"].append({"name": "divulge:digest:model", "value": report.digests["model"]})
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, report.json())}",
        "version": 1,
        "components": [component],
    }


def frame(report: Report) -> pandas.DataFrame:
    """The findings as a pandas table; see :meth:`Report.to_frame`."""
    try:
        import pandas
    except ImportError as error:
        raise MissingPackage("A table of findings needs pandas: pip install 'divulge[tables]'.") from error
    columns = ["name", "question", "adversary", "title", "outcome", "state", "severity"]
    rows = [
        {
            **{column: getattr(finding, column) for column in columns},
            "queries": finding.ledger.total,
            "seconds": finding.seconds,
            **{f"measures.{name}": value for name, value in finding.measures.items()},
        }
        for finding in report.findings
    ]
    return pandas.DataFrame(rows) if rows else pandas.DataFrame(columns=[*columns, "queries", "seconds"])

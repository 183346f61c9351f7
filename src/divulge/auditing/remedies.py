"""What stops each finding: only what this audit measured against the same attack, or what a theorem covers.

A guard is offered against an attack if this audit re-ran that attack behind the guard, and the attack had a copy
without the guard and none behind it. Private training is offered against a reconstruction if the theorem covers the
channel that leaked: all of the training, and nothing that was fitted to records outside of it.
"""

from __future__ import annotations

from dataclasses import replace

from divulge.auditing.sentences import copies, protections
from divulge.report.findings import Finding

GUARDS, PRIVATE_TRAINING = "protection-at-the-endpoint", "protection-needed"
COPIES = 0.9
"""Agreement from which an attack behind a guard counts as a copy."""
_RERUN = {
    "copy-from-values": "exact copy from values",
    "copy-from-labels": "exact copy from labels",
    "copy-by-learning": "learned copy from values",
    "copy-by-learning-from-labels": "learned copy from labels",
}
"""The attacks that the study of guards runs again, by the name of their probe."""


def with_protection(findings: list[Finding]) -> list[Finding]:
    """The findings; to those of attacks that took something, what was shown to stop them is added."""
    advice = {finding.name: finding for finding in findings if finding.question == "protection"}
    return [_completed(finding, findings, advice) for finding in findings]


def _completed(finding: Finding, findings: list[Finding], advice: dict[str, Finding]) -> Finding:
    if finding.severity != "none":
        return replace(finding, remedies=(*finding.remedies, *_against(finding, advice)))
    if finding.name == PRIVATE_TRAINING and "chance_at_most" in finding.measures:
        on_records = [f for f in findings if f.question in ("training-data", "informed")]
        tried = any(f.state != "inconclusive" for f in on_records)
        taken = any(f.state == "taken" for f in on_records)
        beside = protections.private_beside(float(finding.measures["accounted_epsilon"]), taken, tried)
        return replace(finding, notes=(*finding.notes, beside))
    return finding


def _against(finding: Finding, advice: dict[str, Finding]) -> tuple[str, ...]:
    guards, noise = advice.get(GUARDS), advice.get(PRIVATE_TRAINING)
    if finding.question == "copy" and guards is not None and finding.name in _RERUN:
        return _guards_against(_RERUN[finding.name], guards)
    covered = finding.question in ("training-data", "informed") and not finding.measures.get("leaks_through")
    return noise.remedies if covered and noise is not None else ()


def _guards_against(attack: str, study: Finding) -> tuple[str, ...]:
    """The guards behind which this attack had no copy, although it had one without them, with their price."""
    rows = [row for table in study.tables[:1] for row in table.rows]
    scores = {(row[0], row[3]): float(row[4]) for row in rows}
    before = scores.get(("none", attack), 0.0)
    said = []
    for guard, changed, _, name, score, asked, _ in rows:
        if guard == "none" or name != attack or before < COPIES or float(score) >= COPIES:
            continue
        others = [other for (front, other), reached in scores.items() if front == guard and reached >= COPIES]
        said.append(
            protections.guard_remedy(
                guard, before, float(score), int(asked), float(changed), copies.still_taken(others)
            )
        )
    return tuple(said)

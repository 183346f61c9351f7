"""What stops each finding: the protections that this audit measured or proved, with their price, beside each attack."""

from __future__ import annotations

from dataclasses import replace

from divulge.auditing.finding import REMOTE, Finding

UNMEASURED = ("Train with differential privacy; divulge bound says how much noise is enough.",)


def with_protection(findings: list[Finding]) -> list[Finding]:
    """The findings, those of attacks that got something with what the findings on protection say against them."""
    said = {finding.name: finding for finding in findings if finding.question == "protection"}
    return [
        replace(finding, remedies=(*finding.remedies, *_against(finding, said)))
        if finding.severity != "none"
        else finding
        for finding in findings
    ]


def _against(finding: Finding, said: dict[str, Finding]) -> tuple[str, ...]:
    guards, noise = said.get("protection-at-the-endpoint"), said.get("protection-needed")
    if finding.question == "copy" and finding.adversary in REMOTE and guards is not None:
        return guards.remedies
    if finding.question in ("training-data", "informed"):
        return UNMEASURED if noise is None else noise.remedies
    return ()

"""Every claim of a report, checked by computations that share no code with the audit."""

from __future__ import annotations

from experiments.claims.checks import (
    attributes,
    contents,
    copies,
    kinds,
    last_layers,
    membership,
    protections,
    records,
    secrecy,
    spans,
    verdicts,
)
from experiments.claims.checks.checked import Checked, wrong
from experiments.claims.recording import Audited
from experiments.claims.subject import Subject


def check(audited: Audited, subject: Subject, *, rerun: bool = True) -> list[Checked]:
    """Every claim of a report; ``rerun`` also repeats attacks behind the guards that the report offers."""
    return [
        *kinds.check(audited, subject),
        *copies.check(audited, subject),
        *last_layers.check(audited, subject),
        *spans.check(audited, subject),
        *records.check(audited, subject),
        *membership.check(audited, subject),
        *attributes.check(audited, subject),
        *contents.check(audited, subject),
        *protections.check(audited, subject, rerun=rerun),
        *verdicts.check(audited, subject),
        *secrecy.check(audited, subject),
    ]


__all__ = ["Checked", "check", "wrong"]

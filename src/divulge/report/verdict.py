"""What an audit says as a whole: taken, not taken by the attacks that ran to their end, or inconclusive.

A gate in a build asks the same with a threshold. It is met only if no finding is as severe as the threshold, every
attack whose finding could be ran to its end, and every attack that the gate requires ran to its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from divulge.report.findings import (
    SEVERITIES,
    STOPPED_SHORT,
    Adversary,
    Finding,
    Severity,
    Skipped,
    State,
    at_least,
    worst,
)
from divulge.report.text import listed

_WHO: dict[Adversary, str] = {
    "label client": "Anyone who sees its decisions",
    "prediction client": "Anyone who may ask for predictions",
    "explanation client": "Anyone who may ask for explanations",
    "holder of the weights": "Whoever holds the weights",
    "insider": "An insider who knows all other records",
}
LAST_LAYER = "last-layer"
"""The attack that takes a part of the model and no copy of it."""
_WHAT: dict[str, tuple[str, str]] = {
    "contents": ("read training records in the file", "read sums, extremes or categories of the training records"),
    "copy": ("copy the model", "copy much of the model"),
    LAST_LAYER: ("compute its last layer", "compute its last layer"),
    "span": ("find input that it ignores", "find some input that it ignores"),
    "training-data": ("compute training records", "compute some training records, or parts of them"),
    "informed": ("compute the missing one", "sometimes compute the missing one"),
    "membership": ("tell who was in the training set", "tell who was in the training set a little better than chance"),
    "attributes": ("infer what a training record did not say", "infer some of what a training record did not say"),
}
"""What was taken, and what was taken in part."""


@dataclass(frozen=True)
class Gate:
    """Whether an audit passes a gate in a build.

    Parameters
    ----------
    result : {"met", "not met", "inconclusive"}
        Whether it passes.
    reason : str
        Why, in one sentence.

    Examples
    --------
    >>> from divulge.report import Gate
    >>> Gate("met", "No finding is as severe as high.").result
    'met'
    """

    result: Literal["met", "not met", "inconclusive"]
    reason: str


def completed(findings: Sequence[Finding], skipped: Sequence[Skipped]) -> list[str]:
    """The titles of the attacks that ran to their end."""
    ran = [f.title for f in findings if not f.is_advice and f.state != "inconclusive"]
    return ran + [s.title for s in skipped if s.ending == "failed" and s.at_stake != "none"]


def unfinished(findings: Sequence[Finding], skipped: Sequence[Skipped]) -> list[Skipped]:
    """The attacks that fit and did not run to their end."""
    stopped = [
        Skipped(f.name, f.title, f.meaning, "unfinished", "critical") for f in findings if f.outcome == "inconclusive"
    ]
    return stopped + [s for s in skipped if s.state == "inconclusive" and s.at_stake != "none"]


def state_of(findings: Sequence[Finding], skipped: Sequence[Skipped]) -> State:
    """The state of the whole audit."""
    if worst(findings) != "none":
        return "taken"
    if unfinished(findings, skipped) or not completed(findings, skipped):
        return "inconclusive"
    return "not taken"


def sentences(
    findings: Sequence[Finding], skipped: Sequence[Skipped], *, missing: Sequence[str] = (), target_failed: bool = False
) -> list[str]:
    """Who could take what, the worst first; or that nothing was taken; or that nothing can be said, and why."""
    state = state_of(findings, skipped)
    if state == "inconclusive":
        return _inconclusive(findings, skipped, missing, target_failed=target_failed)
    left = unfinished(findings, skipped)
    if state == "not taken":
        return [_not_taken(completed(findings, skipped))]
    rest = [f"{_attacks(len(left))} came to no conclusion: {_titles(left)}."] if left else []
    return _taken(findings) + rest


def gate(
    findings: Sequence[Finding], skipped: Sequence[Skipped], *, fail_on: Severity | None, require: Sequence[str] = ()
) -> Gate:
    """Whether the audit passes: nothing as severe as ``fail_on``, and everything ran that could have found it."""
    reached = [f for f in findings if fail_on is not None and at_least(f.severity, fail_on)]
    if reached:
        return Gate("not met", f"{worst(reached)} is at least as severe as {fail_on}: {reached[0].title}.")
    open_ones = [s for s in unfinished(findings, skipped) if fail_on is not None and at_least(s.at_stake, fail_on)]
    short = [f for f in findings if fail_on is not None and STOPPED_SHORT in f.measures and at_least("high", fail_on)]
    if short and not open_ones:
        wanted = short[0].measures[STOPPED_SHORT]
        return Gate(
            "inconclusive",
            f"{short[0].title}: that was too short to say. {wanted} queries have to be tried; give more time, a larger "
            "budget or more inputs.",
        )
    if open_ones:
        return Gate("inconclusive", f"{_attacks(len(open_ones))} must run to the end first: {_titles(open_ones)}.")
    done = {f.name for f in findings if f.state != "inconclusive"} | {s.name for s in skipped if s.ending == "failed"}
    lacking = [name for name in require if name not in done]
    if lacking:
        return Gate("inconclusive", f"Required, and did not run to the end: {listed(lacking)}.")
    if fail_on is not None and not completed(findings, skipped):
        return Gate("inconclusive", "No attack ran to its end.")
    return Gate("met", f"No finding is as severe as {fail_on}." if fail_on is not None else "Everything required ran.")


def _taken(findings: Sequence[Finding]) -> list[str]:
    ranked = sorted(findings, key=lambda finding: -SEVERITIES.index(finding.severity))
    taken: dict[str, dict[str, bool]] = {}  # for each adversary, whether a question was answered in part only
    for finding in ranked:
        if finding.severity != "none" and finding.adversary is not None:
            own = taken.setdefault(_WHO[finding.adversary], {})
            what = LAST_LAYER if finding.name == LAST_LAYER else finding.question
            own[what] = own.get(what, True) and finding.outcome == "partly"
    return [
        f"{who} can {' and '.join(_WHAT[question][partly] for question, partly in own.items())}."
        for who, own in taken.items()
    ]


def _not_taken(ran: list[str]) -> str:
    if len(ran) == 1:
        return f"Nothing was taken by the one attack that ran to its end ({ran[0]})."
    return f"Nothing was taken by the {len(ran):,} attacks that ran to their end."


def _inconclusive(
    findings: Sequence[Finding], skipped: Sequence[Skipped], missing: Sequence[str], *, target_failed: bool
) -> list[str]:
    """That nothing can be said, why, and what to give the next audit."""
    ran, left = completed(findings, skipped), unfinished(findings, skipped)
    start = (
        "Inconclusive: this audit says nothing about the model" if not ran else "Inconclusive: nothing was taken yet"
    )
    if target_failed:
        why = ", because the target stopped answering."
    elif left:
        why = f", because {_attacks(len(left))} came to no conclusion: {_titles(left)}."
    else:
        why = ", because no attack fits it with the access and the data that were given."
    more = ["Give the audit more time."] if left and not target_failed else []
    return [start + why, *more, *missing]


def _attacks(count: int) -> str:
    return f"{count:,} attack" + ("s" if count != 1 else "")


def _titles(attacks: Sequence[Skipped]) -> str:
    return listed([attack.title for attack in attacks])

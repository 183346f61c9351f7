"""The whole report: severities, the state of the verdict, the gate and its exit code, the time and the counts."""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.claims.checks.checked import Checked
from experiments.claims.recording import Audited
from experiments.claims.subject import Subject, matrix

ORDER = ("none", "low", "medium", "high", "critical")
REMOTE = ("label client", "prediction client", "explanation client")
RULE = {
    ("copy", True): ("high", "medium"), ("copy", False): ("high", "medium"),
    ("span", True): ("medium", "low"), ("span", False): ("medium", "low"),
    ("training-data", True): ("critical", "high"), ("training-data", False): ("high", "medium"),
    ("informed", True): ("critical", "high"), ("informed", False): ("high", "medium"),
    ("contents", True): ("critical", "medium"), ("contents", False): ("critical", "medium"),
    ("membership", True): ("high", "low"), ("membership", False): ("medium", "low"),
    ("attributes", True): ("high", "low"), ("attributes", False): ("medium", "low"),
}  # fmt: skip
"""docs/severity.md: by question and whether the adversary is remote, the severity of what is taken, and of a part."""
WHAT = {
    "copy": "copy", "span": "find", "training-data": "compute training records|compute some training records",
    "informed": "compute the missing one|sometimes compute the missing one",
    "contents": "read", "membership": "tell who was in the training set", "attributes": "infer",
}  # fmt: skip
OVER = 0.15
"""Part of the time that an audit may exceed it by."""


def check(audited: Audited, subject: Subject) -> list[Checked]:
    """Every claim of the report as a whole."""
    report = audited.report
    claims = [_severity(found) for found in report["findings"]]
    claims += [_state(report), _worst(report), *_sentences(report), *_endings(report)]
    claims += [_time(audited), *_faults(report), *_warning(report, subject), *_facts(report, subject)]
    return claims


def expected_severity(found: dict[str, Any]) -> str:
    """The severity of a finding by the written rule."""
    if found["adversary"] is None or found["outcome"] in ("failed", "inconclusive"):
        return "none"
    whole, part = RULE[found["question"], found["adversary"] in REMOTE]
    return whole if found["outcome"] == "succeeded" else part


def _severity(found: dict[str, Any]) -> Checked:
    expected = expected_severity(found)
    return Checked(
        found["name"], f"severity: {found['severity']}", f"by the rule: {expected}", found["severity"] == expected
    )


def attacks(report: dict[str, Any]) -> dict[str, str]:
    """The state of each attack by what came of it; advice is no attack."""
    states = {}
    for found in report["findings"]:
        if found["adversary"] is not None:
            taken = "taken" if found["severity"] != "none" else "not taken"
            states[found["name"]] = "inconclusive" if found["outcome"] == "inconclusive" else taken
    for skip in report["skipped"]:
        if skip["ending"] != "does not fit" and not skip["name"].startswith("protection"):
            states[skip["name"]] = "not taken" if skip["ending"] == "failed" else "inconclusive"
    return states


def expected_state(report: dict[str, Any]) -> str:
    """Taken if anything was; not taken only if every attack that fits ran to its end, and one did."""
    states = set(attacks(report).values())
    if "taken" in states:
        return "taken"
    return "inconclusive" if "inconclusive" in states or not states else "not taken"


def _state(report: dict[str, Any]) -> Checked:
    expected = expected_state(report)
    return Checked("verdict", f"state: {report['state']}", f"by what ran: {expected}", report["state"] == expected)


def _worst(report: dict[str, Any]) -> Checked:
    worst = max((found["severity"] for found in report["findings"]), key=ORDER.index, default="none")
    return Checked("verdict", f"severity: {report['severity']}", f"worst finding: {worst}", report["severity"] == worst)


def _sentences(report: dict[str, Any]) -> list[Checked]:
    """A sentence "X can ..." stands for a finding that took something, and each such finding has one."""
    said = " ".join(report["verdict"])
    taken = {found["question"] for found in report["findings"] if found["severity"] != "none"}
    claims = []
    for question, words in WHAT.items():
        stands = any(f" can {word}" in said or f" and {word}" in said for word in words.split("|"))
        claims.append(Checked("verdict", f"says that {question} was taken: {stands}", f"found: {question in taken}",
                              stands == (question in taken)))  # fmt: skip
    if report["state"] == "inconclusive":
        claims.append(
            Checked("verdict", report["verdict"][0], "inconclusive", report["verdict"][0].startswith("Inconclusive"))
        )
    return claims


def _endings(report: dict[str, Any]) -> list[Checked]:
    """Whether the audit finished, and which attacks did not, as a program reads it."""
    states = attacks(report)
    open_ones = sorted(name for name, state in states.items() if state == "inconclusive")
    listed = sorted(report["unfinished"])
    return [Checked("verdict", f"unfinished: {listed}", f"by what ran: {open_ones}", listed == open_ones)]


def _time(audited: Audited) -> Checked:
    return Checked(
        "time",
        f"at most {audited.allowed:g} s",
        f"{audited.seconds:.1f} s",
        audited.seconds <= (1 + OVER) * audited.allowed,
    )


def _faults(report: dict[str, Any]) -> list[Checked]:
    """An attack that breaks down says nothing about the model; that is a fault of the audit."""
    return [Checked(skip["name"], skip["reason"], "the attack broke down", False)
            for skip in report["skipped"] if "fault of its own" in skip["reason"]]  # fmt: skip


def _warning(report: dict[str, Any], subject: Subject) -> list[Checked]:
    """A warning that the data does not fit stands where the model predicts it no better than a constant."""
    said = "warning" in report["target"]
    if subject.table.training is None:
        return []
    X, y = subject.table.training
    if hasattr(X, "iloc") or len(set(np.asarray(y).tolist())) < 2:
        return []
    X, y = matrix(X)[:1000], np.asarray(y)[:1000]
    if subject.decide is None:
        error = float(np.square(subject.scores(X)[0][:, 0] - y).mean())
        poor = error >= float(y.var())
    else:
        poor = float((subject.decide(X) == y).mean()) <= float(np.unique(y, return_counts=True)[1].max()) / len(y)
    return [
        Checked(
            "target", f"warns that the data does not fit: {said}", f"no better than a constant: {poor}", said == poor
        )
    ]


def _facts(report: dict[str, Any], subject: Subject) -> list[Checked]:
    records = report["target"].get("training_records")
    true = None if subject.table.training is None else len(subject.table.training.y)
    return [Checked("target", f"training_records: {records}", str(true), records == true)]


# -- gates ------------------------------------------------------------------------------------------------------------


def expected_code(
    report: dict[str, Any], *, fail_on: str | None, require: tuple[str, ...], stake: dict[str, str]
) -> int:
    """The exit code of a gate, from what the report lists: 5 if it is not met, 6 if that is open, otherwise 0.

    ``stake`` says how severe the finding of an attack would be.
    """
    if fail_on is not None and ORDER.index(report["severity"]) >= ORDER.index(fail_on):
        return 5
    states = attacks(report)
    for name, state in states.items():
        threatens = fail_on is not None and ORDER.index(stake[name]) >= ORDER.index(fail_on)
        if state == "inconclusive" and threatens:
            return 6
    ran = {name for name, state in states.items() if state != "inconclusive"}
    ran |= {found["name"] for found in report["findings"] if found["outcome"] != "inconclusive"}
    if any(name not in ran for name in require):
        return 6
    return 6 if fail_on is not None and not any(state != "inconclusive" for state in states.values()) else 0

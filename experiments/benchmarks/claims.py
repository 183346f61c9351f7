"""Is anything that an audit claims false? Some seventy models that were not made for it, every claim checked.

Each model goes through ``divulge.audit``, some through the command line. What the report says of copies, directions,
records, kinds, protections, severities, time and exit codes is compared with computations on held-out rows that share
no code with the audit (``experiments.claims``). ``python -m experiments claims --only SVC`` runs the models whose name
holds a word; all of them take half an hour on one core.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from experiments.claims import checks, command_line
from experiments.claims.command_line import Gate
from experiments.claims.recording import audited
from experiments.claims.subject import Subject
from experiments.claims.zoo import MODELS
from experiments.plan import Plan

SECONDS = 15.0
PATIENT = ("copy-from-labels", "membership", "attribute-inference")
"""Attacks that a short audit hardly reaches: a second audit of every model runs them first."""
TIMES = (1.0, 5.0, 20.0, 60.0)
TIMED = ("SVC, cancer", "forest, cancer", "perceptron of 16, cancer", "CNN with BatchNorm and SiLU")
"""Seconds that audits of these models are given, to see how well they keep to them."""
GATES = {
    "ridge, diabetes": Gate(fail_on="high"),
    "tree, iris": Gate(fail_on="critical", require=("protection-needed",)),
    "SVC, cancer": Gate(fail_on="low", seconds=1.0),
    "neighbours, cancer": Gate(require=("copy-by-learning",)),
    "softmax regression, wine": Gate(seconds=1.0),
}
"""Models that also go through the command line, with a gate."""


def judged(claims: list[checks.Checked], **facts: Any) -> dict[str, Any]:
    """How many claims were checked, and those that are wrong."""
    false = checks.wrong(claims)
    return {**facts, "claims": len(claims), "wrong": len(false), "false_claims": [one.as_dict() for one in false]}


def audit_of(make: Callable[[], Subject], seed: int) -> dict[str, Any]:
    """One model through two audits: in the order of the audit, and with the attacks first that come late in it."""
    subject = make()
    both = [audited(subject, time_allowed=SECONDS, seed=seed + place, require=first)
            for place, first in enumerate(((), PATIENT))]  # fmt: skip
    report = both[0].report
    ended = {found["name"] for done in both for found in done.report["findings"] if found["outcome"] != "inconclusive"}
    return judged(
        [claim for done in both for claim in checks.check(done, subject)], kind=report["target"]["kind"],
        state=report["state"], seconds=[done.seconds for done in both], findings=sorted(ended),
    )  # fmt: skip


def time_of(make: Callable[[], Subject], given: float, seed: int) -> dict[str, Any]:
    """How long an audit takes that is given so many seconds, by the clock on the wall and of the processor."""
    subject, computed = make(), time.process_time()
    done = audited(subject, time_allowed=given, seed=seed)
    return {"given": given, "seconds": done.seconds, "share": done.seconds / given,
            "processor_seconds": time.process_time() - computed}  # fmt: skip


def command_of(make: Callable[[], Subject], gate: Gate) -> dict[str, Any]:
    """One model through the command line."""
    with tempfile.TemporaryDirectory() as folder:
        return judged(command_line.check(make(), gate, Path(folder)))


def run(plan: Plan) -> dict[str, Any]:
    """Every model through the audit, some through the command line."""
    torch.set_num_threads(1)
    parts: dict[str, Callable[[], Any]] = {name: partial(audit_of, make, plan.seed) for name, make in MODELS.items()}
    parts |= {f"command line: {name}": partial(command_of, MODELS[name], gate) for name, gate in GATES.items()}
    parts |= {f"time: {name}, {given:g} s": partial(time_of, MODELS[name], given, plan.seed)
              for name in TIMED for given in TIMES}  # fmt: skip
    return plan.measure("claims", parts)

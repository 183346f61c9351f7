"""Can they tell that somebody was in it from a copy? Membership on a copy of the endpoint, beside the endpoint itself.

The copy is the exact one where an earlier probe has made it, and a learned one otherwise. A learned copy asks about one
half of the unseen records; the other half are the non-members.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

from divulge.auditing import commands
from divulge.auditing.probes import membership as endpoint
from divulge.auditing.probes.probe import Probe, deadline
from divulge.auditing.sentences import members as sentences
from divulge.auditing.severity import severity_of
from divulge.auditing.students import answering, learned, plan_for
from divulge.auditing.target import Target
from divulge.report.findings import ADVERSARIES, Finding, Table

if TYPE_CHECKING:
    from divulge.membership.copies import CopyMembership

NAME = "membership-on-a-copy"
MOST = 2_000
"""Rows that a copy is learned from."""
FEWEST = 200
"""Unseen records that it takes: half to learn a copy, half to compare with."""


def _obstacle(target: Target) -> str:
    if not target.grants("value"):
        return f"the access granted ({target.access}) does not include values to make a copy of."
    reason = endpoint.PROBES[0].obstacle(target)
    if reason:
        return reason
    assert target.unseen is not None
    if len(target.unseen) < FEWEST:
        return f"it takes at least {FEWEST} unseen records: half to learn a copy, half to compare with."
    return ""


def _run(target: Target, seconds: float) -> Finding:
    from divulge import membership

    started = time.perf_counter()
    inside, (U, v) = endpoint.sides_of(target)
    order = torch.randperm(len(U), generator=torch.Generator().manual_seed(target.seed))
    asked_about, others = order[: len(U) // 2], order[len(U) // 2 :]
    with deadline(seconds):
        view = target.oracle("value")
        before = view.ledger.snapshot()
        copy, how = _copy(target, view, U[asked_about])
        members = endpoint.sample_of(target, *inside, "value")
        non_members = endpoint.sample_of(target, U[others], v[others], "value")
        risk = membership.on_copy(view, copy, members, non_members, seed=target.seed)
    return _finding(target, risk, how, view.ledger.snapshot() - before, started)


def _copy(target: Target, view: Any, rows: torch.Tensor) -> tuple[Any, str]:
    """The copy, and what it is called."""
    for access in ("value", "gradient"):
        made = target.memo.get(f"exact copy from {access}s")
        if made is not None and made.exact and target.grants(access):
            return made.model, "exact"
    most = min(MOST, len(rows)) if target.options.budget is None else min(MOST, len(rows), target.options.budget // 2)
    plan = plan_for(target, rows, "value")
    return learned(plan, answering(view, "value"), "value", rows, most, target.seed), "learned"


def _finding(target: Target, risk: CopyMembership, how: str, ledger: Any, started: float) -> Finding:
    outcome = endpoint.outcome_of(risk.copy)
    adversary = ADVERSARIES["value"]
    rates = [one.rates()[0.01] for one in (risk.endpoint, risk.copy)]
    rows = tuple(
        (name, one.auc, *one.auc_interval, None if rate is None else rate.value)
        for name, one, rate in zip(("endpoint", f"{how} copy"), (risk.endpoint, risk.copy), rates, strict=True)
    )
    return Finding(
        name=NAME,
        question="membership",
        adversary=adversary,
        title=sentences.copy_title(outcome, how, risk.copy.auc, risk.endpoint.auc),
        outcome=outcome,
        severity=severity_of("membership", adversary, outcome),
        meaning=sentences.copy_meaning(outcome),
        certainty=sentences.copy_certainty(len(risk.copy.scores), len(risk.copy.non_member_scores), risk.difference),
        measures={
            "method": risk.method,
            "auc_on_the_copy": risk.copy.auc,
            "auc_at_the_endpoint": risk.endpoint.auc,
            "rank_correlation_of_scores": risk.correlation,
            "most_exposed_in_common": risk.shared,
        },
        ledger=ledger,
        seconds=time.perf_counter() - started,
        seed=target.seed,
        untested=(sentences.regularise(),) if outcome != "failed" else (),
        command=commands.audit(target, access="value"),
        tables=(Table("Membership at the endpoint and on the copy",
                      ("where", "AUC", "low", "high", "found at 1 % false positives"), rows),),
        notes=risk.notes,
    )  # fmt: skip


def _seconds(target: Target) -> float:
    return 20.0


PROBES = [Probe(NAME, "Membership on a copy", _obstacle, _run, _seconds, at_stake="medium")]

"""Can they tell that somebody was in it? Membership inference, with reference models where the time allows them."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from divulge.auditing import commands
from divulge.auditing.exposed import remember
from divulge.auditing.probes import membership_limits
from divulge.auditing.probes.probe import Probe, TimeUp, deadline
from divulge.auditing.sentences import members as sentences
from divulge.auditing.severity import severity_of
from divulge.auditing.target import Target
from divulge.core.errors import InvalidInput
from divulge.core.plots import png
from divulge.report.findings import ADVERSARIES, Finding, Outcome, Picture, Table

if TYPE_CHECKING:
    from divulge.membership import Membership

NAME = "membership"
MOST = 2_000
"""Records of each side that an audit scores; with labels alone a quarter, because each is asked 25 times."""
FEWEST = 30
SHADOWS = 4
REFERENCE_SHARE = 0.8
"""Part of the time that reference models may take."""
FIRST_ANSWER = 4.0
"""Seconds of the attack without reference models."""
SAMPLE = 256
"""Rows that show how long training takes."""
CLEAR_AUC, CLEAR_RATE = 0.6, 0.05
"""Exposure is clear from this AUC on, or from this rate at 1 % false positives: five times chance."""


def _obstacle(target: Target) -> str:
    if target.inputs is None or target.labels is None:
        return "the training data was not given; membership is judged by it."
    if target.unseen is None or target.unseen_labels is None:
        return (
            "records that the model never saw, with labels of the same classes, were not given; members are compared "
            "with them."
        )
    if min(len(target.inputs), len(target.unseen)) < FEWEST:
        return f"it takes at least {FEWEST} training records and as many that the model never saw."
    if target.access == "label" and target.labels.is_floating_point():
        return "labels alone say nothing about a regression."
    return ""


def _run(target: Target, seconds: float) -> Finding:
    from divulge import membership

    started = time.perf_counter()
    access = "value" if target.grants("value") else "label"
    inside, outside = (sample_of(target, *side, access) for side in sides_of(target))
    risk = membership.attack(target.oracle(access), inside, outside, seed=target.seed)  # type: ignore[arg-type]
    train, notes = _training(target), []
    if train is not None and access == "value":
        left = REFERENCE_SHARE * (seconds - (time.perf_counter() - started))
        first, enough = risk, False
        with suppress(TimeUp), deadline(left):
            enough = _reference_seconds(target) <= left
            if enough:
                risk = membership.attack(
                    target.oracle("value"), inside, outside, train=train, shadows=SHADOWS, seed=target.seed,
                    check_distribution=False, workers=target.workers,
                )  # fmt: skip
        if not enough:
            seconds = 0.0  # too short for what takes training: other attacks have a use for it
        if risk is first:
            notes.append(sentences.cheaper(first.method))
        return _finding(target, risk, first, notes, started, seconds)
    return _finding(target, risk, risk, notes, started, seconds)


def _training(target: Target) -> Any:
    """How models like this one are trained: the recipe, or the estimator if a fresh one can be made of it.

    That of CatBoost's own file cannot: it keeps parameters that its class does not take.
    """
    from sklearn.base import clone

    if target.recipe is not None or target.estimator is None:
        return target.recipe
    try:
        clone(target.estimator)
    except Exception:  # of the estimator's own code
        return None
    return target.estimator


def sides_of(target: Target) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Members and non-members, with their labels."""
    assert target.inputs is not None
    assert target.labels is not None
    assert target.unseen is not None
    assert target.unseen_labels is not None
    return (target.inputs, target.labels), (target.unseen, target.unseen_labels)


def sample_of(target: Target, X: Tensor, y: Tensor, access: str) -> tuple[Tensor, Tensor]:
    """As many records of a side as an audit scores."""
    kept = _kept(target, len(X), access)
    return X[kept], y[kept]


def _kept(target: Target, records: int, access: str) -> Tensor:
    most = MOST if access == "value" else MOST // 4
    if target.options.budget is not None:
        most = max(FEWEST, min(most, target.options.budget // (2 if access == "value" else 50)))
    order = torch.randperm(records, generator=torch.Generator().manual_seed(target.seed))
    return order[:most].sort().values


def outcome_of(risk: Membership) -> Outcome:
    """Clear exposure succeeds, exposure that is only certain is partial."""
    if not risk.success:
        return "failed"
    rate = risk.rates()[0.01]
    surest = max(risk.auc_interval[0], 0.0 if risk.exposed_class is None else _of_class(risk)["auc_at_least"])
    clear = surest >= CLEAR_AUC or (rate is not None and rate.low >= CLEAR_RATE)
    return "succeeded" if clear else "partly"


def _of_class(risk: Membership) -> dict[str, Any]:
    """The most exposed class's own entry."""
    assert risk.exposed_class is not None
    return risk.by_class[risk.exposed_class]


def _class_name(target: Target, place: str) -> str:
    """A class as the estimator calls it: attacks know the number of its output."""
    classes = getattr(target.estimator, "classes_", None)
    return place if classes is None or not place.isdigit() else str(classes[int(place)])


def _title(target: Target, outcome: Outcome, risk: Membership) -> str:
    """The title; one class is named where its members are told apart and members as a whole are not."""
    if outcome == "failed" or risk.exposed_class is None or risk.auc_interval[0] > 0.5:
        return sentences.membership_title(outcome, risk.auc)
    named = _class_name(target, risk.exposed_class)
    return sentences.membership_title(outcome, risk.auc, (named, _of_class(risk)["auc"][0]))


def _finding(
    target: Target, risk: Membership, checked: Membership, notes: list[str], started: float, seconds: float
) -> Finding:
    from divulge.membership.attack import STRONGER
    from divulge.membership.figure import roc_figure

    assert target.inputs is not None
    access = "value" if target.grants("value") else "label"
    remember(target, _kept(target, len(target.inputs), access), risk.scores)
    outcome = outcome_of(risk) if checked.distribution[1] <= 0.5 else outcome_of(checked)
    adversary = ADVERSARIES["value" if target.grants("value") else "label"]
    guarantee = None if target.guarantee is None else target.guarantee.accounted_epsilon
    if guarantee is not None:
        notes.append(sentences.claimed(guarantee, risk.epsilon))
    beside, more = membership_limits.beside(target, 0.9 * (seconds - (time.perf_counter() - started)))
    notes += more
    rates = {level: rate for level, rate in risk.rates().items() if rate is not None}
    return Finding(
        name=NAME,
        question="membership",
        adversary=adversary,
        title=_title(target, outcome, risk),
        outcome=outcome,
        severity=severity_of("membership", adversary, outcome),
        meaning=sentences.membership_meaning(outcome, rows_differ=outcome_of(risk) != outcome),
        certainty=sentences.membership_certainty(
            len(risk.scores), len(risk.non_member_scores), risk.control[0], checked.distribution[0]
        ),
        measures={
            "method": risk.method,
            "auc": risk.auc,
            **{f"found_at_{level:g}_false_positives": rate.value for level, rate in rates.items()},
            "epsilon_at_least": risk.epsilon,
            **beside,
        },
        ledger=risk.ledger if risk is checked else risk.ledger + checked.ledger,
        seconds=time.perf_counter() - started,
        seed=target.seed,
        untested=(sentences.regularise(),) if outcome != "failed" else (),
        command=commands.membership(target),
        pictures=(Picture(png(roc_figure(risk)), "The ROC curve on logarithmic axes", "Members against non-members."),),
        tables=_tables(target, risk),
        notes=tuple(note for note in dict.fromkeys([*notes, *checked.notes]) if risk is checked or note != STRONGER),
    )


def _tables(target: Target, risk: Membership) -> tuple[Table, ...]:
    rows = [
        (_class_name(target, name), entry["members"], entry["auc"][0], entry["auc"][1], entry["auc"][2])
        for name, entry in risk.by_class.items()
    ]
    kinds = [(kind, share["most_exposed"], share["all"]) for kind, share in risk.kinds.items()]
    tables = [Table("Kinds of records", ("kind", "share of the most exposed", "share of all"), tuple(kinds))]
    if rows:
        tables.insert(0, Table("Classes", ("class", "members", "AUC", "low", "high"), tuple(rows)))
    return tuple(tables)


def _reference_seconds(target: Target) -> float:
    """What reference models should take, by one epoch on a few rows; 0 for an estimator's, or if these cannot tell."""
    if target.recipe is None or target.inputs is None or target.labels is None:
        return 0.0
    started = time.perf_counter()
    try:
        replace(target.recipe, epochs=1).train(target.inputs[:SAMPLE], target.labels[:SAMPLE])
    except InvalidInput:  # such as a last batch of one row
        return 0.0
    seconds = (time.perf_counter() - started) / min(SAMPLE, len(target.inputs))
    return SHADOWS * int(target.recipe.epochs) * _scored(target) / 2 * seconds


def _seconds(target: Target) -> float:
    return 10.0 if target.recipe is None and target.estimator is None else 30.0


def _first_answer(target: Target) -> float:
    return FIRST_ANSWER + _scored(target) * target.seconds_per_row


def _scored(target: Target) -> int:
    """Records of both sides that an audit scores."""
    return sum(0 if side is None else min(MOST, len(side)) for side in (target.inputs, target.unseen))


PROBES = [
    Probe(
        NAME, "Membership of the training set", _obstacle, _run, _seconds, at_stake="high", first_answer=_first_answer
    )
]

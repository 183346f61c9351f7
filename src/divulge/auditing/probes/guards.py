"""The guards at an endpoint: what each leaves of every copy, and what it costs an honest client."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any, Final

import torch

from divulge.auditing import commands
from divulge.auditing.probes.probe import Probe, TimeUp, deadline
from divulge.auditing.remedies import COPIES, GUARDS
from divulge.auditing.sentences import copies, protections
from divulge.auditing.target import Target
from divulge.core.errors import AttackFailed
from divulge.report.findings import Finding, Table

if TYPE_CHECKING:
    from divulge.protection.guard_undoing import UndoneGuard

HARMLESS = 0.02
"""A guard that changes more decisions than this is not recommended."""
QUERIES, COUNTS = 300, (30, 100, 300)
STEPS, JUDGES = 500, 500
VALUES: Final = "exact copy from values"
LABELS: Final = "exact copy from labels"
"""The exact attacks; the one from labels runs once."""
Measured = dict[str, tuple[Any, list[Any]]]
"""The price of each guard and what each attack got behind it (``protection.guard_study``); "" is no guard."""


def _obstacle(target: Target) -> str:
    if not target.grants("value"):
        return f"the access granted ({target.access}) shows no numbers to guard."
    if target.options.guard:
        return f"the guards in front of it ({target.options.guard}) are what the other findings measured."
    if target.is_remote:
        return "it is remote, and every guard would ask it anew; rehearse behind a guard on a copy of the model."
    if target.inputs is None and target.unseen is None:
        return "no data was given to ask about and to judge copies by."
    if target.labels is not None and target.labels.is_floating_point():
        return "it predicts a quantity; guards are judged by decisions."
    return ""


def _run(target: Target, seconds: float) -> Finding:
    from divulge.extraction.students.learning_curve import LearningCurve
    from divulge.protection import guard_study

    started = time.perf_counter()
    setup = _setup(target)
    common = float(torch.bincount(target.oracle("label").label(setup.judges).cpu()).max()) / len(setup.judges)
    if common >= COPIES:
        raise AttackFailed(protections.one_answer(common))
    attacks = _attacks(target)
    measured: Measured = {}
    curve: LearningCurve | None = None
    notes: list[str] = []
    undone: list[UndoneGuard] = []
    try:
        with deadline(seconds):
            plain = [guard_study.run_attack("", attack, setup) for attack in attacks]
            measured[""] = guard_study.guard_cost("", setup), plain
            learned = [attack for attack in attacks if attack.startswith("learned")]
            counts = [count for count in COUNTS if count <= len(setup.pool)]
            curve = guard_study.learning_curve("", setup, counts, attacks=learned)
            patience = 3 * max(left.queries + left.verification for left in plain)
            for name in _guards(target, setup):
                lefts = [guard_study.run_attack(name, attack, setup, budget=patience) for attack in attacks]
                measured[name] = guard_study.guard_cost(name, setup), lefts
            if VALUES in attacks:  # last, because it takes longest; the guard that leaves labels changes nothing for it
                left = guard_study.run_attack("", LABELS, setup)
                plain.append(left)
                measured["label"][1].append(dataclasses.replace(left, guard="label"))
            undone = _undone(measured, setup)
    except TimeUp as error:
        if curve is None:
            raise
        notes.append(f"The table ends there: {error}")
    budget = guard_study.query_budget(COPIES, exact=measured[""][1], curve=curve)
    finding = _finding(target, measured, budget, curve)
    notes = [
        *(protections.averages_out(left.guard, left.single, left.averaged) for left in undone if left.averages_out),
        *(
            protections.averages_out_nearby(left.guard, left.single, left.nearby)
            for left in undone
            if left.averages_out_nearby and not left.averages_out
        ),
        *notes,
    ]
    finding = dataclasses.replace(finding, tables=(*finding.tables, *_undone_table(undone)))
    return dataclasses.replace(finding, seconds=time.perf_counter() - started, notes=(*finding.notes, *notes))


def _undone(measured: Measured, setup: Any) -> list[UndoneGuard]:
    """What repeated and replayed queries leave of each guard that shows numbers, and of noise fixed by input."""
    from divulge.protection.guard_undoing import undo_guard

    names = [name for name in measured if name]
    names += [f"{name}:fixed" for name in names if name.startswith("noise")]
    return [left for name in names if (left := undo_guard(name, setup)) is not None]


def _undone_table(undone: list[UndoneGuard]) -> tuple[Table, ...]:
    from divulge.protection.guard_undoing import GUESSES, REPEATS

    columns = (
        "guard",
        "error of one answer",
        f"of the mean of {REPEATS}",
        f"of the mean over {REPEATS} inputs beside it",
        f"after the best of {len(GUESSES)} guessed seeds",
    )
    rows = tuple((left.guard, left.single, left.averaged, left.nearby, left.replayed) for left in undone)
    return (Table("Repeated queries and guessed noise", columns, rows),) if rows else ()


def _setup(target: Target) -> Any:
    from divulge.protection.guard_study import StudySetup

    known = target.unseen if target.unseen is not None else target.inputs
    assert known is not None
    order = torch.randperm(len(known), generator=torch.Generator().manual_seed(target.seed))
    half = len(known) // 2
    pool, judges = known[order[:half]], known[order[half : half + JUDGES]]
    return StudySetup(target.make_oracle, pool, judges, learned_from=min(QUERIES, half), steps=STEPS, seed=target.seed)


def _attacks(target: Target) -> list[Any]:
    fits = target.kind in ("linear", "one hidden ReLU layer")
    may_fit = target.kind == "piecewise linear" and not target.kind_is_known
    exact = [VALUES] if fits or may_fit else []
    return [*exact, "learned copy from values", "learned copy from labels"]


def _guards(target: Target, setup: Any) -> list[str]:
    """The guards that are tried: noise in proportion to the answers."""
    spread = float(setup.make("value").value(setup.judges).double().std())
    several = ["top:1"] if target.output_dim > 1 else []
    return ["round:2", f"noise:{0.1 * spread:.2g}", *several, "label"]


def _finding(target: Target, measured: Measured, budget: Any, curve: Any) -> Finding:
    stops, others = _verdicts(measured)
    cheapest = None if budget.rows is None else budget.rows + 1
    return Finding(
        name=GUARDS,
        question="protection",
        adversary=None,
        title=protections.guard_title(len(stops), cheapest, COPIES),
        outcome="succeeded",
        severity="none",
        meaning=protections.guard_meaning(cheapest, budget.attack, COPIES),
        certainty=protections.guard_certainty(JUDGES),
        measures={"fidelity": COPIES, "rows_of_the_cheapest_copy": cheapest, "guard": _cheapest_guard(measured)},
        seed=target.seed,
        remedies=tuple(stops),
        command=commands.audit(target, guard=_cheapest_guard(measured) or "label"),
        tables=_tables(measured, curve),
        notes=(*others, _labels_note(measured)),
    )


def _labels_note(measured: Measured) -> str:
    """What answering labels only changes, with the rows of the copies from values and from labels of this model."""
    rows = {left.attack: left.queries for left in measured[""][1] if left.score >= COPIES}
    return copies.labels_slow_down(rows.get(LABELS, 0), rows.get(VALUES, 0))


def _strongest(outcomes: list[Any]) -> Any:
    return max(outcomes, key=lambda outcome: outcome.score)


def _had_a_copy(measured: Measured) -> bool:
    """Whether any attack had a copy without a guard: otherwise no guard changed anything."""
    return bool(_strongest(measured[""][1]).score >= COPIES)


def _cheapest_guard(measured: Measured) -> str | None:
    """The guard that stops every copy and changes the fewest decisions, if there is one that hardly changes any."""
    prices = {
        name: cost.decisions_changed
        for name, (cost, _) in measured.items()
        if name and _holds(name, measured) and cost.decisions_changed <= HARMLESS
    }
    return min(prices, key=lambda name: prices[name]) if prices and _had_a_copy(measured) else None


def _holds(name: str, measured: Measured) -> bool:
    """Whether every attack behind the guard ran, and its judging rows are enough to say that none has a copy."""
    outcomes = measured[name][1]
    exact = any(left.attack == VALUES for left in measured[""][1])  # then labels have an exact attack too
    tried = name != "label" or not exact or any(left.attack == LABELS for left in outcomes)
    return tried and all(left.at_most < COPIES for left in outcomes)


def _verdicts(measured: Measured) -> tuple[list[str], list[str]]:
    """The guards behind which no attack has a copy, each with its price; and what is to say of the others."""
    stops: list[str] = []
    others: list[str] = []
    for name, (cost, outcomes) in measured.items():
        best = _strongest(outcomes)
        said = (name, best.attack, best.queries, best.score, cost.decisions_changed)
        if name and best.score >= COPIES:
            others.append(protections.guard_fails(*said))
        elif name and _had_a_copy(measured):
            holds = _holds(name, measured)
            (stops if holds else others).append((protections.guard_holds if holds else protections.guard_open)(*said))
    return stops, others


def _tables(measured: Measured, curve: Any) -> tuple[Table, ...]:
    rows = [
        (name or "none", price.decisions_changed, price.answer_error, left.attack, left.score, left.queries,
         left.note or ("exact" if left.exact else ""))
        for name, (price, lefts) in measured.items() for left in lefts
    ]  # fmt: skip
    columns = (
        "guard",
        "decisions changed",
        "answers changed / spread",
        "attack",
        "same decisions",
        "rows asked",
        "note",
    )
    tables = [Table("Attacks behind each guard", columns, tuple(rows))]
    points = tuple((point.kind, point.queries, point.agreement) for point in curve.points)
    tables.append(Table("Learned copies without a guard", ("from", "rows asked", "same decisions"), points))
    return tuple(tables)


def _seconds(target: Target) -> float:
    """Two learned attacks behind five guards and on a curve, and the exact one."""
    return 40.0 + 5000 * target.seconds_per_row


PROBES = (Probe(GUARDS, "Guards at the endpoint", _obstacle, _run, _seconds, "none"),)

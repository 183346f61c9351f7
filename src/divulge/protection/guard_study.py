"""What attacks still get behind a guard, what the guard costs honest clients, and how many rows a client may ask.

A guard (rounding, noise, SmoothGrad, labels only, the largest outputs only) is judged by running the attacks behind it,
each with its full set of queries and a client who adapts: exact extraction and span recovery take their tolerances from
the guard's precision, and where only labels are left the copy is rebuilt or learned from labels.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from divulge import extraction, span
from divulge.core.errors import AccessDenied, AttackFailed, BudgetExhausted, InvalidInput, TargetError
from divulge.core.statistics import rate_at_most
from divulge.extraction.label_result import LabelCopy
from divulge.extraction.result import Extraction
from divulge.extraction.students.learning_curve import LearningCurve, Point
from divulge.oracles import Access, Oracle, oracle
from divulge.oracles.base import decide
from divulge.oracles.guards import Guard, guard

Attack = Literal[
    "exact copy from gradients", "exact copy from values", "learned copy from gradients", "learned copy from values",
    "exact copy from labels", "learned copy from labels", "span from gradients", "span from values",
]  # fmt: skip
ACCESS: dict[Attack, Access] = {
    "exact copy from gradients": "gradient",
    "exact copy from values": "value",
    "learned copy from gradients": "gradient",
    "learned copy from values": "value",
    "exact copy from labels": "label",
    "learned copy from labels": "label",
    "span from gradients": "gradient",
    "span from values": "value",
}
RIGHT = 0.1
"""A direction of the span counts as found within this angle, in radians."""
CONFIDENT = 4.0
"""The logit that a label is taken for."""
Make = Callable[[Access], Oracle]
"""A fresh, unguarded view of the model for one adversary."""


@dataclass(frozen=True)
class AttackOutcome:
    """What one attack got behind one guard."""

    guard: str
    attack: Attack
    score: float
    """For a copy the share of equal decisions on the judging rows; for the span the share of its directions found."""
    exact: bool
    queries: int
    """Rows that the attack took, without those that only verified its copy."""
    note: str = ""
    verification: int = 0
    """Rows that only verified the copy: the study needs them, a client who copies does not."""
    judged_on: int = 0
    """Rows by which the score was judged; 0 where that is not known."""

    @property
    def at_most(self) -> float:
        """What the score may be on all inputs, with 95 % confidence; the score itself without judging rows."""
        if not self.judged_on:
            return self.score
        return rate_at_most(round(self.score * self.judged_on), self.judged_on, error=0.05)

    def as_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)


@dataclass(frozen=True)
class GuardCost:
    """What a guard costs honest clients and its owner."""

    guard: str
    decisions_changed: float
    """Share of the judging rows on which a client who reads the guarded answer decides otherwise."""
    answer_error: float | None
    """Root mean square of what the guard changes, over the answers' spread; None where only labels are left."""
    computed: float
    """Rows that the model computes for a row of gradients (of values, where gradients are not served)."""

    def as_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)


@dataclass(frozen=True)
class StudySetup:
    """An oracle for each adversary, the rows that attackers ask, and the rows that copies are judged by."""

    make: Make
    pool: Tensor
    judges: Tensor
    rows: Tensor | None = None
    """Rows that span the true input subspace, such as the first layer's weights, to judge span recovery by."""
    learned_from: int = 100
    """Queries that a learned copy may ask."""
    steps: int = 600
    seed: int = 0


# -- attacks behind a guard -------------------------------------------------------------------------------------------


def run_attack(name: str, attack: Attack, setup: StudySetup, *, budget: int | None = None) -> AttackOutcome:
    """Run the attack behind the guard ``name`` ("" for none), within ``budget`` rows."""
    view = guarded(name, setup.make(ACCESS[attack]), setup.seed)
    if budget is not None:
        view.ledger.budget = min(budget, view.ledger.budget or budget)
    before = view.ledger.snapshot().total
    try:
        result, note = _run(attack, view, setup), ""
    except AccessDenied:
        return AttackOutcome(name, attack, 0.0, False, 0, "refused: the guard does not answer such questions")
    except (AttackFailed, BudgetExhausted, InvalidInput, TargetError) as error:
        result = error.partial
        note = "the budget ended first" if isinstance(error, BudgetExhausted) else type(error).__name__
    asked = view.ledger.snapshot().total - before
    if result is None or getattr(result, "model", True) is None:
        return AttackOutcome(name, attack, 0.0, False, asked, note)
    exact = bool(getattr(result, "exact", False)) and not note
    verification = result.verification.total if isinstance(result, Extraction | LabelCopy) else 0
    return AttackOutcome(
        name, attack, _score(attack, result, setup), exact, asked - verification, note, verification, len(setup.judges)
    )


def guarded(name: str, view: Oracle, seed: int = 0) -> Oracle:
    """The view behind the named guards."""
    return guard(name, seed=seed)(view) if name else view


def _run(attack: Attack, view: Oracle, setup: StudySetup) -> Any:
    if attack == "exact copy from gradients":
        return extraction.from_gradients(view, inputs=setup.pool, seed=setup.seed)
    if attack == "exact copy from values":
        return extraction.from_values(view, inputs=setup.pool, seed=setup.seed)
    if attack == "exact copy from labels":
        return extraction.from_labels(view, inputs=setup.pool, seed=setup.seed)
    if attack.startswith("span"):
        return span.from_gradients(view, source="gradients" if "gradients" in attack else "values", seed=setup.seed)
    match: Any = "both" if "gradients" in attack else "values"
    options: dict[str, Any] = {"queries": setup.learned_from, "match": match, "steps": setup.steps, "seed": setup.seed}
    if attack == "learned copy from labels":
        view, options["target_output"] = labels_as_logits(view), "logits"
    student = {"architecture": "mlp", "widths": [view.input_dim, 128, view.output_dim], "activation": "relu"}
    return extraction.by_training(view, student, setup.pool, **options)


def labels_as_logits(view: Oracle) -> Oracle:
    """Decisions as confident logits: what a label client learns from."""

    def confident(X: Any) -> Tensor:
        labels = view.label(torch.as_tensor(X))
        decided = labels[:, None] if view.output_dim == 1 else one_hot(labels, view.output_dim)
        return CONFIDENT * (2 * decided.double() - 1)

    return oracle(confident, access="value", input_shape=(view.input_dim,))


def _score(attack: Attack, result: Any, setup: StudySetup) -> float:
    if attack.startswith("span"):
        if setup.rows is None:
            raise InvalidInput("Span recovery is judged by the true span; give rows that span it.")
        if result.rank in (0, result.input_dim):
            return 0.0  # nothing, or everything: no direction was distinguished from another
        return float((result.angles_to(setup.rows) < RIGHT).sum()) / span.result.basis_of_rows(setup.rows).shape[0]
    target = setup.make("label")
    truth = target.label(setup.judges)
    threshold = 0.0 if attack.endswith("from labels") else target.threshold
    copied = decide(oracle(result.model).value(setup.judges), threshold)
    return float((copied == truth).double().mean())


def learning_curve(
    name: str, setup: StudySetup, counts: Sequence[int], *, attacks: Sequence[Attack], repeats: int = 1
) -> LearningCurve:
    """How good a learned copy is against the rows asked behind the guard ``name``, for each of the learning attacks."""
    points = []
    for attack in attacks:
        for count in counts:
            for seed in range(setup.seed, setup.seed + repeats):
                began = time.perf_counter()
                left = run_attack(name, attack, replace(setup, learned_from=count, seed=seed))
                kind = attack.removeprefix("learned copy from ")
                points.append(Point(kind, count, seed, left.score, None, time.perf_counter() - began))
    return LearningCurve(tuple(points), len(setup.judges))


# -- what it costs, and how many rows are safe ------------------------------------------------------------------------


def guard_cost(name: str, setup: StudySetup, *, access: Access = "value") -> GuardCost:
    """What the guard ``name`` changes for an honest client of this access."""
    plain, view = setup.make(access), guarded(name, setup.make(access), setup.seed)
    truth = plain.label(setup.judges)
    changed = float((view.label(setup.judges) != truth).double().mean())
    if view.access == "label":
        return GuardCost(name, changed, None, 1.0)
    values = plain.value(setup.judges).double()
    shown = view.value(setup.judges).double()
    error = float((shown - values).square().mean().sqrt() / values.std())
    if plain.output_dim > 1:  # a client decides by the largest value that is shown
        changed = float((shown.argmax(dim=1) != truth).double().mean())
    computed = 1.0
    if isinstance(view, Guard) and view.access == "gradient":
        before = view.cost.total
        view.gradient(setup.judges[:4])
        computed = (view.cost.total - before) / 4
    return GuardCost(name, changed, error, computed)


@dataclass(frozen=True)
class QueryBudget:
    """How many rows a client may be answered before its copy reaches a fidelity, by the cheapest attack."""

    rows: int | None
    """None where no measured attack reached it."""
    attack: str
    fidelity: float


def query_budget(
    fidelity: float, *, exact: Sequence[AttackOutcome] = (), curve: LearningCurve | None = None
) -> QueryBudget:
    """The recommendation from measured costs: one row fewer than the cheapest attack took to reach ``fidelity``.

    ``exact`` are runs of whole attacks, ``curve`` is a learning curve (``extraction.learning_curve``); between its
    measured numbers of queries it is read along the logarithm, and below the first it says nothing smaller.
    """
    if not 0 < fidelity <= 1:
        raise InvalidInput(f"fidelity is a share of equal decisions in (0, 1]; got {fidelity}.")
    needed: dict[str, float] = {}
    for left in exact:
        if left.score >= fidelity:
            needed[left.attack] = min(left.queries, needed.get(left.attack, math.inf))
    for kind in dict.fromkeys(point.kind for point in curve.points) if curve is not None else ():
        reached = curve.needed(kind, fidelity) if curve is not None else None
        if reached is not None:
            needed[f"learned copy from {kind}"] = reached
    if not needed:
        return QueryBudget(None, "", fidelity)
    first = min(needed, key=lambda name: needed[name])
    return QueryBudget(max(0, math.ceil(needed[first]) - 1), first, fidelity)

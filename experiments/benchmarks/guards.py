"""Guards at an endpoint: what each leaves to each attack, its price for honest clients, and how many rows are safe.

``python -m experiments guards``, or with ``--only 'guard round:5'`` for some rows only.
Targets are 64-16-10 ReLU networks trained on scikit-learn's digits, in float64, which show logits (and, for the last
guards, probabilities); attackers ask about 700 training digits, the 359 test digits judge. Every number is the mean
over the targets.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from statistics import fmean
from typing import Any

from divulge import datasets
from divulge.extraction.students.learning_curve import LearningCurve
from divulge.oracles import oracle
from divulge.protection.guard_study import (
    ACCESS,
    Attack,
    AttackOutcome,
    StudySetup,
    guard_cost,
    learning_curve,
    query_budget,
    run_attack,
)
from divulge.training import Recipe, evaluate
from experiments.plan import Plan

TARGETS = (11, 12)
"""Seeds of the targets; settings were chosen on others."""
GUARDS = (
    "", "round:8", "round:7", "round:6", "round:5", "round:4", "round:3", "round:2",
    "noise:0.001", "noise:0.1", "noise:1", "smoothgrad:0.3:20", "smoothgrad:3:20", "top:1", "label",
)  # fmt: skip
SHOWN_AS_PROBABILITIES = ("", "round:2", "top:1")
LEARNING: tuple[Attack, ...] = ("learned copy from gradients", "learned copy from values", "learned copy from labels")
EXACT_LABELS: Attack = "exact copy from labels"
FROM_LABELS: tuple[Attack, ...] = (EXACT_LABELS, "learned copy from labels")
CHANGE_LABELS = ("noise", "label")
"""Other guards leave the decisions as they are, and the label client with them."""
COUNTS = (10, 30, 100, 300)
FIDELITIES = (0.9, 0.95, 0.98)
BUDGET, LABEL_BUDGET = 30_000, 200_000
"""Rows that an attack may ask; an exact copy from labels takes some 60 labels for each weight."""


def setup_of(seed: int, *, output: str | None = None) -> StudySetup:
    """A trained target and the rows around it."""
    digits = datasets.load("digits")
    recipe = Recipe(
        widths=[64, 16, 10], optimiser="adam", learning_rate=3e-3, epochs=150, batch_size=100, seed=seed
    )  # fmt: skip
    model = recipe.train(*digits.train).double()
    print(f"target {seed}: test accuracy {evaluate(model, *digits.test).accuracy:.1%}", flush=True)
    return StudySetup(
        lambda access: oracle(model, access=access, output=output), digits.train.X[:700].double(),
        digits.test.X.double(), rows=next(model.parameters()).detach(), learned_from=100, steps=300, seed=seed,
    )  # fmt: skip


def run(plan: Plan) -> dict[str, Any]:
    """The learning curve without a guard, then every guard: what is left to each attack, and its price."""
    targets = TARGETS[: plan.seeds] if plan.seeds else TARGETS
    setups = [setup_of(seed) for seed in targets]
    shown = [setup_of(seed, output="probabilities") for seed in targets[:1]]

    @cache
    def curve() -> LearningCurve:
        curves = [learning_curve("", setup, COUNTS, attacks=LEARNING) for setup in setups]
        return LearningCurve(tuple(point for part in curves for point in part.points), curves[0].test_rows)

    @cache
    def unguarded() -> dict[str, Any]:
        return _row("", "", setups)

    def budgets() -> list[dict[str, Any]]:
        exact = [AttackOutcome(**left) for left in unguarded()["left"] if left["exact"]]
        return _budgets(exact, curve())

    parts: dict[str, Callable[[], Any]] = {
        "learning curve": lambda: curve().as_dict(), "guard none": unguarded, "rows a client may be answered": budgets
    }  # fmt: skip
    parts |= {f"guard {name}": partial(_row, name, name, setups) for name in GUARDS if name}
    parts |= {
        f"probabilities, guard {name or 'none'}": partial(_row, name, f"probabilities, {name or 'no guard'}", shown)
        for name in SHOWN_AS_PROBABILITIES
    }
    found = plan.measure("guards", parts)
    rows = [found[part] for part in parts if part in found and "left" in found[part]]
    lines = [*_heads(), *(_line(row) for row in rows)]
    if {"learning curve", "rows a client may be answered"} <= found.keys():
        lines += ["", *_curve_lines(curve()), "", *_budget_lines(found["rows a client may be answered"])]
    (plan.out / "guards.md").write_text("\n".join(lines) + "\n")
    return found


def _row(name: str, title: str, setups: list[StudySetup]) -> dict[str, Any]:
    """Every attack behind one guard, and its price; printed as it comes."""
    attacks = [attack for attack in ACCESS if attack not in FROM_LABELS or name.startswith(CHANGE_LABELS) or not name]
    lefts = [
        run_attack(name, attack, setup, budget=LABEL_BUDGET if attack == EXACT_LABELS else BUDGET)
        for attack in attacks for setup in setups
    ]  # fmt: skip
    prices = [guard_cost(name, setup, access="gradient").as_dict() for setup in setups]
    return {"guard": title or "no guard", "left": [left.as_dict() for left in lefts], "prices": prices}


def _budgets(exact: list[AttackOutcome], curve: LearningCurve) -> list[dict[str, Any]]:
    """For each kind of client the rows that it may be answered."""
    budgets: list[dict[str, Any]] = []
    for attack in LEARNING:
        kind = attack.rsplit(" ", 1)[1]
        own = [left for left in exact if left.attack.endswith(kind)]
        points = LearningCurve(tuple(point for point in curve.points if point.kind == kind), curve.test_rows)
        found = [query_budget(fidelity, exact=own, curve=points) for fidelity in FIDELITIES]
        budgets += [{"client": kind, **budget.__dict__} for budget in found]
    return budgets


# -- Markdown ---------------------------------------------------------------------------------------------------------


def _heads() -> list[str]:
    heads = [attack.replace("copy from ", "").replace("span from ", "span, ") for attack in ACCESS]
    return [
        "| guard | decisions changed | answers changed | computed a row | " + " | ".join(heads) + " |",
        "|---|---|---|---|" + "---|" * len(heads),
    ]


def _line(row: dict[str, Any]) -> str:
    prices = row["prices"]
    error = "labels" if prices[0]["answer_error"] is None else f"{fmean(p['answer_error'] for p in prices):.1e}"
    cells = [_cell([left for left in row["left"] if left["attack"] == attack]) for attack in ACCESS]
    return (
        f"| {row['guard']} | {fmean(p['decisions_changed'] for p in prices):.1%} | {error} | "
        f"{fmean(p['computed'] for p in prices):.0f} | " + " | ".join(cells) + " |"
    )


def _curve_lines(curve: LearningCurve) -> list[str]:
    lines = ["| rows asked | gradients | values | labels |", "|---|---|---|---|"]
    for count in COUNTS:
        means = [f"{curve.mean(kind, count)[0]:.1%}" for kind in ("gradients", "values", "labels")]
        lines.append(f"| {count} | " + " | ".join(means) + " |")
    return lines


def _budget_lines(budgets: list[dict[str, Any]]) -> list[str]:
    lines = ["| a client sees | fidelity | rows it may be answered | by the attack |", "|---|---|---|---|"]
    for budget in budgets:
        rows = "no attack reached it" if budget["rows"] is None else budget["rows"]
        lines.append(f"| {budget['client']} | {budget['fidelity']:.0%} | {rows} | {budget['attack'] or '-'} |")
    return lines


def _cell(lefts: list[dict[str, Any]]) -> str:
    if not lefts:
        return "as without"
    if all(left["note"].startswith("refused") for left in lefts):
        return "refused"
    exact = sum(left["exact"] for left in lefts)
    told = f"exact {exact}/{len(lefts)}" if exact else f"{fmean(left['score'] for left in lefts):.0%}"
    return f"{told} ({fmean(left['queries'] for left in lefts):,.0f})"

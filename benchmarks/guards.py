"""Guards at an endpoint: what each leaves to each attack, its price for honest clients, and how many rows are safe.

``python -m benchmarks guards``. Targets are 64-16-10 ReLU networks trained on scikit-learn's digits, in float64, which
show logits (and, for the last guards, probabilities); attackers ask about 700 training digits, the 359 test digits
judge. Every number is the mean over the targets.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from statistics import fmean
from typing import Any

from divulge import datasets
from divulge.extraction.curves import LearningCurve
from divulge.oracles import oracle
from divulge.protection.endpoint import ACCESS, Attack, Left, Scene, learning_curve, left_by, price_of, query_budget
from divulge.training import Recipe, evaluate

TARGETS = (11, 12, 13)
"""Seeds of the targets; settings were chosen on others."""
GUARDS = (
    "", "round:8", "round:6", "round:5", "round:4", "round:3", "round:2", "noise:0.0001", "noise:0.001",
    "noise:0.01", "noise:0.1", "noise:1", "smoothgrad:0.3:20", "smoothgrad:3:20", "top:1", "label",
)  # fmt: skip
SHOWN_AS_PROBABILITIES = ("", "round:4", "round:2", "top:1")
LEARNING: tuple[Attack, ...] = ("learned copy from gradients", "learned copy from values", "learned copy from labels")
FROM_LABELS: Attack = "learned copy from labels"
CHANGE_LABELS = ("noise", "label")
"""Other guards leave the decisions as they are, and the label client with them."""
COUNTS = (10, 20, 50, 100, 200, 500)
FIDELITIES = (0.9, 0.95, 0.98)
BUDGET = 30_000


def scene_of(seed: int, *, output: str | None = None) -> Scene:
    """A trained target and the rows around it."""
    digits = datasets.load("digits")
    recipe = Recipe(
        widths=[64, 16, 10], optimiser="adam", learning_rate=3e-3, epochs=150, batch_size=100, seed=seed
    )  # fmt: skip
    model = recipe.train(*digits.train).double()
    print(f"target {seed}: test accuracy {evaluate(model, *digits.test).accuracy:.1%}", flush=True)
    return Scene(
        lambda access: oracle(model, access=access, output=output), digits.train.X[:700].double(),
        digits.test.X.double(), rows=model[0].weight.detach(), learned_from=100, steps=300, seed=seed,
    )  # fmt: skip


def main() -> None:
    """Print the tables; write results/guards.json and results/guards.md."""
    began = time.perf_counter()
    scenes = [scene_of(seed) for seed in TARGETS]
    shown = [scene_of(seed, output="probabilities") for seed in TARGETS[:1]]
    rows = [_row(name, name, scenes) for name in GUARDS]
    rows += [_row(name, f"probabilities, {name or 'no guard'}", shown) for name in SHOWN_AS_PROBABILITIES]
    exact = [Left(**left) for left in rows[0]["left"] if left["attack"].startswith("exact")]
    curves = [learning_curve("", scene, COUNTS, attacks=LEARNING) for scene in scenes]
    curve = LearningCurve(tuple(point for part in curves for point in part.points), curves[0].test_rows)
    budgets = [
        {"access": access, "fidelity": fidelity, **query_budget(
            fidelity,
            exact=[left for left in exact if attack.endswith(left.attack.rsplit(" ", 1)[1])],
            curve=LearningCurve(tuple(p for p in curve.points if attack.endswith(p.kind)), curve.test_rows),
        ).__dict__}
        for attack in LEARNING
        for access in (ACCESS[attack],)
        for fidelity in FIDELITIES
    ]  # fmt: skip
    result = {
        "targets": TARGETS, "guards": rows, "curve": curve.as_dict(), "budgets": budgets,
        "seconds": time.perf_counter() - began,
    }  # fmt: skip
    text = table(result, curve)
    print(text)
    Path("results").mkdir(exist_ok=True)
    Path("results/guards.json").write_text(json.dumps(result, indent=2) + "\n")
    Path("results/guards.md").write_text(text)


def _row(name: str, title: str, scenes: list[Scene]) -> dict[str, Any]:
    """Every attack behind one guard, and its price."""
    attacks = [attack for attack in ACCESS if attack != FROM_LABELS or name.startswith(CHANGE_LABELS) or not name]
    lefts = [left_by(name, attack, scene, budget=BUDGET) for attack in attacks for scene in scenes]
    prices = [price_of(name, scene, access="gradient").as_dict() for scene in scenes]
    print(title or "no guard", *(f"{left.score:.2f}" for left in lefts), flush=True)
    return {"guard": title or "no guard", "left": [left.as_dict() for left in lefts], "prices": prices}


def table(result: dict[str, Any], curve: LearningCurve) -> str:
    """The guards, the learning curve and the budgets as Markdown."""
    heads = [attack.replace("copy from ", "").replace("span from ", "span, ") for attack in ACCESS]
    lines = [
        "| guard | decisions changed | answers changed | computed a row | " + " | ".join(heads) + " |",
        "|---|---|---|---|" + "---|" * len(heads),
    ]
    for row in result["guards"]:
        prices = row["prices"]
        error = "labels" if prices[0]["answer_error"] is None else f"{fmean(p['answer_error'] for p in prices):.1e}"
        cells = [_cell([left for left in row["left"] if left["attack"] == attack]) for attack in ACCESS]
        lines.append(
            f"| {row['guard']} | {fmean(p['decisions_changed'] for p in prices):.1%} | {error} | "
            f"{fmean(p['computed'] for p in prices):.0f} | " + " | ".join(cells) + " |"
        )
    lines += ["", "| rows asked | gradients | values | labels |", "|---|---|---|---|"]
    for count in COUNTS:
        means = [f"{curve.mean(kind, count)[0]:.1%}" for kind in ("gradients", "values", "labels")]
        lines.append(f"| {count} | " + " | ".join(means) + " |")
    lines += ["", "| a client sees | fidelity | rows it may be answered | by the attack |", "|---|---|---|---|"]
    lines += [
        f"| {b['access']}s | {b['fidelity']:.0%} | {'no attack reached it' if b['rows'] is None else b['rows']} | "
        f"{b['attack'] or '-'} |"
        for b in result["budgets"]
    ]
    return "\n".join(lines) + "\n"


def _cell(lefts: list[dict[str, Any]]) -> str:
    if not lefts:
        return "as without"
    if all(left["note"].startswith("refused") for left in lefts):
        return "refused"
    exact = sum(left["exact"] for left in lefts)
    told = f"exact {exact}/{len(lefts)}" if exact else f"{fmean(left['score'] for left in lefts):.0%}"
    return f"{told} ({fmean(left['queries'] for left in lefts):,.0f})"


if __name__ == "__main__":
    main()

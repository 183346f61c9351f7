"""Shadow models a second of processor time (the machine may be shared): the recipe's own loop beside the group program
in float32 and bfloat16, and whether they end at the same weights. Balle 2022's MNIST setting with 1,000 known digits.
The reference run, made once for all models, is not counted. The two large products of a step alone, made as often as
training needs them, are the ceiling of any exact float32 program of this form. ``python -m benchmarks shadows``."""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch

from divulge import Recipe, datasets, informed
from divulge.informed.descent import prepare
from divulge.informed.program import by_hand
from divulge.informed.seen import flat_weights
from divulge.informed.shadows import with_row

KNOWN, LOOP = 1000, 6
MODELS = {"float32": 52, "bfloat16": 2}
RECIPE = {"widths": [784, 10, 10], "activation": "elu", "learning_rate": 0.2, "momentum": 0.9, "epochs": 100}


def main() -> None:
    data = datasets.load("mnist").train
    known, pool = (data.X[:KNOWN], data.y[:KNOWN]), (data.X[KNOWN:], data.y[KNOWN:])
    recipe = Recipe(**RECIPE)
    began = time.process_time()
    loop = [flat_weights(recipe.train(*with_row(*known, pool[0][i], pool[1][i], KNOWN))) for i in range(LOOP)]
    rate = LOOP / (time.process_time() - began)
    rows = [{"how": "one after the other", "per_second": rate, "times": 1.0, "relative_error": 0.0}]
    exact = informed.shadows(
        Recipe(**RECIPE, precision="float64"), *known, pool[0][:LOOP].double(), pool[1][:LOOP]
    ).differences
    for precision, count in MODELS.items():
        setting = time.process_time()
        informed.shadows(recipe, *known, pool[0][:1], pool[1][:1], precision=precision)  # mostly the reference run
        began = time.process_time()
        found = informed.shadows(recipe, *known, pool[0][: count + 1], pool[1][: count + 1], precision=precision)
        fast = count / (time.process_time() - began - (began - setting))
        got = found.differences[:LOOP].double()
        away = (got - exact[: len(got)]).norm(dim=1) / exact[: len(got)].norm(dim=1)
        rows.append(
            {"how": f"one tensor program, {precision}", "per_second": fast, "times": fast / rate,
             "relative_error": float(away.max())}
        )  # fmt: skip
        if precision == "float32":
            ends = found.differences[:LOOP].double() + found.reference
            gap = max(float((a - b).abs().max()) for a, b in zip(ends, loop, strict=True))
            rows[-1]["furthest_weight_from_the_loop"] = gap
    ceiling = products(recipe, *known)
    rows.append({"how": "the two large products alone", "per_second": ceiling, "times": ceiling / rate})
    print("| how | models a processor second | times the loop | relative error of theta - theta_- |\n|---|---|---|---|")
    for row in rows:
        off = f"{row['relative_error']:.1e}" if "relative_error" in row else ""
        print(f"| {row['how']} | {row['per_second']:.1f} | {row['times']:.1f} | {off} |")
    print(f"largest difference of a weight to the loop's, float32: {rows[1]['furthest_weight_from_the_loop']:.1e}")
    Path("results").mkdir(exist_ok=True)
    Path("results/shadows.json").write_text(json.dumps(rows, indent=2) + "\n")


def products(recipe: Recipe, X: torch.Tensor, y: torch.Tensor, steps: int = 20) -> float:
    """Models a processor second if training were nothing but the products with the known rows, forwards and back."""
    program = by_hand(prepare(recipe, X, y, dtype=torch.float32))
    U, units = program.setting.U, program.group * program.setting.widths[1]
    shift, delta = torch.randn(units, U.shape[1]), torch.randn(units, len(U))
    began = time.process_time()
    for _ in range(steps):
        shift @ U.T
        delta @ U
    return program.group * steps / recipe.epochs / (time.process_time() - began)


if __name__ == "__main__":
    main()

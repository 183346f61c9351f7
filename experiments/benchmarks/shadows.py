"""Shadow models a second of processor time (the machine may be shared): the recipe's own loop beside the group program
in float32 and bfloat16, and whether they end at the same weights. Balle 2022's MNIST setup with 1,000 known digits.
The reference run, made once for all models, is not counted. The two large products of a step alone, made as often as
training needs them, are the ceiling of any exact float32 program of this form. ``python -m experiments shadows``."""

from __future__ import annotations

import time
from typing import Any

import torch

from divulge import Recipe, datasets, informed
from divulge.informed.inversion.training_function import mlp_training
from divulge.informed.released_view import flat_weights
from divulge.training.batched.model_group import prepare
from divulge.training.batched.shared_setup import with_row
from experiments.plan import Plan

KNOWN, LOOP = 1000, 6
MODELS = {"float32": 104, "bfloat16": 104}
RECIPE = {"widths": [784, 10, 10], "activation": "elu", "learning_rate": 0.2, "momentum": 0.9, "epochs": 100}


def run(plan: Plan) -> dict[str, Any]:
    """The loop, the tensor program at each precision, and the ceiling of any exact program of this form."""
    return plan.measure("shadows", {"models a processor second": rates})


def rates() -> list[dict[str, Any]]:
    """Models a processor second, how many times the loop's, and the relative error of the weights' difference."""
    data = datasets.load("mnist").train
    known, pool = (data.X[:KNOWN], data.y[:KNOWN]), (data.X[KNOWN:], data.y[KNOWN:])
    recipe = Recipe(**RECIPE)
    began = time.process_time()
    loop = [flat_weights(recipe.train(*with_row(*known, pool[0][i], pool[1][i], KNOWN))) for i in range(LOOP)]
    rate = LOOP / (time.process_time() - began)
    rows: list[dict[str, Any]] = [
        {"how": "one after the other", "per_second": rate, "times": 1.0, "relative_error": 0.0}
    ]
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
        row = {"how": f"one tensor program, {precision}", "per_second": fast, "times": fast / rate}
        row["relative_error"] = float(away.max())
        if precision == "float32":
            ends = found.differences[:LOOP].double() + found.reference
            row["furthest_weight"] = max(float((a - b).abs().max()) for a, b in zip(ends, loop, strict=True))
        rows.append(row)
    ceiling = products(recipe, *known)
    return [*rows, {"how": "the two large products alone", "per_second": ceiling, "times": ceiling / rate}]


def products(recipe: Recipe, X: torch.Tensor, y: torch.Tensor, steps: int = 20) -> float:
    """Models a processor second if training were nothing but the products with the known rows, forwards and back."""
    program = mlp_training(prepare(recipe, X, y, dtype=torch.float32))
    U, units = program.setup.U, program.group * program.setup.widths[1]
    shift, delta = torch.randn(units, U.shape[1]), torch.randn(units, len(U))
    began = time.process_time()
    for _ in range(steps):
        shift @ U.T
        delta @ U
    return program.group * steps / recipe.epochs / (time.process_time() - began)

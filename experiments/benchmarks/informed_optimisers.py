"""One unknown digit out of networks trained by the optimisers that people use, by inverting their training.

64-16-10, tanh, on 100 known digits of scikit-learn and one unknown one, 20 epochs in full batches, float64, the label
given; 90 training runs a search. Inputs that no known digit has are among them.

    python -m experiments informed_optimisers [--only adam] [--seeds TARGETS]
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

import divulge
from experiments.plan import Plan

KNOWN, TARGETS = 100, 5
OPTIMISERS: dict[str, dict[str, Any]] = {
    "sgd": {"learning_rate": 0.3},
    "sgd, Nesterov": {"learning_rate": 0.1, "momentum": 0.9, "nesterov": True},
    "rmsprop": {"optimiser": "rmsprop", "learning_rate": 2e-3},
    "adam": {"optimiser": "adam", "learning_rate": 5e-3},
    "adamw, cosine": {"optimiser": "adamw", "learning_rate": 5e-3, "weight_decay": 0.01, "schedule": "cosine"},
}


def attacked(options: dict[str, Any], place: int) -> dict[str, Any]:
    """One target: the error beside those of the class mean and of the nearest known digit."""
    data = divulge.datasets.load("digits").train
    order = torch.randperm(len(data.X), generator=torch.Generator().manual_seed(5))
    X, y = data.X.flatten(1).double()[order], data.y[order]
    known, labels, x, label = X[:KNOWN], y[:KNOWN], X[KNOWN + place], y[KNOWN + place]
    recipe = divulge.Recipe(widths=[64, 16, 10], activation="tanh", epochs=20, precision="float64", **options)
    released = recipe.train(torch.cat([known, x[None]]), torch.cat([labels, label[None]]))
    record = divulge.informed.direct(recipe, released, known, labels, labels=label[None])
    return {
        "error": record.error(x), "predicted": record.predicted_error, "trusted": record.trusted,
        "class mean": float((known[labels == label].mean(dim=0) - x).square().mean()),
        "nearest": float((known - x).square().mean(dim=1).min()), "runs": record.training_runs,
    }  # fmt: skip


def summary(options: dict[str, Any], targets: int) -> dict[str, Any]:
    """Every target of one optimiser."""
    rows = [attacked(options, place) for place in range(targets)]
    trusted = [row for row in rows if row["trusted"]]
    return {
        "targets": len(rows), "median error": float(np.median([row["error"] for row in rows])),
        "largest error": max(row["error"] for row in rows), "trusted": len(trusted),
        "trusted wrongly": sum(row["error"] > row["nearest"] for row in trusted), "rows": rows,
    }  # fmt: skip


def run(plan: Plan) -> dict[str, Any]:
    """Every optimiser."""
    parts = {name: partial(summary, options, plan.seeds or TARGETS) for name, options in OPTIMISERS.items()}
    return plan.measure("informed_optimisers", parts)

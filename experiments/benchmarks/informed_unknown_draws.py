"""What inverting training says of networks trained with draws that it does not know: dropout and augmentation.

64-8-10, ELU, on 120 known digits of scikit-learn and one unknown one, 30 epochs of momentum descent in full batches. A
fresh draw each epoch: noise added to the pixels, pictures shifted by a pixel, or a tenth of the hidden units dropped.
The attack is told a recipe without the draws, which is all that a recipe can say. It must not trust what it finds.

    python -m experiments informed_unknown_draws [--only dropout] [--seeds TARGETS]
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import divulge
from divulge.informed import NotReproduced
from experiments.plan import Plan

KNOWN, TARGETS, NOISE, DROPPED = 120, 24, 0.1, 0.1
DRAWS = ("none", "noise on the pixels", "shifts by a pixel", "dropout")
RECIPE = divulge.Recipe(widths=[64, 8, 10], activation="elu", learning_rate=0.2, momentum=0.9, epochs=30, seed=3)


def trained(X: Tensor, y: Tensor, draws: str, seed: int) -> nn.Module:
    """The recipe's training with fresh draws each epoch."""
    generator = torch.Generator().manual_seed(seed)
    model = RECIPE.initial_model()
    descent = RECIPE.descent(model.parameters())
    first, activation, last = model.children()
    for _ in range(RECIPE.epochs):
        rows = X
        if draws == "noise on the pixels":
            rows = X + NOISE * torch.randn(X.shape, generator=generator)
        elif draws == "shifts by a pixel":
            moves = torch.randint(-1, 2, (len(X), 2), generator=generator).tolist()
            rows = torch.stack([x.view(8, 8).roll(tuple(move), (0, 1)) for x, move in zip(X, moves, strict=True)])
        hidden = activation(first(rows.flatten(1)))
        if draws == "dropout":
            hidden = hidden * (torch.rand(hidden.shape, generator=generator) >= DROPPED) / (1 - DROPPED)
        descent.clear()
        cross_entropy(last(hidden), y).backward()  # type: ignore[no-untyped-call]
        descent.step()
    return model


def attacked(draws: str, targets: int) -> dict[str, Any]:
    """Every target under one kind of draws."""
    data = divulge.datasets.load("digits").train
    order = torch.randperm(len(data.X), generator=torch.Generator().manual_seed(9))
    X, y = data.X.flatten(1)[order], data.y[order]
    known, labels = X[:KNOWN], y[:KNOWN]
    rows = []
    refused = 0
    for place in range(KNOWN, KNOWN + targets):
        model = trained(
            torch.cat([known, X[place : place + 1]]), torch.cat([labels, y[place : place + 1]]), draws, place
        )
        try:
            record = divulge.informed.direct(RECIPE, model, known, labels)
        except NotReproduced:
            refused += 1
            continue
        nearest = float((known - X[place]).square().mean(dim=1).min())
        rows.append({"error": record.error(X[place]), "predicted": record.predicted_error, "nearest": nearest,
                     "trusted": bool(record.trusted), "label": record.y == int(y[place])})  # fmt: skip
    return {
        "targets": targets, "refused": refused, "trusted": sum(row["trusted"] for row in rows),
        "trusted wrongly": sum(row["trusted"] and row["error"] >= row["nearest"] for row in rows),
        "closer than the nearest": sum(row["error"] < row["nearest"] for row in rows),
        "labels right": sum(row["label"] for row in rows), "rows": rows,
    }  # fmt: skip


def run(plan: Plan) -> dict[str, Any]:
    """Every kind of draws."""
    parts = {draws: partial(attacked, draws, plan.seeds or TARGETS) for draws in DRAWS}
    return plan.measure("informed_unknown_draws", parts)

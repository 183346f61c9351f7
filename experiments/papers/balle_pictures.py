"""Balle et al. 2022, figure 20, Table IX and the CIFAR-10 column of Table II: lines of the convolutional network.

Training is inverted on a fixed set that one core can afford. Beside each line stand the accuracies of the released
models on their own pictures and on unseen ones, and the area under the curve of a membership test by the loss: the
paper's point is that reconstruction does not follow membership.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from divulge import datasets, informed
from divulge.informed.released_view import Access
from divulge.training import Recipe, shaped
from divulge.training.batched.shared_setup import with_row

if TYPE_CHECKING:
    from experiments.papers.balle import Lab, Rows

RUNS = 43
MEANS = ("nearest", "auc", "inside", "unseen", "runs", "processor_seconds")
_UNSEEN = 2000  # pictures of the test set


@dataclass(frozen=True)
class PictureLine:
    """What is changed of the reduced default: 50 known pictures, 25 epochs, rate 0.01 with momentum 0.9."""

    name: str
    paper: float | None
    """Of the row that is closest, with 1,000 or more known pictures."""
    change: dict[str, Any] = field(default_factory=dict)
    targets: int = 3
    known: int = 50
    labels: bool = False
    """Whether the adversary knows the label."""
    access: Access = "weights"


_ADAM = {"optimiser": "adam", "momentum": 0.0, "learning_rate": 0.002}
LINES = (
    PictureLine("10 epochs", None, {"epochs": 10}, targets=6),
    PictureLine("25 epochs", 0.0049, targets=10),
    PictureLine("50 epochs", None, {"epochs": 50}, targets=5),
    PictureLine("100 epochs", 0.0041, {"epochs": 100}, targets=5),
    PictureLine("500 known", 0.0049, targets=3, known=500),
    PictureLine("500 known, 100 epochs", 0.0041, {"epochs": 100}, targets=2, known=500),
    PictureLine("learning rate 0.001", 0.0055, {"learning_rate": 0.001}),
    PictureLine("twice the width", 0.0047, {"architecture": "balle-cnn-large"}),
    PictureLine("ReLU", 0.0324, {"architecture": {"architecture": "balle-cnn", "activation": "relu"}}),
    PictureLine("logits", 0.0198, access="logits"),
    PictureLine("Adam at 0.002", 0.0052, _ADAM),
)
Setup = Callable[..., tuple[Recipe, "Rows", "Rows", "Rows"]]
"""(lab, targets, known) -> the recipe, known pictures, targets and others."""


def lines(lab: Lab, pictures: Setup) -> dict[str, Callable[[], Any]]:
    """A part for each line."""
    return {f"CIFAR-10 lines: {one.name}": partial(picture_line, lab, pictures, one) for one in LINES}


def picture_line(lab: Lab, pictures: Setup, one: PictureLine) -> dict[str, Any]:
    """One line; each target is kept on disk when it is done."""
    recipe, known, (X, y), _ = pictures(lab, lab.count or one.targets, one.known)
    recipe = replace(recipe, **one.change)
    name = "".join(letter if letter.isalnum() else "-" for letter in one.name)
    path = lab.out / f"pictures-{name}.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    for place in range(len(rows), len(X)):
        rows.append(attacked(recipe, known, X[place], y[place], one))
        path.write_text(json.dumps(rows, indent=2) + "\n")
    errors = np.array([row["error"] for row in rows])
    return {
        "paper": one.paper, "fixed": len(known[0]), "epochs": recipe.epochs, "attacked": len(rows),
        "mean": float(errors.mean()), "median": float(np.median(errors)), "largest": float(errors.max()),
        "labels_right": sum(row["label"] for row in rows), "trusted": sum(row["trusted"] for row in rows),
        "trusted_and_wrong": sum(row["trusted"] and row["error"] >= row["nearest"] for row in rows),
        "closer_than_nearest": sum(row["error"] < row["nearest"] for row in rows),
        **{key: float(np.mean([row[key] for row in rows])) for key in MEANS},
    }  # fmt: skip


def attacked(recipe: Recipe, known: Rows, x: Tensor, label: Tensor, one: PictureLine) -> dict[str, Any]:
    """One target: the error, and what membership and accuracy of its model are."""
    X, y = with_row(*known, x, label, len(known[0]))
    model = recipe.train(X, y)
    labels = [int(label)] if one.labels else None
    began = time.process_time()
    record = informed.direct(recipe, model, *known, labels=labels, runs=RUNS, access=one.access)
    spent = time.process_time() - began
    return {
        "error": record.error(x.flatten()), "predicted": record.predicted_error, "trusted": bool(record.trusted),
        "label": record.y == int(label), "runs": record.training_runs, "processor_seconds": spent,
        "nearest": float((known[0] - x).square().flatten(1).mean(dim=1).min()), **leaks(model, X, y),
    }  # fmt: skip


def leaks(model: nn.Module, X: Tensor, y: Tensor) -> dict[str, float]:
    """Accuracy inside and outside the training set, and the area under the curve of a test by the loss."""
    unseen = datasets.load("cifar10").test
    own, own_right = _losses(model, X, y)
    other, other_right = _losses(model, unseen.X[:_UNSEEN], unseen.y[:_UNSEEN])
    return {"auc": informed.roc(-own, -other).auc, "inside": own_right, "unseen": other_right}


def _losses(model: nn.Module, X: Tensor, y: Tensor) -> tuple[np.ndarray[Any, np.dtype[np.float64]], float]:
    with torch.no_grad():
        outputs = model(shaped(X, model))
    losses = cross_entropy(outputs, y, reduction="none").double().numpy()
    return losses, float((outputs.argmax(dim=1) == y).double().mean())

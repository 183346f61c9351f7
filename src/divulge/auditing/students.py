"""The student of a learned copy, chosen for the data: convolutions for pictures, trees for trees, layers for tables.

A picture is learned by a small convolutional network. A model that answers in steps, such as a forest, is learned by a
forest. Any other table is learned by a network with one hidden layer; columns in units of their own are standardised by
the rows that were asked. The attacker needs no more than the answers to choose: the shape of an input is known to every
client, and steps show along lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from divulge.auditing.target import Target
from divulge.oracles.base import Oracle

LearnedAccess = Literal["label", "value", "gradient"]
HIDDEN = 128
"""Hidden units of the student of a table."""
FILTERS, DENSE = (16, 32), 64
"""Of the student of pictures."""
BATCH, STEPS, PASSES = 64, 300, 15
"""How pictures are learned: rows a step, steps at least, and passes over the answers."""
RATE = 5e-3
"""Learning rate of the student of pictures, whose layers are normalised."""
SMALLEST_PICTURE = 16
"""Height and width from which on a picture is learned by convolutions."""
_UNIT = (0.05, 5.0)
"""Standard deviations of columns that a network takes as they are."""
SECONDS = {"network": (3.0, 1e-3), "convolutions": (3.0, 1.5e-3), "trees": (0.5, 1e-3)}
"""About what a fit takes on one core in any case, and what each query adds."""


@dataclass(frozen=True)
class StudentPlan:
    """Which student is fitted."""

    kind: Literal["network", "convolutions", "trees"]
    standardised: bool
    shape: tuple[int, ...]
    outputs: int

    @property
    def words(self) -> str:
        """The student in words."""
        if self.kind == "trees":
            return "a forest"
        if self.kind == "convolutions":
            filters = f"{FILTERS[0]} and {FILTERS[1]} filters"
            return f"a network with two convolutions ({filters}) and a hidden layer of {DENSE} ReLU units"
        return f"a network with one hidden layer of {HIDDEN} ReLU units"

    def seconds(self, queries: int) -> float:
        """About what a fit takes on one core."""
        pixels = max(1.0, float(np.prod(self.shape)) / 784)
        scale = pixels if self.kind == "convolutions" else 1.0
        start, each = SECONDS[self.kind]
        return scale * (start + each * queries)

    def student(self) -> Any:
        """What ``extraction.by_training`` fits."""
        if self.kind == "trees":
            return "trees"
        widths = [int(np.prod(self.shape)), HIDDEN, self.outputs]
        if self.kind == "network" and not self.standardised:
            return {"architecture": "mlp", "widths": widths, "activation": "relu"}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return _convolutions(self.shape, self.outputs) if self.kind == "convolutions" else _standardised(widths)


def _convolutions(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Two 3 x 3 convolutions in steps of two, then two dense layers, all normalised: pixels come in any units."""
    channels, height, width = shape
    first, second = FILTERS
    places = -(-height // 4) * -(-width // 4)
    made = nn.Sequential(
        nn.BatchNorm2d(channels),
        nn.Conv2d(channels, first, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(first), nn.ReLU(),
        nn.Conv2d(first, second, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(second), nn.ReLU(), nn.Flatten(),
        nn.Linear(second * places, DENSE, bias=False), nn.BatchNorm1d(DENSE), nn.ReLU(), nn.Linear(DENSE, outputs),
    )  # fmt: skip
    made.input_shape = shape  # type: ignore[assignment]
    return made


def _standardised(widths: list[int]) -> nn.Module:
    """One hidden layer behind columns in units of their spread, which are set by the rows that are asked."""
    return nn.Sequential(
        nn.BatchNorm1d(widths[0], affine=False), nn.Linear(widths[0], widths[1]), nn.ReLU(),
        nn.Linear(widths[1], widths[2]),
    )  # fmt: skip


def plan_for(target: Target, pool: Tensor, access: LearnedAccess) -> StudentPlan:
    """The student that fits the target and its data."""
    flat = (target.input_dim,)
    if target.kind == "piecewise constant" and access != "gradient":
        return StudentPlan("trees", False, flat, target.output_dim)
    shape = target.shape
    if shape is not None and len(shape) == 3 and min(shape[1:]) >= SMALLEST_PICTURE:
        return StudentPlan("convolutions", False, tuple(shape), target.output_dim)
    spread = pool.std(dim=0)
    varying = spread[spread > 0]
    own_units = len(varying) > 0 and bool((varying.min() < _UNIT[0]) & (varying.max() > 1) | (varying.max() > _UNIT[1]))
    return StudentPlan("network", own_units, flat, target.output_dim)


def answering(view: Oracle, access: LearnedAccess) -> Oracle:
    """The oracle that a student asks: decisions are given as logits."""
    from divulge.protection.guard_study import labels_as_logits

    return labels_as_logits(view) if access == "label" else view


def learned(plan: StudentPlan, asked: Oracle, access: LearnedAccess, pool: Tensor, count: int, seed: int) -> nn.Module:
    """A student fitted to so many answers."""
    from divulge import extraction

    options: dict[str, Any] = {"match": "both" if access == "gradient" else "values"}
    if access == "label":
        options["target_output"] = "logits"
    if plan.kind == "convolutions" and access != "gradient":
        options |= {
            "batch_size": min(BATCH, count), "steps": max(STEPS, PASSES * count // BATCH), "train_norms": True,
            "hold_out": 0.0, "learning_rate": RATE,
        }  # fmt: skip
    return extraction.by_training(asked, plan.student(), pool, queries=count, seed=seed, **options).model

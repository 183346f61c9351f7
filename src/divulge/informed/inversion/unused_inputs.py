"""Inputs that no known row uses, under an optimiser that divides gradients by their size (Adam, AdamW, RMSprop).

The first-layer weights of such an input move only if the unknown row uses it, and then by about the learning rate a
step, however large its value is. So they say exactly which of these inputs are zero in the unknown row, and nothing of
the values of the others: at zero the training run jumps, and elsewhere it has no slope. The search therefore holds the
former at zero, keeps the latter away from zero, and leaves these weights out. The values show in the other weights.
Balle 2022 attacks plain descent, where every input's weights are proportional to its value.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from divulge.informed.inversion.gauss_newton import Box, DifferentiableRun
from divulge.informed.inversion.training_function import TrainingFunction
from divulge.informed.inversion.unrolled import UnrolledTraining

_DIVIDING = ("adam", "adamw", "rmsprop")
_SMALLEST = 0.02  # of the largest value that a row may have: what a used input is at least
_MOVED = 1e3  # rounding errors of a weight beyond which it has moved


@dataclass(frozen=True)
class UnusedInputs:
    """The inputs that are zero in every known row, and the first layer's weights for them."""

    inputs: Tensor
    """Their indices [u]."""
    weights: Tensor
    """The indices of their weights among all weights [u, h]."""
    rounding: Tensor
    """How far each of those weights may lie off by rounding alone [u, h]."""

    @classmethod
    def of(cls, training: TrainingFunction, X: Tensor) -> UnusedInputs | None:
        """Those of the known rows; None where there are none, or where they need no care."""
        if not isinstance(training, UnrolledTraining) or training.recipe.optimiser not in _DIVIDING:
            return None
        first = next(layer for layer in training.model.modules() if next(layer.parameters(False), None) is not None)
        inputs = torch.nonzero((X.reshape(len(X), -1) == 0).all(dim=0))[:, 0]
        if not isinstance(first, nn.Linear) or first.in_features != training.inputs or not len(inputs):
            return None
        weights = inputs[:, None] + first.in_features * torch.arange(first.out_features)
        size = training.reference[weights].abs() + training.start[weights].abs().to(torch.float64)
        return cls(inputs, weights, _MOVED * torch.finfo(training.recipe.dtype).eps * size)

    def left_out(self, features: Tensor) -> Tensor:
        """Differences of weights [B, P] with those of these inputs set to zero."""
        kept = features.clone()
        kept[:, self.weights.reshape(-1)] = 0.0
        return kept

    def box(self, target: Tensor, rows: Tensor, bounds: tuple[float, float] | None) -> Box:
        """What the entries of each row may be, by how the released weights [B, P] differ from the reference."""
        used = (target[:, self.weights].abs() > self.rounding).any(dim=2)  # [B, u]
        low, high = bounds if bounds is not None else (-torch.inf, torch.inf)
        lows, highs = torch.full_like(rows, low), torch.full_like(rows, high)
        least = _SMALLEST * high if bounds is not None and low >= 0 else low
        lows[:, self.inputs] = torch.where(used, least, 0.0).to(rows)
        highs[:, self.inputs] = torch.where(used, high, 0.0).to(rows)
        return lows, highs

    def start(self, rows: Tensor, box: Box, X: Tensor) -> Tensor:
        """Rows to start from: a used input begins at the known rows' usual size, since at zero there is no slope."""
        entered = rows.clone()
        usual = X[X != 0].abs().median().to(rows) if bool((X != 0).any()) else rows.new_ones(())
        free = box[0][:, self.inputs] < box[1][:, self.inputs]
        entered[:, self.inputs] = torch.where(free & (entered[:, self.inputs] == 0), usual, entered[:, self.inputs])
        return entered.clamp(*box)

    def of_run(self, run: DifferentiableRun) -> DifferentiableRun:
        """A training run without the weights of these inputs."""
        return _RunWithout(self, run)


class _RunWithout:
    """A run whose ``theta`` and derivatives leave those weights out."""

    def __init__(self, unused: UnusedInputs, run: DifferentiableRun) -> None:
        self.unused, self.run = unused, run
        self.theta = unused.left_out(run.theta)

    @property
    def share(self) -> float:
        return self.run.share

    def forward(self, dZ: Tensor) -> Tensor:
        return self.unused.left_out(self.run.forward(dZ))

    def backward(self, residual: Tensor) -> Tensor:
        return self.run.backward(self.unused.left_out(residual))

    def replace(self, rows: Tensor, other: _RunWithout, chosen: Tensor) -> None:
        self.run.replace(rows, other.run, chosen)
        self.theta[rows] = other.theta[chosen]

"""A recipe's training as a function of its one unknown row, with derivatives.

``MlpTraining`` covers multilayer perceptrons under plain or momentum descent; its derivatives are written out by hand
(``derivatives``) and it works on many rows at once. ``UnrolledTraining`` (``unrolled``) covers everything else through
torch.func.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from divulge.informed.inversion import derivatives
from divulge.informed.inversion.gauss_newton import DifferentiableRun
from divulge.informed.inversion.unrolled import UnrolledTraining
from divulge.training import Recipe
from divulge.training.batched import model_group
from divulge.training.batched.parameter_layout import reference_weights
from divulge.training.batched.shared_setup import SharedSetup, supported

_BYTES = 1.5e9  # memory for the runs of one group
_ROWS = 2000  # known rows used by derivatives, where there are more than twice as many
_ELEMENTS = 2**18  # units times rows times models in one group: about a core's share of the cache
_SMALLEST_GROUP = 8  # smaller groups make the products with the known rows inefficient


class TrainingFunction(Protocol):
    """Training on the known rows and one more."""

    @property
    def recipe(self) -> Recipe: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def inputs(self) -> int: ...
    @property
    def outputs(self) -> int: ...
    @property
    def reference(self) -> Tensor:
        """The weights that training ends at when the unknown row's gradient is left out [P], float64."""

    @property
    def together(self) -> int:
        """How many rows a search holds in memory at once."""

    def train(self, Z: Tensor, targets: Tensor) -> Tensor:
        """The weights that each row and encoded target lead to, minus the reference [B, P]."""

    def run(self, Z: Tensor, targets: Tensor) -> DifferentiableRun:
        """The same run, kept for products with its derivative."""


@dataclass(frozen=True)
class MlpTraining:
    """Training of multilayer perceptrons, many at once."""

    setup: SharedSetup
    reference: Tensor
    sample: derivatives.Sample | None = None
    """The known rows that derivatives use; None for all of them."""

    @property
    def recipe(self) -> Recipe:
        return self.setup.recipe

    @property
    def dtype(self) -> torch.dtype:
        return self.setup.dtype

    @property
    def inputs(self) -> int:
        return self.setup.d

    @property
    def outputs(self) -> int:
        return self.setup.widths[-1]

    @property
    def group(self) -> int:
        """How many models to train at once."""
        rows = min(self.setup.n, self.recipe.batch_size or self.setup.n) + 1
        return max(_SMALLEST_GROUP, min(256, _ELEMENTS // (max(self.setup.widths[1:]) * rows)))

    @property
    def together(self) -> int:
        setup, steps = self.setup, self.setup.batches()
        most = setup.n if self.sample is None else len(self.sample.rows)
        rows = sum(len(batch.known) if batch.known is not None else most for batch in steps)
        size = rows * sum(setup.widths[1:]) + len(steps) * sum(part.numel() for part in setup.start)
        return max(1, int(_BYTES / (size * setup.U.element_size())))

    def train(self, Z: Tensor, targets: Tensor) -> Tensor:
        parts = [torch.arange(first, min(first + self.group, len(Z))) for first in range(0, len(Z), self.group)]
        return torch.cat([model_group.train_encoded(self.setup, Z[part], targets[part]) for part in parts])

    def run(self, Z: Tensor, targets: Tensor) -> DifferentiableRun:
        return derivatives.Run(self.setup, Z, targets, self.sample)


def mlp_training(setup: SharedSetup) -> MlpTraining:
    """The training function of what ``model_group.prepare`` returned."""
    full = setup.recipe.batch_size is None and setup.V is not None
    sample = derivatives.Sample.of(setup, _ROWS) if full and setup.n > 2 * _ROWS else None
    return MlpTraining(setup, reference_weights(setup), sample)


def training_function(
    recipe: Recipe,
    X: Tensor,
    y: Tensor,
    *,
    dtype: torch.dtype,
    position: int | None = None,
    start: nn.Module | None = None,
) -> TrainingFunction:
    """The training function of any recipe."""
    if supported(recipe) and recipe.optimiser == "sgd":
        return mlp_training(model_group.prepare(recipe, X, y, dtype=dtype, position=position, start=start))
    return UnrolledTraining.of(recipe, X, y, dtype=dtype, position=position, start=start)

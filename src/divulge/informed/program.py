"""A recipe's training as a function of its one unknown row, with derivatives: written out by hand for multilayer
perceptrons under plain or momentum descent (``descent``, ``sweeps``), by torch.func for the rest (``unrolled``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from divulge.informed import descent, sweeps
from divulge.informed.gauss_newton import Trained
from divulge.informed.setting import Setting, reference_weights, supported
from divulge.informed.unrolled import Unrolled
from divulge.training import Recipe

_BYTES = 1.5e9  # what the runs of one group may hold in memory
_ROWS = 2000  # known rows that derivatives look at, where there are more than twice as many
_ELEMENTS = 2**18  # units times rows times models that are worked on at once: about a core's share of the cache

_LEAST = 8  # models, however large: the products with the known rows need as many


class Program(Protocol):
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
        """Where training ends when the unknown row's gradient is left out [P], float64."""

    @property
    def together(self) -> int:
        """How many rows a search should hold at once."""

    def train(self, Z: Tensor, targets: Tensor) -> Tensor:
        """The weights that each row and encoded target lead to, less the reference [B, P]."""

    def run(self, Z: Tensor, targets: Tensor) -> Trained:
        """The same, kept for products with its derivative."""


@dataclass(frozen=True)
class ByHand:
    """The hand-written program."""

    setting: Setting
    reference: Tensor
    sample: sweeps.Sample | None = None
    """The known rows that stand for all in derivatives; None for all."""

    @property
    def recipe(self) -> Recipe:
        return self.setting.recipe

    @property
    def dtype(self) -> torch.dtype:
        return self.setting.dtype

    @property
    def inputs(self) -> int:
        return self.setting.d

    @property
    def outputs(self) -> int:
        return self.setting.widths[-1]

    @property
    def group(self) -> int:
        """How many models to train at once."""
        rows = min(self.setting.n, self.recipe.batch_size or self.setting.n) + 1
        return max(_LEAST, min(256, _ELEMENTS // (max(self.setting.widths[1:]) * rows)))

    @property
    def together(self) -> int:
        setting, steps = self.setting, self.setting.batches()
        most = setting.n if self.sample is None else len(self.sample.rows)
        rows = sum(len(batch.known) if batch.known is not None else most for batch in steps)
        size = rows * sum(setting.widths[1:]) + len(steps) * sum(part.numel() for part in setting.start)
        return max(1, int(_BYTES / (size * setting.U.element_size())))

    def train(self, Z: Tensor, targets: Tensor) -> Tensor:
        parts = [torch.arange(first, min(first + self.group, len(Z))) for first in range(0, len(Z), self.group)]
        return torch.cat([descent.train_encoded(self.setting, Z[part], targets[part]) for part in parts])

    def run(self, Z: Tensor, targets: Tensor) -> Trained:
        return sweeps.Run(self.setting, Z, targets, self.sample)


def by_hand(setting: Setting) -> ByHand:
    """The hand-written program of a setting that ``descent.prepare`` made."""
    full = setting.recipe.batch_size is None and setting.V is not None
    sample = sweeps.Sample.of(setting, _ROWS) if full and setting.n > 2 * _ROWS else None
    return ByHand(setting, reference_weights(setting), sample)


def program(
    recipe: Recipe,
    X: Tensor,
    y: Tensor,
    *,
    dtype: torch.dtype,
    position: int | None = None,
    start: nn.Module | None = None,
) -> Program:
    """The program that can also be differentiated, whatever the recipe."""
    if supported(recipe) and recipe.optimiser == "sgd":
        return by_hand(descent.prepare(recipe, X, y, dtype=dtype, position=position, start=start))
    return Unrolled.of(recipe, X, y, dtype=dtype, position=position, start=start)

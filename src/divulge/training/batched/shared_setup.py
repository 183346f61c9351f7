"""What the models of a group share: the recipe, the known rows in coordinates, and the reference run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from divulge.core.errors import InvalidInput
from divulge.models.mlp import MLP
from divulge.training.recipe import Recipe


@dataclass(frozen=True)
class Batch:
    """The rows of one step."""

    known: Tensor | None
    """Indices of its known rows; None for all of them."""
    unknown: bool
    """Whether it holds the unknown row."""
    size: int
    """The number of its rows."""


def batches(recipe: Recipe, n: int, position: int) -> list[Batch]:
    """The steps, as ``Recipe.batches`` orders n known rows and one more at ``position``."""
    if not 0 <= position <= n:
        raise InvalidInput(f"The unknown row's position is between 0 and {n}; got {position}.")
    steps = []
    for index in recipe.batches(n + 1):
        if len(index) == n + 1:
            steps.append(Batch(None, True, n + 1))
            continue
        known = index[index != position]
        steps.append(Batch(known - (known > position).long(), len(known) < len(index), len(index)))
    return steps


@dataclass(frozen=True)
class SharedSetup:
    """Everything that the models of a group share."""

    recipe: Recipe
    widths: tuple[int, ...]
    dtype: torch.dtype
    U: Tensor
    """The known rows in the basis [n, r]."""
    V: Tensor | None
    """The basis [d + 1, r]; None where rows are used as they are."""
    half: bool
    """Whether the large products are made in bfloat16. The differences then keep two to three digits."""
    targets: Tensor
    """The known rows' encoded targets [k, n]."""
    position: int
    """The unknown row's index in the training set."""
    start: tuple[Tensor, ...]
    """The initial weights in float64: W1 with its bias as a last column, then W2, b2 and so on; no bias is None."""
    reference: tuple[Tensor, ...] = ()
    """The reference run's final weights, in the same layout."""
    weights: tuple[Tensor | None, ...] = field(default=(), repr=False)
    """The reference run's W1 [h, d + 1] before each step that holds the unknown row."""
    activations: tuple[Tensor, ...] = field(default=(), repr=False)
    """The reference run's layer-one pre-activations at each step [h, rows]."""
    deltas: tuple[Tensor, ...] = field(default=(), repr=False)
    """The reference run's layer-one deltas at each step [h, rows], not yet divided by the number of rows."""

    @property
    def n(self) -> int:
        """The number of known rows."""
        return len(self.U)

    @property
    def d(self) -> int:
        """The number of features."""
        return self.widths[0]

    def batches(self) -> list[Batch]:
        """The steps of the models."""
        return batches(self.recipe, self.n, self.position)

    def rows(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """U and the encoded targets of a batch's known rows."""
        if batch.known is None:
            return self.U, self.targets
        return self.U[batch.known], self.targets[:, batch.known]

    def biased(self, layer: int) -> bool:
        """Whether this layer has a bias."""
        return self.recipe.bias == "all" or (self.recipe.bias == "first" and layer == 0)


def as_mlp(recipe: Recipe) -> Recipe | None:
    """The recipe with its model written as widths; None where the model is no multilayer perceptron."""
    if recipe.widths is not None:
        return recipe
    model = recipe.initial_model()
    if not isinstance(model, MLP):
        return None
    spec: dict[str, Any] = dict(model.spec)
    return replace(recipe, architecture=None, widths=spec["widths"], activation=spec["activation"], bias=spec["bias"])


def supported(recipe: Recipe) -> bool:
    """Whether ``model_group`` can train the recipe.

    It takes multilayer perceptrons without private training, by plain or momentum descent or Adam at a constant rate.
    """
    plain = recipe.optimiser in ("sgd", "adam") and not recipe.nesterov and recipe.schedule == "constant"
    return plain and recipe.privacy is None and as_mlp(recipe) is not None


def encode(recipe: Recipe, y: Tensor, outputs: int) -> Tensor:
    """Targets as [k, n]; the loss's slope is its prediction minus these."""
    if y.ndim == 2 and y.is_floating_point():
        return y.T
    if recipe.loss == "logistic":
        return (y.reshape(1, -1) > 0).to(torch.float64)
    if outputs == 1:
        return y.reshape(1, -1).to(torch.float64)
    labels = y.long()
    if len(labels) and (int(labels.min()) < 0 or int(labels.max()) >= outputs):
        raise InvalidInput(
            f"Labels go from 0 to {outputs - 1}; the data holds {int(labels.min())} to {int(labels.max())}."
        )
    return functional.one_hot(labels, outputs).T.to(torch.float64)


def with_row(X: Tensor, y: Tensor, z: Tensor, label: Any, position: int) -> tuple[Tensor, Tensor]:
    """The training set with the row ``z`` inserted at ``position``."""
    row = torch.as_tensor(z).reshape(1, *X.shape[1:]).to(X)
    target = torch.as_tensor(label).reshape(1, *y.shape[1:]).to(y)
    return torch.cat([X[:position], row, X[position:]]), torch.cat([y[:position], target, y[position:]])

"""What a group of models that train together shares: the recipe, the known rows in coordinates, the reference run; and
how weights and targets are laid out."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from divulge.errors import InvalidInput, WrongShape
from divulge.models.mlp import MLP
from divulge.training import Recipe


@dataclass(frozen=True)
class Batch:
    """The rows of one step: which known ones, whether the unknown row is among them, and how many in all."""

    known: Tensor | None
    """Indices into the known rows; None for all of them."""
    unknown: bool
    size: int


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
class Setting:
    """Everything that a group of models shares: the recipe, the known rows in coordinates, and the reference run."""

    recipe: Recipe
    widths: tuple[int, ...]
    dtype: torch.dtype
    U: Tensor
    """The known rows in the basis [n, r]."""
    V: Tensor | None
    """The basis [d + 1, r]; None where rows are used as they are."""
    half: bool
    """Whether the large products are made in bfloat16 (the differences then keep two to three digits)."""
    targets: Tensor
    """The known rows' targets, encoded [k, n]."""
    position: int
    """Where the unknown row stood in the training set."""
    start: tuple[Tensor, ...]
    """The initial weights as float64: W1 with its bias as a last column, then W2, b2, ... (None-less)."""
    reference: tuple[Tensor, ...] = ()
    """The reference run's final weights, likewise."""
    weights: tuple[Tensor | None, ...] = field(default=(), repr=False)
    """The reference run's W1 [h, d + 1] before each step that has the unknown row."""
    activations: tuple[Tensor, ...] = field(default=(), repr=False)
    """Its layer-one pre-activations at each step [h, rows]."""
    deltas: tuple[Tensor, ...] = field(default=(), repr=False)
    """Its layer-one deltas at each step [h, rows], not yet divided by the number of rows."""

    @property
    def n(self) -> int:
        return len(self.U)

    @property
    def d(self) -> int:
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
        return self.recipe.bias == "all" or (self.recipe.bias == "first" and layer == 0)


# -- what a recipe says -----------------------------------------------------------------------------------------------


def as_mlp(recipe: Recipe) -> Recipe | None:
    """The recipe with its model spelt out as widths, or None where it is no multilayer perceptron."""
    if recipe.widths is not None:
        return recipe
    model = recipe.initial_model()
    if not isinstance(model, MLP):
        return None
    spec: dict[str, Any] = dict(model.spec)
    return replace(recipe, architecture=None, widths=spec["widths"], activation=spec["activation"], bias=spec["bias"])


def supported(recipe: Recipe) -> bool:
    """Whether the hand-written program covers the recipe: a multilayer perceptron without privacy noise."""
    return recipe.privacy is None and as_mlp(recipe) is not None


def encode(recipe: Recipe, y: Tensor, outputs: int) -> Tensor:
    """Targets as [k, n]: what the loss subtracts from its prediction."""
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


# -- layout -----------------------------------------------------------------------------------------------------------


def basis(rows: Tensor) -> Tensor:
    """Orthonormal columns that span the rows."""
    if rows.shape[1] > len(rows):
        columns: Tensor = torch.linalg.qr(rows.T).Q
        return columns
    values, vectors = torch.linalg.eigh(rows.T @ rows)
    kept: Tensor = vectors[:, values > values[-1] * torch.finfo(values.dtype).eps * len(values)]
    return kept


def weights_of(linear: list[nn.Linear]) -> tuple[Tensor, ...]:
    """A model's weights as the program holds them: the first layer with its bias as a column, then W, b, W, b."""
    first = linear[0]
    bias = first.bias if first.bias is not None else first.weight.new_zeros(len(first.weight))
    parts = [torch.cat([first.weight, bias[:, None]], dim=1)]
    for layer in linear[1:]:
        parts.append(layer.weight)
        if layer.bias is not None:
            parts.append(layer.bias[:, None])
    return tuple(part.detach().to(torch.float64).clone() for part in parts)


def flat(parts: list[Tensor], *, first_bias: bool) -> Tensor:
    """[B, P] from the program's pieces, in the order of ``model.parameters()``."""
    first = parts[0]
    pieces = [first[:, :, :-1].flatten(1)]
    if first_bias:
        pieces.append(first[:, :, -1])
    return torch.cat([*pieces, *(part.flatten(1) for part in parts[1:])], dim=1)


def unflat(setting: Setting, theta: Tensor) -> list[Tensor]:
    """The program's pieces [B, ...] of flat weights [B, P]."""
    pieces, place = [], 0
    for layer, (fan_in, fan_out) in enumerate(itertools.pairwise(setting.widths)):
        weight = theta[:, place : place + fan_in * fan_out].view(-1, fan_out, fan_in)
        place += fan_in * fan_out
        biased = setting.biased(layer)
        bias = theta[:, place : place + fan_out, None] if biased else None
        place += fan_out if biased else 0
        if layer == 0:
            pieces.append(torch.cat([weight, weight.new_zeros(len(weight), fan_out, 1) if bias is None else bias], 2))
        else:
            pieces += [weight] if bias is None else [weight, bias]
    if place != theta.shape[1]:
        raise WrongShape(f"The recipe's model has {place} weights; this one has {theta.shape[1]}.")
    return pieces


def reference_weights(setting: Setting) -> Tensor:
    """The reference run's final weights [P], as float64."""
    return flat([part[None] for part in setting.reference], first_bias=setting.recipe.bias != "none")[0]

"""One training set, many models: descent on D_- plus one row that differs from model to model, as one tensor program.

All models share D_-, so its layer-one products are one matrix product for the whole group, and with plain or momentum
descent only the *difference* to a reference run (the same training with the unknown row's gradient left out) is kept:

    W1 = W1_ref + Q V^T + q z^T,     pre-activations A_ref + (Q + q (V^T z)^T) U^T,

where the rows of [X, 1] are U V^T, V an orthonormal basis of the space they span. Q then moves by (D - D_ref) U and q
by the row's own delta. Nothing is approximated. (The rows themselves instead of V would save one of the two large
products a step, and lose three digits in float32.) Adam does not keep this form and is run on the full weights, with
the same code (V = 1, no reference).

Layout: models, then units, then rows of data, so that every elementwise pass is contiguous over the rows.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from divulge.errors import InvalidInput, UnsupportedModel, WrongShape
from divulge.informed.activations import ACTIVATIONS
from divulge.models.mlp import MLP
from divulge.training import Recipe

Gradient = list[Tensor]


@dataclass(frozen=True)
class Batch:
    """The rows of one step: which known ones, whether the unknown row is among them, and how many in all."""

    known: Tensor | None
    """Indices into the known rows; None for all of them."""
    unknown: bool
    size: int


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
        """The steps, as ``Recipe.batches`` orders n + 1 rows with the unknown one at its position."""
        steps = []
        for index in self.recipe.batches(self.n + 1):
            if len(index) == self.n + 1:
                steps.append(Batch(None, True, self.n + 1))
                continue
            known = index[index != self.position]
            steps.append(Batch(known - (known > self.position).long(), len(known) < len(index), len(index)))
        return steps

    def rows(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """U and the encoded targets of a batch's known rows."""
        if batch.known is None:
            return self.U, self.targets
        return self.U[batch.known], self.targets[:, batch.known]

    def biased(self, layer: int) -> bool:
        return self.recipe.bias == "all" or (self.recipe.bias == "first" and layer == 0)


# -- preparing --------------------------------------------------------------------------------------------------------


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


def prepare(
    recipe: Recipe,
    known_X: Tensor,
    known_y: Tensor,
    *,
    dtype: torch.dtype,
    position: int | None = None,
    start: nn.Module | None = None,
    half: bool = False,
) -> Setting:
    """Coordinates of the known rows and the reference run on them."""
    plain = as_mlp(recipe)
    if plain is None or recipe.privacy is not None:
        raise UnsupportedModel("This tensor program trains multilayer perceptrons only (Recipe(widths=[...])).")
    recipe = plain
    model = start if start is not None else recipe.initial_model()
    linear = [layer for layer in model if isinstance(layer, nn.Linear)]  # type: ignore[attr-defined]
    widths = (linear[0].in_features, *(layer.out_features for layer in linear))
    X = known_X.reshape(len(known_X), -1).to(torch.float64)
    if X.shape[1] != widths[0]:
        raise WrongShape(f"The recipe's model takes {widths[0]} features; the known rows have {X.shape[1]}.")
    position = len(X) if position is None else position
    if not 0 <= position <= len(X):
        raise InvalidInput(f"The unknown row's position is between 0 and {len(X)}; got {position}.")
    first = recipe.bias != "none"
    rows = torch.cat([X, X.new_full((len(X), 1), float(first))], dim=1)
    V = _basis(rows) if recipe.optimiser == "sgd" else None
    setting = Setting(
        recipe=recipe, widths=widths, dtype=dtype, U=(rows if V is None else rows @ V).to(dtype),
        V=None if V is None else V.to(dtype), half=half and V is not None,
        targets=encode(recipe, known_y, widths[-1]).to(dtype), position=position, start=_weights_of(linear),
    )  # fmt: skip
    return _with_reference(setting, rows)


def _basis(rows: Tensor) -> Tensor:
    """Orthonormal columns that span the rows."""
    if rows.shape[1] > len(rows):
        columns: Tensor = torch.linalg.qr(rows.T).Q
        return columns
    values, vectors = torch.linalg.eigh(rows.T @ rows)
    kept: Tensor = vectors[:, values > values[-1] * torch.finfo(values.dtype).eps * len(values)]
    return kept


def _weights_of(linear: list[nn.Linear]) -> tuple[Tensor, ...]:
    """A model's weights as the program holds them: the first layer with its bias as a column, then W, b, W, b."""
    first = linear[0]
    bias = first.bias if first.bias is not None else first.weight.new_zeros(len(first.weight))
    parts = [torch.cat([first.weight, bias[:, None]], dim=1)]
    for layer in linear[1:]:
        parts.append(layer.weight)
        if layer.bias is not None:
            parts.append(layer.bias[:, None])
    return tuple(part.detach().to(torch.float64).clone() for part in parts)


def _with_reference(setting: Setting, rows: Tensor) -> Setting:
    """Run descent on the known rows alone (each step still divided by all its rows) and keep what the models need."""
    exact = replace(setting, dtype=torch.float64, U=rows, V=None, half=False, targets=setting.targets.to(torch.float64))
    run = Group(exact, torch.zeros(1, rows.shape[1] - 1), None)
    weights: list[Tensor | None] = []
    activations, deltas = [], []
    for batch in setting.batches():
        if setting.V is not None:
            weights.append(run.parameters[0][0].to(setting.dtype, copy=True) if batch.unknown else None)
        gradient, trace = run.gradient(replace(batch, unknown=False))
        if setting.V is not None:
            activations.append(trace.pre[0].to(setting.dtype))
            deltas.append(trace.delta[0].to(setting.dtype))
        run.step(gradient, batch.size)
    return replace(
        setting, reference=tuple(part[0].clone() for part in run.parameters), weights=tuple(weights),
        activations=tuple(activations), deltas=tuple(deltas),
    )  # fmt: skip


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


# -- descent ----------------------------------------------------------------------------------------------------------


@dataclass
class Trace:
    """What one step's forward and backward pass left, over all rows (the unknown one last): layer-one pre-activations,
    the values of every activation, the prediction, and the layer-one deltas."""

    pre: Tensor
    hidden: list[Tensor]
    prediction: Tensor
    delta: Tensor


class Group:
    """Models trained together on the shared rows plus one row each, ``parameters`` batched over the models:
    Q [B, h, r] and q [B, h] (or W1 [B, h, d + 1] without a basis), then W2 [B, out, in], b2 [B, out, 1] and so on.
    """

    def __init__(self, setting: Setting, Z: Tensor, targets: Tensor | None) -> None:
        self.setting = setting
        dtype, count = setting.dtype, len(Z)
        first = setting.recipe.bias != "none"
        self.Z = torch.cat([Z.to(dtype), torch.full((count, 1), float(first), dtype=dtype)], dim=1)
        self.targets = None if targets is None else targets.to(dtype)  # [B, k]
        V = setting.V
        rest = [part.to(dtype).expand(count, *part.shape).clone() for part in setting.start[1:]]
        if V is None:
            self.coordinates = self.Z
            W1 = setting.start[0].to(dtype)
            self.parameters = [W1.expand(count, *W1.shape).clone(), *rest]
        else:
            self.coordinates = self.Z @ V  # V^T z
            h = setting.widths[1]
            self.parameters = [self.Z.new_zeros(count, h, V.shape[1]), self.Z.new_zeros(count, h), *rest]
        self.size = self.Z.square().sum(dim=1)  # |z|^2
        self.activation = ACTIVATIONS[setting.recipe.activation]
        self.taken = 0
        self.moments: list[Tensor] = []
        self.squares: list[Tensor] = []

    @property
    def layers(self) -> list[tuple[Tensor, Tensor | None]]:
        """Weights and bias of the layers after the first."""
        rest = iter(self.parameters[1 if self.setting.V is None else 2 :])
        return [
            (next(rest), next(rest) if self.setting.biased(layer) else None)
            for layer in range(1, len(self.setting.widths) - 1)
        ]

    def first_layer(self) -> Tensor:
        """W1 of each model [B, h, d + 1], at the step that comes next."""
        if self.setting.V is None:
            return self.parameters[0]
        base = self.setting.weights[self.taken]
        assert base is not None
        return base + self._first_difference()

    def _first_difference(self) -> Tensor:
        """W1 less the reference run's."""
        if self.setting.V is None:
            return self.parameters[0] - self.setting.reference[0].to(self.setting.dtype)
        Q, q = self.parameters[:2]
        return Q @ self.setting.V.T + q[:, :, None] * self.Z[:, None, :]

    def _pre_activations(self, batch: Batch) -> Tensor:
        """Layer one over the known rows and, last, the unknown one: [B, h, rows]."""
        U, _ = self.setting.rows(batch)
        count, h = len(self.Z), self.setting.widths[1]
        out = self.Z.new_empty(count, h, len(U) + batch.unknown)
        if self.setting.V is None:
            W = self.parameters[0]
            out[:, :, : len(U)] = (W.reshape(-1, W.shape[2]) @ U.T).view(count, h, len(U))
            if batch.unknown:
                out[:, :, -1] = (W @ self.Z[:, :, None])[:, :, 0]
            return out
        Q, q = self.parameters[:2]
        shift = torch.baddbmm(Q, q[:, :, None], self.coordinates[:, None, :])  # Q + q (V^T z)^T
        products = self._product(shift.view(-1, shift.shape[2]), U.T).view(count, h, len(U))
        torch.add(products, self.setting.activations[self.taken], out=out[:, :, : len(U)])
        if batch.unknown:
            base = self.setting.weights[self.taken]
            assert base is not None
            own = self.Z @ base.T
            own += (Q @ self.coordinates[:, :, None])[:, :, 0] + q * self.size[:, None]
            out[:, :, -1] = own
        return out

    def gradient(self, batch: Batch) -> tuple[Gradient, Trace]:
        """The gradient of the batch's mean loss (in coordinates), and the pass that gave it."""
        loss, targets = self.setting.recipe.loss, self.all_targets(batch)
        layers = self.layers
        pre = self._pre_activations(batch)
        hidden, slopes = [], []
        a = pre
        for W, b in layers:
            value, slope = self.activation.forward(a)
            hidden.append(value)
            slopes.append(slope)
            a = W @ value if b is None else torch.baddbmm(b, W, value)
        prediction = predict(loss, a)
        delta = prediction - targets  # [B, k, rows]
        parts: Gradient = []
        for (W, b), value, slope in zip(reversed(layers), reversed(hidden), reversed(slopes), strict=True):
            if b is not None:
                parts.append(delta.sum(dim=2, keepdim=True))
            parts.append(delta @ value.transpose(1, 2))
            delta = (W.transpose(1, 2) @ delta).mul_(slope)
        first = self._first_gradient(delta, batch)
        return [*first, *reversed(parts)], Trace(pre, hidden, prediction, delta)

    def _first_gradient(self, delta: Tensor, batch: Batch) -> Gradient:
        U, _ = self.setting.rows(batch)
        count, h, _ = delta.shape
        if self.setting.V is None:
            known = delta[:, :, : len(U)]
            first = (known.reshape(-1, len(U)) @ U).view(count, h, -1)
            if batch.unknown:
                first = torch.baddbmm(first, delta[:, :, -1:], self.Z[:, None, :])
            return [first]
        change = delta[:, :, : len(U)] - self.setting.deltas[self.taken]
        own = delta[:, :, -1].clone() if batch.unknown else delta.new_zeros(count, h)
        return [self._product(change.view(-1, len(U)), U).view(count, h, -1), own]

    def _product(self, left: Tensor, right: Tensor) -> Tensor:
        if not self.setting.half:
            return left @ right
        return (left.bfloat16() @ right.bfloat16()).to(left.dtype)

    def all_targets(self, batch: Batch) -> Tensor:
        _, known = self.setting.rows(batch)
        if not batch.unknown:
            return known[None]
        assert self.targets is not None
        return torch.cat([known.expand(len(self.Z), *known.shape), self.targets[:, :, None]], dim=2)

    def step(self, gradient: Gradient, size: int) -> None:
        """One step of the recipe's optimiser; ``gradient`` is a sum over rows, of which the batch has ``size``."""
        recipe = self.setting.recipe
        gradient = [part / size for part in gradient]
        if recipe.weight_decay:
            for part, parameter in zip(gradient, self.parameters, strict=True):
                part.add_(parameter, alpha=float(recipe.weight_decay))
        self.taken += 1
        if recipe.optimiser == "adam":
            self._adam(gradient)
            return
        if not self.moments:
            self.moments = gradient
        else:
            for moment, part in zip(self.moments, gradient, strict=True):
                moment.mul_(float(recipe.momentum)).add_(part)
        for parameter, moment in zip(self.parameters, self.moments, strict=True):
            parameter.sub_(moment, alpha=float(recipe.learning_rate))

    def _adam(self, gradient: Gradient) -> None:
        if not self.moments:
            self.moments = [torch.zeros_like(part) for part in gradient]
            self.squares = [torch.zeros_like(part) for part in gradient]
        rate = float(self.setting.recipe.learning_rate)
        for parameter, part, moment, square in zip(self.parameters, gradient, self.moments, self.squares, strict=True):
            moment.lerp_(part, 0.1)
            square.mul_(0.999).addcmul_(part, part, value=0.001)
            root = (square / (1 - 0.999**self.taken)).sqrt_().add_(1e-8)
            parameter.addcdiv_(moment, root, value=-rate / (1 - 0.9**self.taken))

    def final(self) -> Tensor:
        """The trained weights less the reference run's, [B, P] in the order of ``model.parameters()``."""
        rest = [part for layer in self.layers for part in layer if part is not None]
        rest = [part - base.to(part) for part, base in zip(rest, self.setting.reference[1:], strict=True)]
        return flat([self._first_difference(), *rest], first_bias=self.setting.recipe.bias != "none")


def predict(loss: str, outputs: Tensor) -> Tensor:
    """What the loss compares with the encoded target, its slope being the difference: [B, k, rows]."""
    if loss == "cross-entropy":
        return torch.softmax(outputs, dim=1)
    return torch.sigmoid(outputs) if loss == "logistic" else outputs


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


def train_group(setting: Setting, Z: Tensor, y: Tensor) -> Tensor:
    """Differences to the reference run [B, P] of models trained on the known rows plus one of ``Z`` each."""
    return train_encoded(setting, Z, encode(setting.recipe, y, setting.widths[-1]).T)


def train_encoded(setting: Setting, Z: Tensor, targets: Tensor) -> Tensor:
    """The same with encoded targets [B, k]."""
    group = Group(setting, Z, targets)
    for batch in setting.batches():
        gradient, _ = group.gradient(batch)
        group.step(gradient, batch.size)
    return group.final()


def reference_weights(setting: Setting) -> Tensor:
    """The reference run's final weights [P], as float64."""
    return flat([part[None] for part in setting.reference], first_bias=setting.recipe.bias != "none")[0]

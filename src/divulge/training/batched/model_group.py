"""Many models trained on the same known rows and one row of their own each, as one tensor program.

All models share the known rows D_-, so the layer-one products with them are one matrix product for the whole group.
With plain or momentum descent only the *difference* to a reference run is kept. The reference run is the same training
with the unknown row's gradient left out.

    W1 = W1_ref + Q V^T + q z^T,     pre-activations A_ref + (Q + q (V^T z)^T) U^T,

where the rows of [X, 1] are U V^T, and V is an orthonormal basis of the space they span. Q moves by (D - D_ref) U and q
by the row's own delta. Nothing is approximated. (Using the rows themselves instead of V would save one of the two large
products a step, and lose three digits in float32.) Adam does not keep this form; it runs on the full weights with the
same code (V = 1, no reference).

Layout: models, then units, then rows of data, so that every elementwise pass is contiguous over the rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from divulge.core.errors import UnsupportedModel, WrongShape
from divulge.core.optim import adam_step
from divulge.core.progress import tick
from divulge.training.batched.activation_derivatives import ACTIVATIONS
from divulge.training.batched.parameter_layout import basis, flat, weights_of
from divulge.training.batched.shared_setup import Batch, SharedSetup, as_mlp, encode
from divulge.training.recipe import Recipe

Gradient = list[Tensor]


def prepare(
    recipe: Recipe,
    known_X: Tensor,
    known_y: Tensor,
    *,
    dtype: torch.dtype,
    position: int | None = None,
    start: nn.Module | None = None,
    half: bool = False,
) -> SharedSetup:
    """The setup that a group shares: coordinates of the known rows, and the reference run on them."""
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
    first = recipe.bias != "none"
    rows = torch.cat([X, X.new_full((len(X), 1), float(first))], dim=1)
    V = basis(rows) if recipe.optimiser == "sgd" else None
    setup = SharedSetup(
        recipe=recipe, widths=widths, dtype=dtype, U=(rows if V is None else rows @ V).to(dtype),
        V=None if V is None else V.to(dtype), half=half and V is not None,
        targets=encode(recipe, known_y, widths[-1]).to(dtype), position=position, start=weights_of(linear),
    )  # fmt: skip
    return _with_reference(setup, rows)


def _with_reference(setup: SharedSetup, rows: Tensor) -> SharedSetup:
    """The setup with the reference run: descent on the known rows, each step divided by the number of all its rows."""
    exact = replace(setup, dtype=torch.float64, U=rows, V=None, half=False, targets=setup.targets.to(torch.float64))
    run = ModelGroup(exact, torch.zeros(1, rows.shape[1] - 1), None)
    weights: list[Tensor | None] = []
    activations, deltas = [], []
    for batch in setup.batches():
        tick()
        if setup.V is not None:
            weights.append(run.parameters[0][0].to(setup.dtype, copy=True) if batch.unknown else None)
        gradient, values = run.gradient(replace(batch, unknown=False))
        if setup.V is not None:
            activations.append(values.pre[0].to(setup.dtype))
            deltas.append(values.delta[0].to(setup.dtype))
        run.step(gradient, batch.size)
    return replace(
        setup, reference=tuple(part[0].clone() for part in run.parameters), weights=tuple(weights),
        activations=tuple(activations), deltas=tuple(deltas),
    )  # fmt: skip


@dataclass
class StepValues:
    """The values of one step's forward and backward pass, over all rows (the unknown one last)."""

    pre: Tensor
    """Layer-one pre-activations [B, h, rows]."""
    hidden: list[Tensor]
    """The outputs of every activation."""
    prediction: Tensor
    """What the loss compares with the targets [B, k, rows]."""
    delta: Tensor
    """The layer-one deltas [B, h, rows]."""


class ModelGroup:
    """Models trained together on the shared rows plus one row each.

    ``parameters`` are batched over the models: Q [B, h, r] and q [B, h] (or W1 [B, h, d + 1] without a basis), then
    W2 [B, out, in], b2 [B, out, 1] and so on.
    """

    def __init__(self, setup: SharedSetup, Z: Tensor, targets: Tensor | None) -> None:
        self.setup = setup
        dtype, count = setup.dtype, len(Z)
        first = setup.recipe.bias != "none"
        self.Z = torch.cat([Z.to(dtype), torch.full((count, 1), float(first), dtype=dtype)], dim=1)
        self.targets = None if targets is None else targets.to(dtype)  # [B, k]
        V = setup.V
        rest = [part.to(dtype).expand(count, *part.shape).clone() for part in setup.start[1:]]
        if V is None:
            self.coordinates = self.Z
            W1 = setup.start[0].to(dtype)
            self.parameters = [W1.expand(count, *W1.shape).clone(), *rest]
        else:
            self.coordinates = self.Z @ V  # V^T z
            h = setup.widths[1]
            self.parameters = [self.Z.new_zeros(count, h, V.shape[1]), self.Z.new_zeros(count, h), *rest]
        self.size = self.Z.square().sum(dim=1)  # |z|^2
        self.activation = ACTIVATIONS[setup.recipe.activation]
        self.taken = 0
        self.moments: list[Tensor] = []
        self.squares: list[Tensor] = []

    @property
    def layers(self) -> list[tuple[Tensor, Tensor | None]]:
        """Weights and bias of the layers after the first."""
        rest = iter(self.parameters[1 if self.setup.V is None else 2 :])
        return [
            (next(rest), next(rest) if self.setup.biased(layer) else None)
            for layer in range(1, len(self.setup.widths) - 1)
        ]

    def first_layer(self) -> Tensor:
        """W1 of each model before the next step [B, h, d + 1]."""
        if self.setup.V is None:
            return self.parameters[0]
        base = self.setup.weights[self.taken]
        assert base is not None
        return base + self._first_difference()

    def _first_difference(self) -> Tensor:
        """W1 minus the reference run's."""
        if self.setup.V is None:
            return self.parameters[0] - self.setup.reference[0].to(self.setup.dtype)
        Q, q = self.parameters[:2]
        return Q @ self.setup.V.T + q[:, :, None] * self.Z[:, None, :]

    def _pre_activations(self, batch: Batch) -> Tensor:
        """Layer one over the known rows and, last, the unknown row [B, h, rows]."""
        U, _ = self.setup.rows(batch)
        count, h = len(self.Z), self.setup.widths[1]
        out = self.Z.new_empty(count, h, len(U) + batch.unknown)
        if self.setup.V is None:
            W = self.parameters[0]
            out[:, :, : len(U)] = (W.reshape(-1, W.shape[2]) @ U.T).view(count, h, len(U))
            if batch.unknown:
                out[:, :, -1] = (W @ self.Z[:, :, None])[:, :, 0]
            return out
        Q, q = self.parameters[:2]
        shift = torch.baddbmm(Q, q[:, :, None], self.coordinates[:, None, :])  # Q + q (V^T z)^T
        products = self._product(shift.view(-1, shift.shape[2]), U.T).view(count, h, len(U))
        torch.add(products, self.setup.activations[self.taken], out=out[:, :, : len(U)])
        if batch.unknown:
            base = self.setup.weights[self.taken]
            assert base is not None
            own = self.Z @ base.T
            own += (Q @ self.coordinates[:, :, None])[:, :, 0] + q * self.size[:, None]
            out[:, :, -1] = own
        return out

    def gradient(self, batch: Batch) -> tuple[Gradient, StepValues]:
        """The gradient of the batch's summed loss (in coordinates), and the values of the pass."""
        loss, targets = self.setup.recipe.loss, self.with_own_targets(self.setup.rows(batch)[1], batch)
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
        return [*first, *reversed(parts)], StepValues(pre, hidden, prediction, delta)

    def _first_gradient(self, delta: Tensor, batch: Batch) -> Gradient:
        U, _ = self.setup.rows(batch)
        count, h, _ = delta.shape
        if self.setup.V is None:
            known = delta[:, :, : len(U)]
            first = (known.reshape(count * h, len(U)) @ U).view(count, h, -1)
            if batch.unknown:
                first = torch.baddbmm(first, delta[:, :, -1:], self.Z[:, None, :])
            return [first]
        change = delta[:, :, : len(U)] - self.setup.deltas[self.taken]
        own = delta[:, :, -1].clone() if batch.unknown else delta.new_zeros(count, h)
        return [self._product(change.view(count * h, len(U)), U).view(count, h, -1), own]

    def _product(self, left: Tensor, right: Tensor) -> Tensor:
        if not self.setup.half:
            return left @ right
        return (left.bfloat16() @ right.bfloat16()).to(left.dtype)

    def with_own_targets(self, known: Tensor, batch: Batch) -> Tensor:
        """Targets of known rows [k, rows], with each model's own target appended where the batch has it."""
        if not batch.unknown:
            return known[None]
        assert self.targets is not None
        return torch.cat([known.expand(len(self.Z), *known.shape), self.targets[:, :, None]], dim=2)

    def step(self, gradient: Gradient, size: int) -> None:
        """One step of the recipe's optimiser; ``gradient`` is a sum over the ``size`` rows of the batch."""
        recipe = self.setup.recipe
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
        rate = float(self.setup.recipe.learning_rate)
        for parameter, part, moment, square in zip(self.parameters, gradient, self.moments, self.squares, strict=True):
            adam_step(parameter, part, moment, square, self.taken, rate)

    def final(self) -> Tensor:
        """The trained weights minus the reference run's [B, P], in the order of ``model.parameters()``."""
        rest = [part for layer in self.layers for part in layer if part is not None]
        rest = [part - base.to(part) for part, base in zip(rest, self.setup.reference[1:], strict=True)]
        return flat([self._first_difference(), *rest], first_bias=self.setup.recipe.bias != "none")


def predict(loss: str, outputs: Tensor) -> Tensor:
    """What the loss compares with the encoded targets [B, k, rows]; the difference is the loss's slope."""
    if loss == "cross-entropy":
        return torch.softmax(outputs, dim=1)
    return torch.sigmoid(outputs) if loss == "logistic" else outputs


def train_group(setup: SharedSetup, Z: Tensor, y: Tensor) -> Tensor:
    """Models trained on the known rows plus one row of ``Z`` each, as differences to the reference run [B, P]."""
    return train_encoded(setup, Z, encode(setup.recipe, y, setup.widths[-1]).T)


def train_encoded(setup: SharedSetup, Z: Tensor, targets: Tensor) -> Tensor:
    """The same with encoded targets [B, k]."""
    group = ModelGroup(setup, Z, targets)
    for batch in setup.batches():
        tick()
        gradient, _ = group.gradient(batch)
        group.step(gradient, batch.size)
    return group.final()

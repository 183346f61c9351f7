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

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from divulge.errors import UnsupportedModel, WrongShape
from divulge.informed.activations import ACTIVATIONS
from divulge.informed.setting import Batch, Setting, as_mlp, basis, encode, flat, weights_of
from divulge.progress import tick
from divulge.training import Recipe

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
    first = recipe.bias != "none"
    rows = torch.cat([X, X.new_full((len(X), 1), float(first))], dim=1)
    V = basis(rows) if recipe.optimiser == "sgd" else None
    setting = Setting(
        recipe=recipe, widths=widths, dtype=dtype, U=(rows if V is None else rows @ V).to(dtype),
        V=None if V is None else V.to(dtype), half=half and V is not None,
        targets=encode(recipe, known_y, widths[-1]).to(dtype), position=position, start=weights_of(linear),
    )  # fmt: skip
    return _with_reference(setting, rows)


def _with_reference(setting: Setting, rows: Tensor) -> Setting:
    """Run descent on the known rows alone (each step still divided by all its rows) and keep what the models need."""
    exact = replace(setting, dtype=torch.float64, U=rows, V=None, half=False, targets=setting.targets.to(torch.float64))
    run = Group(exact, torch.zeros(1, rows.shape[1] - 1), None)
    weights: list[Tensor | None] = []
    activations, deltas = [], []
    for batch in setting.batches():
        tick()
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
        loss, targets = self.setting.recipe.loss, self.and_own(self.setting.rows(batch)[1], batch)
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

    def and_own(self, known: Tensor, batch: Batch) -> Tensor:
        """Targets of known rows [k, rows] and, where the batch has it, each model's own last [B, k, rows + 1]."""
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


def train_group(setting: Setting, Z: Tensor, y: Tensor) -> Tensor:
    """Differences to the reference run [B, P] of models trained on the known rows plus one of ``Z`` each."""
    return train_encoded(setting, Z, encode(setting.recipe, y, setting.widths[-1]).T)


def train_encoded(setting: Setting, Z: Tensor, targets: Tensor) -> Tensor:
    """The same with encoded targets [B, k]."""
    group = Group(setting, Z, targets)
    for batch in setting.batches():
        tick()
        gradient, _ = group.gradient(batch)
        group.step(gradient, batch.size)
    return group.final()

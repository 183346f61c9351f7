"""Training of any differentiable network as a function of one of its rows, with derivatives by torch.func.

``derivatives`` writes the derivatives of multilayer perceptrons under plain descent out by hand and works on many rows
at once. This module covers everything else: convolutional networks, Adam, AdamW, RMSprop, Nesterov's momentum,
schedules, and private training. Per-example clipping is
differentiated too; the noise is left out, because the adversary does not know it. A step is a function of the
optimiser's state and a gradient. The gradient is a sum over the known rows (a function of the weights alone) and the
unknown row. J dz is the derivative carried along the steps, J^T r the same in reverse. Rows are processed one by one.

For pictures, products with the known rows' Hessian are differences of two gradients, one of which is kept from the run.
That takes a quarter to a half of the time of the exact product, at a relative error of 1e-3 in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from divulge.core.errors import UnsupportedModel
from divulge.core.optim import ADDED, BETAS, SMOOTHING
from divulge.core.progress import tick
from divulge.training import Recipe, shaped
from divulge.training.batched.shared_setup import Batch, batches, encode

State = tuple[Tensor, ...]
"""All weights as one vector, and the optimiser's moments in the same form."""
_BYTES = 1.5e9  # memory for the kept states of one group of rows
_NORM_ADDED = 1e-6  # added to a gradient's norm before it is clipped, as in private training


@dataclass(frozen=True)
class UnrolledTraining:
    """A recipe's training on the known rows and one more."""

    recipe: Recipe
    model: nn.Module
    X: Tensor
    targets: Tensor
    """The known rows' encoded targets [n, k]."""
    start: Tensor
    steps: tuple[Batch, ...]
    reference: Tensor
    """The weights that training ends at when the unknown row's gradient is left out [P], float64."""

    @classmethod
    def of(
        cls, recipe: Recipe, X: Tensor, y: Tensor, *, dtype: torch.dtype, position: int | None, start: nn.Module | None
    ) -> UnrolledTraining:
        """From the known rows; ``position`` is the unknown row's index in the training set."""
        if recipe.privacy is not None and recipe.batch_size is not None and recipe.batch_size <= len(X):
            raise UnsupportedModel("Private training samples its batches in secret; no run repeats them.")
        model = (recipe.initial_model() if start is None else start).to(dtype).eval()
        if any(True for _ in model.buffers()) or any(isinstance(layer, _DropoutNd) for layer in model.modules()):
            raise UnsupportedModel(
                "Training with batch normalisation or dropout cannot be inverted: the former is no sum over rows, and "
                "the masks of the latter are unknown."
            )
        rows = shaped(X.to(dtype), model)
        with torch.no_grad():
            outputs = model(rows[:1]).shape[1]
        training = cls(
            recipe, model, rows, encode(recipe, y, outputs).T.to(dtype),
            torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]),
            tuple(batches(recipe, len(X), len(X) if position is None else position)), torch.zeros(0),
        )  # fmt: skip
        known = replace(training, steps=tuple(replace(batch, unknown=False) for batch in training.steps))
        return replace(training, reference=known._descend(rows[0], training.targets[0]).to(torch.float64))

    @property
    def dtype(self) -> torch.dtype:
        return self.X.dtype

    @property
    def inputs(self) -> int:
        return self.X[0].numel()

    @property
    def outputs(self) -> int:
        return self.targets.shape[1]

    @property
    def together(self) -> int:
        """How many rows a search holds in memory at once."""
        kept = len(self.steps) * (1 + self.by_differences + len(self.initial())) * self.start.numel()
        return max(1, int(_BYTES / (kept * self.start.element_size())))

    @property
    def by_differences(self) -> bool:
        """Whether products with the known rows' Hessian are differences of gradients: for pictures, whose gradients are
        dear. Sums of clipped gradients have no symmetric derivative."""
        return self.X.dim() > 2 and self.recipe.privacy is None

    def train(self, Z: Tensor, targets: Tensor) -> Tensor:
        """The weights that each row and encoded target lead to, minus the reference [B, P]."""
        rows = [self._descend(z, target) for z, target in zip(self._rows(Z), targets.to(self.dtype), strict=True)]
        return (torch.stack(rows).to(torch.float64) - self.reference).to(self.dtype)

    def run(self, Z: Tensor, targets: Tensor) -> Run:
        """The same run, kept for products with its derivative."""
        return Run(self, self._rows(Z), targets.to(self.dtype))

    def _rows(self, Z: Tensor) -> Tensor:
        return Z.to(self.dtype).reshape(len(Z), *self.X.shape[1:])

    def _descend(self, z: Tensor, target: Tensor) -> Tensor:
        state = self.initial()
        for number in range(len(self.steps)):
            tick()
            state = self.update(number)(state, self.gradient(number, state[0], z, target))
        return state[0]

    def initial(self) -> State:
        """The optimiser before its first step."""
        moments = 1 if self.recipe.optimiser == "sgd" else 2
        return (self.start, *(torch.zeros_like(self.start) for _ in range(moments)))

    def update(self, number: int) -> Callable[[State, Tensor], State]:
        """One step of the optimiser as a function of its state and the gradient of the loss."""
        recipe = self.recipe
        rate = recipe.rate(number, len(self.steps))
        decay, momentum = float(recipe.weight_decay), float(recipe.momentum)

        def take(state: State, gradient: Tensor) -> State:
            theta = state[0]
            if recipe.optimiser == "adamw":
                theta = theta * (1 - rate * decay)
            else:
                gradient = gradient + decay * theta
            if recipe.optimiser in ("adam", "adamw"):
                mean = BETAS[0] * state[1] + (1 - BETAS[0]) * gradient
                square = BETAS[1] * state[2] + (1 - BETAS[1]) * gradient.square()
                step = _over_root(mean, square, (1 - BETAS[1] ** (number + 1)) ** 0.5) / (1 - BETAS[0] ** (number + 1))
                return theta - rate * step, mean, square
            if recipe.optimiser == "rmsprop":
                square = SMOOTHING * state[2] + (1 - SMOOTHING) * gradient.square()
                velocity = momentum * state[1] + _over_root(gradient, square, 1.0)
                return theta - rate * velocity, velocity, square
            velocity = momentum * state[1] + gradient
            return theta - rate * (gradient + momentum * velocity if recipe.nesterov else velocity), velocity

        return take

    def gradient(self, number: int, theta: Tensor, z: Tensor, target: Tensor) -> Tensor:
        """The gradient of a step's mean loss; under private training, the mean of clipped gradients."""
        return self.parts(number, theta, z, target)[0]

    def parts(self, number: int, theta: Tensor, z: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient of a step, and the known rows' share in it."""
        known = self.known(number)(theta).detach()
        if not self.steps[number].unknown:
            return known, known
        return (known + self.own(number, target)(theta, z)).detach(), known

    def known(self, number: int) -> Callable[[Tensor], Tensor]:
        """The known rows' share in a step's gradient, as a function of the weights."""
        batch = self.steps[number]
        rows = self.X if batch.known is None else self.X[batch.known]
        targets = self.targets if batch.known is None else self.targets[batch.known]
        return lambda theta: self._summed(theta, rows, targets) / batch.size

    def product(self, number: int, theta: Tensor, known: Tensor, direction: Tensor) -> Tensor:
        """The Hessian of the known rows' loss times a direction, where ``known`` is its gradient."""
        size = direction.norm()
        if not bool(size > 0):
            return torch.zeros_like(direction)
        length = torch.finfo(self.dtype).eps ** 0.5 * theta.norm() / size
        moved: Tensor = (self.known(number)(theta + length * direction).detach() - known) / length
        return moved

    def own(self, number: int, target: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        """The unknown row's share, as a function of the weights and the row."""
        size = self.steps[number].size
        return lambda theta, z: self._summed(theta, z[None], target[None]) / size

    def _summed(self, theta: Tensor, rows: Tensor, targets: Tensor) -> Tensor:
        grad: Any = torch.func.grad
        if self.recipe.privacy is None:
            whole: Tensor = grad(self._loss)(theta, rows, targets)
            return whole
        each = torch.func.vmap(grad(self._loss), (None, 0, 0))(theta, rows[:, None], targets[:, None])
        norms = (each.square().sum(dim=1) + torch.finfo(self.dtype).tiny).sqrt()
        factors = (self.recipe.privacy.clip / (norms + _NORM_ADDED)).clamp(max=1.0)
        clipped: Tensor = factors @ each
        return clipped

    def _loss(self, theta: Tensor, rows: Tensor, targets: Tensor) -> Tensor:
        outputs: Tensor = torch.func.functional_call(self.model, named(self.model, theta), (rows,))
        return self.recipe.loss_of(outputs, targets, "sum")


def _over_root(part: Tensor, square: Tensor, corrected: float) -> Tensor:
    """A gradient or its mean over the root of the mean square; 0 where that is 0, since the root has no slope there."""
    moved = square > 0
    root = torch.where(moved, square, 1.0).sqrt() / corrected + ADDED
    return torch.where(moved, part / root, 0.0)


def named(model: nn.Module, theta: Tensor) -> dict[str, Tensor]:
    """A flat vector as the model's parameters by name."""
    parts, place = {}, 0
    for name, parameter in model.named_parameters():
        parts[name] = theta[place : place + parameter.numel()].reshape(parameter.shape)
        place += parameter.numel()
    return parts


class Run:
    """One training run for each row, with every step's state kept.

    ``theta`` is the difference to the reference run [B, P].
    """

    share = 1.0

    def __init__(self, training: UnrolledTraining, Z: Tensor, targets: Tensor) -> None:
        self.training, self.Z, self.targets = training, Z.clone(), targets
        self.kept: list[list[tuple[State, Tensor, Tensor | None]]] = []
        ends = []
        for z, target in zip(Z, targets, strict=True):
            state, kept = training.initial(), []
            for number in range(len(training.steps)):
                tick()
                gradient, known = training.parts(number, state[0], z, target)
                kept.append((state, gradient, known if training.by_differences else None))
                state = training.update(number)(state, gradient)
            self.kept.append(kept)
            ends.append(state[0])
        self.theta = (torch.stack(ends).to(torch.float64) - training.reference).to(training.dtype)

    def forward(self, dZ: Tensor) -> Tensor:
        """J dz for each row: [B, P]."""
        training = self.training
        jvp: Any = torch.func.jvp
        moved = []
        for row, dz in enumerate(dZ.reshape(self.Z.shape)):
            change = tuple(torch.zeros_like(part) for part in self.kept[row][0][0])
            for number, (state, gradient, known) in enumerate(self.kept[row]):
                tick()
                if known is None:
                    _, shift = jvp(training.known(number), (state[0],), (change[0],))
                else:
                    shift = training.product(number, state[0], known, change[0])
                if training.steps[number].unknown:
                    own = training.own(number, self.targets[row])
                    shift = shift + jvp(own, (state[0], self.Z[row]), (change[0], dz))[1]
                _, change = jvp(training.update(number), (state, gradient), (change, shift))
            moved.append(change[0].detach())
        return torch.stack(moved)

    def backward(self, residual: Tensor) -> Tensor:
        """J^T r for each row: [B, d]."""
        training = self.training
        vjp: Any = torch.func.vjp
        moved = []
        for row, r in enumerate(residual):
            pull = (r, *(torch.zeros_like(part) for part in self.kept[row][0][0][1:]))
            total = torch.zeros_like(self.Z[row])
            for number in reversed(range(len(self.kept[row]))):
                tick()
                state, gradient, known = self.kept[row][number]
                pull, shift = vjp(training.update(number), state, gradient)[1](pull)
                if known is None:
                    (back,) = vjp(training.known(number), state[0])[1](shift)
                else:
                    back = training.product(number, state[0], known, shift)
                if training.steps[number].unknown:
                    own = training.own(number, self.targets[row])
                    theta, change = vjp(own, state[0], self.Z[row])[1](shift)
                    back, total = back + theta, total + change
                pull = (pull[0] + back, *pull[1:])
            moved.append(total.reshape(-1).detach())
        return torch.stack(moved)

    def replace(self, rows: Tensor, other: Run, chosen: Tensor) -> None:
        """Put the chosen runs of ``other`` into the given places of this group."""
        for mine, theirs in zip(rows.tolist(), torch.nonzero(chosen)[:, 0].tolist(), strict=True):
            self.kept[mine] = other.kept[theirs]
        self.Z[rows], self.theta[rows] = other.Z[chosen], other.theta[chosen]

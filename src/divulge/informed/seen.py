"""What an informed adversary sees of a released model: its weights, some layers of them, or its logits on probe rows.

Either way it is a vector of features, compared with those of the reference weights, and its derivative in the weights
is known, so that every attack on the weights is one on the features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from divulge.errors import InvalidInput, NonFiniteInput, WrongShape
from divulge.informed.gauss_newton import Trained
from divulge.informed.unrolled import named
from divulge.training import Recipe, shaped

Access = Literal["weights", "logits"]
_CHUNK = 64  # models whose logits are computed at once


@dataclass(frozen=True)
class Sight:
    """Features of a model, as differences to those of the ``reference`` weights [P]."""

    reference: Tensor
    model: nn.Module
    """The recipe's model in float64, for its shape."""
    dtype: torch.dtype
    """What the released model is asked in."""
    chosen: Tensor | None = None
    """Which weights are seen; None for all of them."""
    probes: Tensor | None = None
    """The rows whose logits are seen instead, shaped as the model takes them."""

    def of(self, released: Any) -> Tensor:
        """A released model's features less the reference's, float64 [F]."""
        if self.probes is not None:
            seen = answers(released)(self.probes.to(self.dtype)).detach().to(torch.float64).reshape(-1)
            expected = self._base.numel()
        else:
            seen = released.reshape(-1).double() if isinstance(released, Tensor) else flat_weights(released)
            expected = len(self.reference)
        if len(seen) != expected:
            raise WrongShape(
                f"The released model shows {len(seen)} numbers where this recipe's has {expected}: "
                "another architecture."
            )
        if not bool(seen.isfinite().all()):
            raise NonFiniteInput("The released model holds NaN or infinite values.")
        return seen - self._base if self.probes is not None else self.image(seen - self.reference)

    @property
    def _base(self) -> Tensor:
        return self._logits(self.reference)

    def image(self, differences: Tensor) -> Tensor:
        """Features of weights given as differences to the reference, less the reference's: [..., P] to [..., F]."""
        if self.probes is None:
            return differences if self.chosen is None else differences[..., self.chosen]
        theta = self.reference + differences.to(torch.float64).reshape(-1, len(self.reference))
        base = self._base
        parts = [torch.func.vmap(self._logits)(part) - base for part in torch.split(theta, _CHUNK)]
        return torch.cat(parts).to(differences.dtype).reshape(*differences.shape[:-1], -1)

    def by_layer(self, features: Tensor) -> Tensor:
        """Features [F] or [N, F] with each layer's share scaled to length one, float32 [N, F]: which layers moved how
        much says nothing about the label, and how each moved does."""
        rows = features.reshape(-1, features.shape[-1])
        if self.probes is not None:
            return normalize(rows, dim=1).to(torch.float32)
        owner = _owners(self.model)
        owner = owner if self.chosen is None else owner[self.chosen]
        parts = [normalize(rows[:, owner == layer], dim=1) for layer in torch.unique(owner)]
        return torch.cat(parts, dim=1).to(torch.float32)

    def through(self, run: Trained) -> Trained:
        """A training run as the adversary sees where it ends, with all weights or with logits."""
        return run if self.probes is None else _Seen(self, run)

    def outputs(self, theta: Tensor, rows: Tensor) -> Tensor:
        """What the model answers under these weights [P] to rows in float64, shaped as it takes them."""
        answered: Tensor = torch.func.functional_call(self.model, named(self.model, theta), (rows,))
        return answered

    def _logits(self, theta: Tensor) -> Tensor:
        assert self.probes is not None
        return self.outputs(theta, self.probes).reshape(-1)


class _Seen:
    """A run whose ``theta`` and derivatives are those of the logits."""

    def __init__(self, sight: Sight, run: Trained) -> None:
        self.sight, self.run = sight, run
        self.weights = run.theta.clone()
        self.theta = sight.image(run.theta)

    @property
    def share(self) -> float:
        return self.run.share

    def forward(self, dZ: Tensor) -> Tensor:
        moved = self.run.forward(dZ)
        jvp: Any = torch.func.jvp
        push = torch.func.vmap(lambda theta, change: jvp(self.sight._logits, (theta,), (change,))[1])
        image: Tensor = push(self._theta(), moved.double())
        return image.to(moved.dtype)

    def backward(self, residual: Tensor) -> Tensor:
        vjp: Any = torch.func.vjp
        pull = torch.func.vmap(lambda theta, change: vjp(self.sight._logits, theta)[1](change)[0])
        return self.run.backward(pull(self._theta(), residual.double()).to(residual.dtype))

    def replace(self, rows: Tensor, other: _Seen, chosen: Tensor) -> None:
        self.run.replace(rows, other.run, chosen)
        self.weights[rows], self.theta[rows] = other.weights[chosen], other.theta[chosen]

    def _theta(self) -> Tensor:
        return self.sight.reference + self.weights.double()


def sight(
    recipe: Recipe, reference: Tensor, *, layers: Sequence[int] | None = None, probes: Tensor | None = None
) -> Sight:
    """What is seen: all weights, those of the layers with these numbers, or the logits on these probes."""
    model = recipe.initial_model().to(torch.float64).eval().requires_grad_(requires_grad=False)
    chosen = None if layers is None else _places(model, layers)
    return Sight(
        reference, model, recipe.dtype, chosen, None if probes is None else shaped(probes.to(torch.float64), model)
    )


def probe_rows(probes: Any, X: Tensor) -> Tensor:
    """Rows given as such, or a number of rows to take of ``X``."""
    if isinstance(probes, int):
        if probes < 1:
            raise InvalidInput(f"probes is a positive number of rows, or the rows themselves; got {probes}.")
        return X[:probes]
    rows = torch.as_tensor(probes).to(X)
    if rows.ndim < 2 or rows[0].numel() != X[0].numel():
        raise WrongShape(f"Probe rows have {X[0].numel()} features, like the other rows; got {tuple(rows.shape)}.")
    return rows


def flat_weights(model: nn.Module) -> Tensor:
    """All parameters of a model as one float64 vector."""
    return torch.cat([parameter.detach().reshape(-1).to(torch.float64) for parameter in model.parameters()])


def answers(released: Any) -> Callable[[Tensor], Tensor]:
    """How to ask the released model for its outputs: an oracle, a module or a function."""
    if hasattr(released, "value") and hasattr(released, "ledger"):
        return lambda rows: torch.as_tensor(released.value(rows.flatten(1)))
    if isinstance(released, nn.Module):

        def ask(rows: Tensor) -> Tensor:
            dtype = next(released.parameters()).dtype
            with torch.no_grad():
                outputs: Tensor = released(shaped(rows.to(dtype), released))
            return outputs

        return ask
    if callable(released):
        return lambda rows: torch.as_tensor(released(rows))
    raise InvalidInput("Black-box access needs an oracle, a model or a function that answers rows with logits.")


def _owners(model: nn.Module) -> Tensor:
    """The number of the layer that each weight belongs to [P]."""
    names = [name.rsplit(".", 1)[0] for name, _ in model.named_parameters()]
    order = list(dict.fromkeys(names))
    sizes = [parameter.numel() for parameter in model.parameters()]
    return torch.cat([torch.full((size,), order.index(name)) for name, size in zip(names, sizes, strict=True)])


def _places(model: nn.Module, layers: Sequence[int]) -> Tensor:
    """The places of these layers' weights among all weights."""
    owner = _owners(model)
    if not layers or any(not 0 <= layer <= int(owner[-1]) for layer in layers):
        raise InvalidInput(f"layers are numbers from 0 to {int(owner[-1])}; got {list(layers)}.")
    return torch.nonzero(torch.isin(owner, torch.tensor(list(layers))))[:, 0]

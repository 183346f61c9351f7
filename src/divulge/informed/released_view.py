"""What an adversary sees of a released model: its weights, the weights of some layers, or its logits on probe rows.

Either way it is a vector of features, taken as a difference to the features of the reference weights. Its derivative in
the weights is known, so every attack on the weights works on the features too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from divulge.core.errors import InvalidInput, NonFiniteInput, WrongShape
from divulge.informed.inversion.gauss_newton import DifferentiableRun
from divulge.informed.inversion.unrolled import named
from divulge.training import Recipe, shaped

Access = Literal["weights", "logits"]
_CHUNK = 64  # models whose logits are computed at once


@dataclass(frozen=True)
class ReleasedView:
    """Features of a model, as differences to those of the ``reference`` weights [P]."""

    reference: Tensor
    """The weights that training ends at when the unknown row's gradient is left out [P]."""
    model: nn.Module
    """The recipe's model in float64, for its shape."""
    dtype: torch.dtype
    """The precision in which the released model is queried."""
    chosen: Tensor | None = None
    """Indices of the visible weights; None for all of them."""
    probes: Tensor | None = None
    """The rows whose logits are visible instead, shaped as the model takes them."""

    def of(self, released: Any) -> Tensor:
        """A released model's features minus the reference's, float64 [F]."""
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
        """Differences of weights [..., P] as differences of features [..., F]."""
        if self.probes is None:
            return differences if self.chosen is None else differences[..., self.chosen]
        theta = self.reference + differences.to(torch.float64).reshape(-1, len(self.reference))
        base = self._base
        parts = [torch.func.vmap(self._logits)(part) - base for part in torch.split(theta, _CHUNK)]
        return torch.cat(parts).to(differences.dtype).reshape(*differences.shape[:-1], -1)

    def by_layer(self, features: Tensor) -> Tensor:
        """Features [F] or [N, F] with each layer's part normalised, float32 [N, F].

        How far each layer moved does not depend on the label; the direction in which it moved does.
        """
        rows = features.reshape(-1, features.shape[-1])
        if self.probes is not None:
            return normalize(rows, dim=1).to(torch.float32)
        owner = _owners(self.model)
        owner = owner if self.chosen is None else owner[self.chosen]
        parts = [normalize(rows[:, owner == layer], dim=1) for layer in torch.unique(owner)]
        return torch.cat(parts, dim=1).to(torch.float32)

    def of_run(self, run: DifferentiableRun) -> DifferentiableRun:
        """A training run whose end is seen through this view (all weights, or logits)."""
        return run if self.probes is None else _RunOfLogits(self, run)

    def outputs(self, theta: Tensor, rows: Tensor) -> Tensor:
        """The model's outputs under the weights ``theta`` [P] for float64 rows, shaped as it takes them."""
        answered: Tensor = torch.func.functional_call(self.model, named(self.model, theta), (rows,))
        return answered

    def _logits(self, theta: Tensor) -> Tensor:
        assert self.probes is not None
        return self.outputs(theta, self.probes).reshape(-1)


class _RunOfLogits:
    """A run whose ``theta`` and derivatives are those of the logits."""

    def __init__(self, view: ReleasedView, run: DifferentiableRun) -> None:
        self.view, self.run = view, run
        self.weights = run.theta.clone()
        self.theta = view.image(run.theta)

    @property
    def share(self) -> float:
        return self.run.share

    def forward(self, dZ: Tensor) -> Tensor:
        moved = self.run.forward(dZ)
        jvp: Any = torch.func.jvp
        push = torch.func.vmap(lambda theta, change: jvp(self.view._logits, (theta,), (change,))[1])
        image: Tensor = push(self._theta(), moved.double())
        return image.to(moved.dtype)

    def backward(self, residual: Tensor) -> Tensor:
        vjp: Any = torch.func.vjp
        pull = torch.func.vmap(lambda theta, change: vjp(self.view._logits, theta)[1](change)[0])
        return self.run.backward(pull(self._theta(), residual.double()).to(residual.dtype))

    def replace(self, rows: Tensor, other: _RunOfLogits, chosen: Tensor) -> None:
        self.run.replace(rows, other.run, chosen)
        self.weights[rows], self.theta[rows] = other.weights[chosen], other.theta[chosen]

    def _theta(self) -> Tensor:
        return self.view.reference + self.weights.double()


def released_view(
    recipe: Recipe, reference: Tensor, *, layers: Sequence[int] | None = None, probes: Tensor | None = None
) -> ReleasedView:
    """The view of all weights, of the weights of ``layers``, or of the logits on ``probes``."""
    model = recipe.initial_model().to(torch.float64).eval().requires_grad_(requires_grad=False)
    chosen = None if layers is None else _places(model, layers)
    return ReleasedView(
        reference, model, recipe.dtype, chosen, None if probes is None else shaped(probes.to(torch.float64), model)
    )


def probe_rows(probes: Any, X: Tensor) -> Tensor:
    """The rows given as ``probes``, or that many of the rows ``X``."""
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
    """A function from rows to the outputs of an oracle, a module or a function."""
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
    """The indices of these layers' weights among all weights."""
    owner = _owners(model)
    if not layers or any(not 0 <= layer <= int(owner[-1]) for layer in layers):
        raise InvalidInput(f"layers are numbers from 0 to {int(owner[-1])}; got {list(layers)}.")
    return torch.nonzero(torch.isin(owner, torch.tensor(list(layers))))[:, 0]

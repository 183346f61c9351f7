"""Clipped per-example gradients, summed, without ever holding one example's gradient.

For a linear layer with input h and back-propagated error e, one example's gradient is the outer product of e and
(h, 1), so its squared norm is |e|^2 (|h|^2 + 1) ("ghost clipping"). Summed over the layers that gives every example's
norm from one forward and one backward sweep; scaling the errors and multiplying once more gives the clipped sum.

Everything carries a leading axis of models, so that many networks with the same shape train as one tensor program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from divulge.errors import UnsupportedModel
from divulge.models import MLP
from divulge.training import Loss

Slope = Callable[[Tensor, Tensor], Tensor]
_ACTIVATIONS: dict[
    str, tuple[Callable[[Tensor], Tensor], Slope]
] = {  # the function, and its slope from (input, output)
    "relu": (torch.relu, lambda a, h: (a > 0).to(a.dtype)),
    "elu": (functional.elu, lambda a, h: 1 + h.clamp(max=0)),
    "tanh": (torch.tanh, lambda a, h: 1 - h * h),
    "sigmoid": (torch.sigmoid, lambda a, h: h * (1 - h)),
    "softplus": (functional.softplus, lambda a, h: torch.sigmoid(a)),
}


@dataclass
class Stack:
    """B multilayer perceptrons of one shape: weights [B, out, in] and biases [B, out] (or None) of each layer."""

    weights: list[Tensor]
    biases: list[Tensor | None]
    activation: str

    @classmethod
    def of(cls, model: nn.Module, copies: int = 1) -> Stack:
        """``copies`` of one MLP."""
        if not isinstance(model, MLP):
            raise UnsupportedModel(
                f"Ghost clipping is written for divulge.models.MLP; got {type(model).__name__}. Train it with batches, "
                "which goes through Opacus."
            )
        layers = [layer for layer in model if isinstance(layer, nn.Linear)]
        return cls(
            [layer.weight.detach().expand(copies, -1, -1).clone() for layer in layers],
            [None if layer.bias is None else layer.bias.detach().expand(copies, -1).clone() for layer in layers],
            str(model.spec["activation"]),
        )

    def parameters(self) -> list[Tensor]:
        """The tensors in the order of ``model.parameters()``, each with its axis of models."""
        pairs = zip(self.weights, self.biases, strict=True)
        return [tensor for pair in pairs for tensor in pair if tensor is not None]

    def flat(self) -> Tensor:
        """All parameters of each model in one row, [B, P]."""
        return torch.cat([tensor.flatten(1) for tensor in self.parameters()], dim=1)


def clipped_sum(
    stack: Stack, parts: Sequence[tuple[Tensor, Tensor]], loss: Loss, clip: float | None
) -> tuple[list[Tensor], Tensor]:
    """The sum over examples of each one's gradient clipped to norm ``clip``, and the norms [B, n] before clipping.

    ``parts`` are batches of inputs and targets: [1, n, d] and [1, n] for examples that every model shares, [B, n, d]
    and [B, n] for each model's own. ``clip=None`` sums plain gradients. The gradients come in the order of
    ``stack.parameters()``.
    """
    totals: list[Tensor] | None = None
    norms = []
    for X, y in parts:
        gradients, part_norms = _clipped_part(stack, X, y, loss, clip)
        totals = gradients if totals is None else [a + b for a, b in zip(totals, gradients, strict=True)]
        norms.append(part_norms)
    assert totals is not None
    return totals, torch.cat(norms, dim=1)


def _clipped_part(stack: Stack, X: Tensor, y: Tensor, loss: Loss, clip: float | None) -> tuple[list[Tensor], Tensor]:
    function, slope = _ACTIVATIONS[stack.activation]
    inputs, slopes, hidden = [], [], X
    for depth, (W, b) in enumerate(zip(stack.weights, stack.biases, strict=True)):
        inputs.append(hidden)
        before = torch.matmul(hidden, W.mT)
        if b is not None:
            before += b[:, None]
        if depth + 1 < len(stack.weights):
            hidden = function(before)
            slopes.append(slope(before, hidden))
    errors = [output_error(loss, before, y)]
    for W, s in zip(reversed(stack.weights[1:]), reversed(slopes), strict=True):
        errors.append(torch.bmm(errors[-1], W).mul_(s))
    errors.reverse()
    squares = torch.stack(
        [
            e.square().sum(-1) * (h.square().sum(-1) + (0 if b is None else 1))
            for e, h, b in zip(errors, inputs, stack.biases, strict=True)
        ]
    )
    norms = squares.sum(dim=0).sqrt()
    if clip is not None:
        factors = (clip / (norms + 1e-6)).clamp(max=1.0)[..., None]  # the small constant as in Opacus
        errors = [e * factors for e in errors]
    gradients = []
    for e, h, b in zip(errors, inputs, stack.biases, strict=True):
        gradients.append(torch.matmul(e.mT, h))
        if b is not None:
            gradients.append(e.sum(dim=1))
    return gradients, norms


def output_error(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """The gradient of each example's loss with respect to its outputs [B, n, k]."""
    if loss == "cross-entropy":
        truth = functional.one_hot(targets, outputs.shape[-1]) if targets.ndim == 2 else targets
        return torch.softmax(outputs, dim=-1) - truth.to(outputs.dtype)
    if loss == "logistic":
        sign = torch.where(targets > 0, 1.0, -1.0).to(outputs.dtype)[..., None]
        return -sign * torch.sigmoid(-sign * outputs)
    if outputs.shape[-1] > 1 and targets.ndim == 2:
        targets = functional.one_hot(targets.long(), outputs.shape[-1])
    return outputs - targets.to(outputs.dtype).reshape(*targets.shape[:2], -1)

"""Activations with their first and second derivatives, as the hand-written sweeps through training need them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Activation:
    """``forward(a)`` gives the value and the slope; ``slope(value)`` the slope again, where only the value was kept;
    ``curvature(value, slope)`` the second derivative."""

    forward: Callable[[Tensor], tuple[Tensor, Tensor]]
    slope: Callable[[Tensor], Tensor]
    curvature: Callable[[Tensor, Tensor], Tensor]


def _relu(a: Tensor) -> tuple[Tensor, Tensor]:
    return torch.relu(a), (a > 0).to(a.dtype)


def _elu(a: Tensor) -> tuple[Tensor, Tensor]:
    slope = a.clamp(max=0).exp_()  # 1 on the positive side
    return a.clamp(min=0).add_(slope).sub_(1), slope


def _tanh(a: Tensor) -> tuple[Tensor, Tensor]:
    value = torch.tanh(a)
    return value, 1 - value * value


def _sigmoid(a: Tensor) -> tuple[Tensor, Tensor]:
    value = torch.sigmoid(a)
    return value, value * (1 - value)


def _softplus(a: Tensor) -> tuple[Tensor, Tensor]:
    return functional.softplus(a), torch.where(a > 20, 1.0, torch.sigmoid(a))  # torch's is the identity above 20


def _softplus_slope(value: Tensor) -> Tensor:
    return torch.where(value > 20, 1.0, -torch.expm1(-value))


ACTIVATIONS: dict[str, Activation] = {
    "relu": Activation(_relu, lambda value: (value > 0).to(value.dtype), lambda value, slope: torch.zeros_like(value)),
    "elu": Activation(
        _elu, lambda value: value.clamp(max=0).add_(1), lambda value, slope: torch.where(slope < 1, slope, 0.0)
    ),
    "tanh": Activation(_tanh, lambda value: 1 - value * value, lambda value, slope: -2 * value * slope),
    "sigmoid": Activation(_sigmoid, lambda value: value * (1 - value), lambda value, slope: slope * (1 - 2 * value)),
    "softplus": Activation(_softplus, _softplus_slope, lambda value, slope: slope * (1 - slope)),
}

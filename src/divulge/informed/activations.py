"""Activations with their first and second derivatives, as the hand-written sweeps through training need them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

_SPREAD = 0.6  # of a unit's mean positive value: how far from 0 a row counts as being at ReLU's kink


@dataclass(frozen=True)
class Activation:
    """``forward(a)`` gives the value and the slope; ``slope(value)`` the slope again, where only the value was kept;
    ``curvature(value, slope)`` the second derivative."""

    forward: Callable[[Tensor], tuple[Tensor, Tensor]]
    slope: Callable[[Tensor], Tensor]
    curvature: Callable[[Tensor, Tensor], Tensor]


def _relu(a: Tensor) -> tuple[Tensor, Tensor]:
    return torch.relu(a), (a > 0).to(a.dtype)


def _relu_curvature(value: Tensor, slope: Tensor) -> Tensor:
    """ReLU's second derivative is a spike at 0, and over many rows spikes add up to a density: as a few rows cross 0,
    the gradient that the rows sum to moves. A derivative that leaves them out is right for steps so short that no row
    crosses, and wrong for any that a search takes. Here each spike is spread over a width, for each unit a share of
    its mean positive value (the rows are the last axis); one side stands for both.
    """
    count = (value > 0).sum(dim=-1, keepdim=True).clamp(min=1)
    width = (_SPREAD / count * value.sum(dim=-1, keepdim=True)).clamp(min=torch.finfo(value.dtype).tiny)
    return torch.where((value > 0) & (value < width), 2 * (1 - value / width) / width, 0.0)


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
    "relu": Activation(_relu, lambda value: (value > 0).to(value.dtype), _relu_curvature),
    "elu": Activation(
        _elu, lambda value: value.clamp(max=0).add_(1), lambda value, slope: torch.where(slope < 1, slope, 0.0)
    ),
    "tanh": Activation(_tanh, lambda value: 1 - value * value, lambda value, slope: -2 * value * slope),
    "sigmoid": Activation(_sigmoid, lambda value: value * (1 - value), lambda value, slope: slope * (1 - 2 * value)),
    "softplus": Activation(_softplus, _softplus_slope, lambda value, slope: slope * (1 - slope)),
}

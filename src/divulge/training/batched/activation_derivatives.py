"""Activations with their first and second derivatives, for training and its derivatives written out by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

_SPREAD = 0.6  # width of ReLU's smoothed kink, as a share of a unit's mean positive value


@dataclass(frozen=True)
class Activation:
    """An activation and its derivatives."""

    forward: Callable[[Tensor], tuple[Tensor, Tensor]]
    """The value and the slope at a pre-activation."""
    slope: Callable[[Tensor], Tensor]
    """The slope as a function of the value."""
    curvature: Callable[[Tensor, Tensor], Tensor]
    """The second derivative as a function of value and slope."""


def _relu(a: Tensor) -> tuple[Tensor, Tensor]:
    return torch.relu(a), (a > 0).to(a.dtype)


def _relu_curvature(value: Tensor, slope: Tensor) -> Tensor:
    """ReLU's second derivative, smoothed.

    It is a spike at 0. Over many rows the spikes add up to a density: as a few rows cross 0, the gradient summed over
    rows moves. A derivative without them holds only for steps so short that no row crosses. Here each spike is spread
    over a width, which for each unit is a share of its mean positive value (rows are the last axis). Only the positive
    side is used, and counted twice.
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

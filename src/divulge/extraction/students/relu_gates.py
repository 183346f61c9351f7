"""ReLU and max-pool whose gates can be moved by a loss on gradients.

The gradient of a ReLU network depends on its weights through hard masks, and a mask has no derivative of its own: a
loss on gradients cannot tell a student that a neuron should be on where it is off, and stalls. Inside ``Gates`` every
ReLU and max-pool computes what it always does, and so does its gradient; only the derivative *of that gradient* sees a
smooth gate in place of the hard one (a straight-through estimator). Milli 2019 match gradients with hard gates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

RELU = (torch.relu, torch.relu_, functional.relu, functional.relu_, Tensor.relu, Tensor.relu_)
POOL = (functional.max_pool2d, torch.max_pool2d)


class Gates(TorchFunctionMode):
    """While active, the ReLUs and max-pools of any module have gates of this ``sharpness`` in second derivatives."""

    def __init__(self, sharpness: float) -> None:
        super().__init__()
        self.sharpness = sharpness

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in RELU:
            return _Relu.apply(args[0], self.sharpness)  # type: ignore[no-untyped-call]
        if func in POOL and (side := _disjoint_windows(args, kwargs)):
            return _Pool.apply(args[0], side, self.sharpness)  # type: ignore[no-untyped-call]
        return func(*args, **kwargs)


class _Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, sharpness: float) -> Tensor:
        ctx.save_for_backward(a)
        ctx.sharpness = sharpness
        return a.clamp_min(0)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        (a,) = ctx.saved_tensors
        return _ReluGate.apply(upstream[0], a, ctx.sharpness), None  # type: ignore[no-untyped-call]


class _ReluGate(torch.autograd.Function):
    """g * 1[a > 0], whose derivative by a is that of g * sigmoid(sharpness a)."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, a: Tensor, sharpness: float) -> Tensor:
        ctx.save_for_backward(g, a)
        ctx.sharpness = sharpness
        return _masked(g, a)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, None]:
        g, a = ctx.saved_tensors
        soft = torch.sigmoid(ctx.sharpness * a)
        moved = torch.ops.aten.sigmoid_backward(upstream[0] * g, soft).mul_(ctx.sharpness)
        return _masked(upstream[0], a), moved, None


def _masked(g: Tensor, a: Tensor) -> Tensor:
    """g * 1[a > 0]"""
    masked: Tensor = torch.ops.aten.threshold_backward(g, a, 0)
    return masked


class _Pool(torch.autograd.Function):
    """Max over disjoint square windows."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, side: int, sharpness: float) -> Tensor:
        top, where = functional.max_pool2d_with_indices(a, (side, side))
        ctx.side, ctx.sharpness = side, sharpness
        ctx.save_for_backward(a, where)
        return top

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None]:
        a, where = ctx.saved_tensors
        return _PoolGate.apply(upstream[0], a, where, ctx.side, ctx.sharpness), None, None  # type: ignore[no-untyped-call]


class _PoolGate(torch.autograd.Function):
    """g at the largest of each window and 0 elsewhere; by a, its derivative is that of g * softmax(sharpness a)."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, a: Tensor, where: Tensor, side: int, sharpness: float) -> Tensor:
        ctx.side, ctx.sharpness = side, sharpness
        ctx.save_for_backward(g, a, where)
        spread = torch.zeros_like(a).flatten(2)
        return spread.scatter_(2, where.flatten(2), g.flatten(2)).reshape(a.shape)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        g, a, where = ctx.saved_tensors
        (u,) = upstream
        by_gradient = u.flatten(2).gather(2, where.flatten(2)).reshape(g.shape)
        soft = torch.softmax(ctx.sharpness * _windows(a, ctx.side), dim=0)
        wanted = _windows(u, ctx.side)
        moved = (wanted - (soft * wanted).sum(dim=0)).mul_(soft).mul_(ctx.sharpness * g)
        by_input = torch.zeros_like(a)
        for place, (row, column) in enumerate(_places(ctx.side)):
            h, w = g.shape[2] * ctx.side, g.shape[3] * ctx.side
            by_input[:, :, row : h : ctx.side, column : w : ctx.side] = moved[place]
        return by_gradient, by_input, None, None, None


def _windows(a: Tensor, side: int) -> Tensor:
    """Pictures [n, c, h, w] as their windows [side^2, n, c, h/side, w/side]; a last, incomplete one is left out."""
    h, w = a.shape[2] // side * side, a.shape[3] // side * side
    return torch.stack([a[:, :, row:h:side, column:w:side] for row, column in _places(side)])


def _places(side: int) -> list[tuple[int, int]]:
    return [(row, column) for row in range(side) for column in range(side)]


def _disjoint_windows(args: Sequence[Any], kwargs: dict[str, Any]) -> int:
    """Side of the windows of a max-pool call if they are square, disjoint and plain; else 0, and it stays as it is."""
    names = ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
    call = {**dict(zip(names, args, strict=False)), **kwargs}
    side = _one(call["kernel_size"])
    plain = _one(call.get("padding", 0)) == 0 and _one(call.get("dilation", 1)) == 1
    disjoint = side > 0 and _one(call.get("stride") or side) == side
    picture = call["input"].ndim == 4 and not call.get("ceil_mode") and not call.get("return_indices")
    return side if plain and disjoint and picture else 0


def _one(extent: int | Sequence[int]) -> int:
    """The number that both directions share; -1 if they differ."""
    if isinstance(extent, int):
        return extent
    return int(extent[0]) if len(set(extent)) == 1 else -1

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
        (g,) = upstream
        gate = (a > 0).to(a.dtype)
        if torch.is_grad_enabled():
            soft = torch.sigmoid(ctx.sharpness * a)
            gate = gate + (soft - soft.detach())
        return g * gate, None


class _Pool(torch.autograd.Function):
    """Max over disjoint square windows; the gate is which of them is largest, and its soft version a softmax."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, side: int, sharpness: float) -> Tensor:
        ctx.side, ctx.sharpness = side, sharpness
        top = _windows(a, side).max(dim=-1)
        ctx.save_for_backward(a, top.indices)
        return top.values

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None]:
        a, largest = ctx.saved_tensors
        (g,) = upstream
        gate = functional.one_hot(largest, ctx.side**2).to(a.dtype)
        if torch.is_grad_enabled():
            soft = torch.softmax(ctx.sharpness * _windows(a, ctx.side), dim=-1)
            gate = gate + (soft - soft.detach())
        return _pictures(g[..., None] * gate, a.shape, ctx.side), None, None


def _windows(a: Tensor, side: int) -> Tensor:
    """Pictures [n, c, h, w] as their windows [n, c, h/side, w/side, side^2]; a last, incomplete one is left out."""
    n, c, h, w = a.shape[0], a.shape[1], a.shape[2] // side, a.shape[3] // side
    cut = a[:, :, : h * side, : w * side].reshape(n, c, h, side, w, side)
    return cut.transpose(3, 4).reshape(n, c, h, w, side * side)


def _pictures(windows: Tensor, shape: torch.Size, side: int) -> Tensor:
    n, c, h, w = windows.shape[:4]
    pictures = windows.reshape(n, c, h, w, side, side).transpose(3, 4).reshape(n, c, h * side, w * side)
    return functional.pad(pictures, (0, shape[3] - w * side, 0, shape[2] - h * side))


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

"""ONNX operators as torch layers. ``LAYERS`` maps the name of an operator to the function that builds its layer.

A builder gets the node, the constants among its inputs, and the input tensor of the node for a small batch, which has
the shapes that ONNX leaves open.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from divulge.core.errors import UnsupportedModel


@dataclass(frozen=True)
class Node:
    """An operator of the graph: its attributes, its constant inputs by position, and its input for a small batch."""

    op: str
    name: str
    attributes: dict[str, Any]
    constants: dict[int, Tensor]
    probe: Tensor  # [batch, ...]

    def refuse(self, why: str) -> UnsupportedModel:
        return UnsupportedModel(f"The ONNX operator {self.op} ({self.name or 'unnamed'}) cannot be read: {why}.")

    def constant(self, position: int) -> Tensor:
        if position not in self.constants:
            raise self.refuse(f"its input {position} is computed, and only constants are supported there")
        return self.constants[position]


# -- layers that torch does not have ----------------------------------------------------------------------------------


class Scale(nn.Module):
    """x * factor + shift, element by element."""

    def __init__(self, factor: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.factor, self.shift = nn.Parameter(factor.clone()), nn.Parameter(shift.clone())

    def forward(self, X: Tensor) -> Tensor:
        return X * self.factor + self.shift


class Permute(nn.Module):
    def __init__(self, order: tuple[int, ...]) -> None:
        super().__init__()
        self.order = order

    def forward(self, X: Tensor) -> Tensor:
        return X.permute(self.order)


class SpatialMean(nn.Module):
    """The mean over everything but rows and channels."""

    def __init__(self, *, keep: bool) -> None:
        super().__init__()
        self.keep = keep

    def forward(self, X: Tensor) -> Tensor:
        return X.mean(dim=tuple(range(2, X.ndim)), keepdim=self.keep)


class Normalize(nn.Module):
    """Rows divided by the sum of their absolute values, as scikit-learn's converter ends a classifier."""

    def forward(self, X: Tensor) -> Tensor:
        return X / X.abs().sum(dim=1, keepdim=True)


# -- builders ---------------------------------------------------------------------------------------------------------


def linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """nn.Linear with this weight [k, d] and bias [k]."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta").to_empty(device="cpu")
    layer = layer.to(weight.dtype)
    with torch.no_grad():
        layer.weight.copy_(weight)
        if bias is not None:
            layer.bias.copy_(bias)
    return layer


def _gemm(node: Node) -> nn.Module:
    if node.attributes.get("transA", 0):
        raise node.refuse("it transposes its data (transA)")
    B = node.constant(1)
    weight = (B if node.attributes.get("transB", 0) else B.T) * node.attributes.get("alpha", 1.0)
    bias = None
    if 2 in node.constants:
        C = node.constants[2] * node.attributes.get("beta", 1.0)
        if C.ndim == 2 and C.shape[0] != 1:
            raise node.refuse("its bias differs from row to row")
        bias = C.reshape(-1).expand(len(weight))
    return linear(weight, bias)


def _matmul(node: Node) -> nn.Module:
    weight = node.constant(1)
    if weight.ndim != 2 or 0 in node.constants:
        raise node.refuse("only rows times a constant matrix is supported")
    return linear(weight.T, None)


def _elementwise(node: Node) -> nn.Module:
    position = next(iter(node.constants), None)
    if position is None:
        raise node.refuse("both inputs are computed")
    c = node.constants[position]
    if c.ndim >= node.probe.ndim and c.ndim and c.shape[0] != 1:
        raise node.refuse("its constant differs from row to row")
    one, none = torch.ones((), dtype=c.dtype), torch.zeros((), dtype=c.dtype)
    if node.op == "Add":
        return Scale(one, c)
    if node.op == "Mul":
        return Scale(c, none)
    if node.op == "Sub":
        return Scale(one, -c) if position == 1 else Scale(-one, c)
    if position == 0:
        raise node.refuse("it divides a constant by its data")
    return Scale(1 / c, none)


def _softmax(node: Node) -> nn.Module:
    axis = node.attributes.get("axis", -1)
    if node.probe.ndim != 2 or axis % 2 != 1:
        raise node.refuse(f"it works along axis {axis}")
    return nn.LogSoftmax(dim=1) if node.op == "LogSoftmax" else nn.Softmax(dim=1)


def _padding(node: Node, kernel: list[int]) -> tuple[list[int], list[int]]:
    """Padding before and after each spatial dimension."""
    spatial = len(kernel)
    mode = node.attributes.get("auto_pad", "NOTSET")
    if mode in ("NOTSET", "VALID"):
        pads = node.attributes.get("pads", [0] * (2 * spatial)) if mode == "NOTSET" else [0] * (2 * spatial)
        return list(pads[:spatial]), list(pads[spatial:])
    strides = node.attributes.get("strides", [1] * spatial)
    dilations = node.attributes.get("dilations", [1] * spatial)
    before, after = [], []
    for size, extent, stride, dilation in zip(node.probe.shape[2:], kernel, strides, dilations, strict=True):
        total = max(0, (math.ceil(size / stride) - 1) * stride + (extent - 1) * dilation + 1 - size)
        small, large = total // 2, total - total // 2
        before.append(small if mode == "SAME_UPPER" else large)
        after.append(large if mode == "SAME_UPPER" else small)
    return before, after


def _padded(layer: nn.Module, before: list[int], after: list[int], fill: float) -> nn.Module:
    """The layer behind explicit padding, for what torch cannot pad by itself."""
    if not any(before) and not any(after):
        return layer
    pads = tuple(p for pair in zip(reversed(before), reversed(after), strict=True) for p in pair)
    pad = {2: nn.ConstantPad1d, 4: nn.ConstantPad2d, 6: nn.ConstantPad3d}[len(pads)]
    return nn.Sequential(pad(pads, fill), layer)  # type: ignore[arg-type]


def _conv(node: Node) -> nn.Module:
    weight = node.constant(1)
    kernel = list(weight.shape[2:])
    if len(kernel) not in (1, 2, 3):
        raise node.refuse(f"it has {len(kernel)} spatial dimensions")
    kind: Any = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[len(kernel) - 1]
    before, after = _padding(node, kernel)
    even = before == after
    groups = node.attributes.get("group", 1)
    layer: nn.Module = kind(
        weight.shape[1] * groups,
        weight.shape[0],
        tuple(kernel),
        stride=tuple(node.attributes.get("strides", [1] * len(kernel))),
        padding=tuple(before) if even else 0,
        dilation=tuple(node.attributes.get("dilations", [1] * len(kernel))),
        groups=groups,
        bias=2 in node.constants,
        dtype=weight.dtype,
    )
    with torch.no_grad():
        for position, parameter in zip((1, 2), layer.parameters(), strict=False):
            parameter.copy_(node.constants[position])
    return layer if even else _padded(layer, before, after, 0.0)


def _pool(node: Node) -> nn.Module:
    kernel = list(node.attributes["kernel_shape"])
    if len(kernel) not in (1, 2, 3):
        raise node.refuse(f"it has {len(kernel)} spatial dimensions")
    if node.attributes.get("ceil_mode", 0):
        raise node.refuse("it rounds its size up (ceil_mode)")
    strides = tuple(node.attributes.get("strides", [1] * len(kernel)))
    before, after = _padding(node, kernel)
    if node.op == "MaxPool":
        kind: Any = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)[len(kernel) - 1]
        dilations = tuple(node.attributes.get("dilations", [1] * len(kernel)))
        return _padded(kind(tuple(kernel), stride=strides, dilation=dilations), before, after, -math.inf)
    padded = any(before) or any(after)
    if padded and not node.attributes.get("count_include_pad", 0):
        raise node.refuse("it averages over part of the picture at its edges")
    kind = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)[len(kernel) - 1]
    return _padded(kind(tuple(kernel), stride=strides), before, after, 0.0)


def _reduce_mean(node: Node) -> nn.Module:
    axes = node.attributes.get("axes")
    if axes is None and 1 in node.constants:
        axes = node.constants[1].tolist()
    spatial = set(range(2, node.probe.ndim))
    if not axes or {axis % node.probe.ndim for axis in axes} != spatial:
        raise node.refuse("only the mean over a whole picture is supported")
    return SpatialMean(keep=bool(node.attributes.get("keepdims", 1)))


def _batch_norm(node: Node) -> nn.Module:
    scale, shift, mean, variance = (node.constant(position) for position in (1, 2, 3, 4))
    factor = scale / torch.sqrt(variance + node.attributes.get("epsilon", 1e-5))
    shape = (-1, *[1] * (node.probe.ndim - 2))
    return Scale(factor.reshape(shape), (shift - mean * factor).reshape(shape))


def _transpose(node: Node) -> nn.Module:
    order = tuple(node.attributes.get("perm", reversed(range(node.probe.ndim))))
    if order[0] != 0:
        raise node.refuse("it moves the rows")
    return Permute(order)


def _scaler(node: Node) -> nn.Module:
    offset, scale = (torch.tensor(node.attributes[key], dtype=node.probe.dtype) for key in ("offset", "scale"))
    return Scale(scale, -offset * scale)


def _linear_model(node: Node) -> nn.Module:
    """scikit-learn's linear models as skl2onnx writes them (domain ai.onnx.ml)."""
    width = math.prod(node.probe.shape[1:])
    coefficients = torch.tensor(node.attributes["coefficients"], dtype=node.probe.dtype).reshape(-1, width)
    intercepts = torch.tensor(node.attributes.get("intercepts", [0.0] * len(coefficients)), dtype=node.probe.dtype)
    transform = node.attributes.get("post_transform", "NONE")
    after: dict[str, nn.Module] = {"LOGISTIC": nn.Sigmoid(), "SOFTMAX": nn.Softmax(dim=1)}
    if transform != "NONE" and transform not in after:
        raise node.refuse(f"its output is transformed by {transform}")
    layer = linear(coefficients, intercepts)
    return nn.Sequential(layer, after[transform]) if transform in after else layer


def _normalizer(node: Node) -> nn.Module:
    if node.attributes.get("norm", "MAX") != "L1":
        raise node.refuse(f"it divides by the {node.attributes.get('norm', 'MAX')} norm")
    return Normalize()


LAYERS: dict[str, Callable[[Node], nn.Module]] = {
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Add": _elementwise,
    "Sub": _elementwise,
    "Mul": _elementwise,
    "Div": _elementwise,
    "Relu": lambda node: nn.ReLU(),
    "LeakyRelu": lambda node: nn.LeakyReLU(node.attributes.get("alpha", 0.01)),
    "Elu": lambda node: nn.ELU(node.attributes.get("alpha", 1.0)),
    "Softplus": lambda node: nn.Softplus(),
    "Tanh": lambda node: nn.Tanh(),
    "Sigmoid": lambda node: nn.Sigmoid(),
    "Softmax": _softmax,
    "LogSoftmax": _softmax,
    "Conv": _conv,
    "MaxPool": _pool,
    "AveragePool": _pool,
    "GlobalAveragePool": lambda node: SpatialMean(keep=True),
    "ReduceMean": _reduce_mean,
    "BatchNormalization": _batch_norm,
    "Transpose": _transpose,
    "Scaler": _scaler,
    "LinearRegressor": _linear_model,
    "LinearClassifier": _linear_model,
    "Normalizer": _normalizer,
}

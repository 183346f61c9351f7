"""A torch model as an ONNX file: what an extraction found, handed on in a form that every runtime reads.

The graph is written layer by layer with onnx's own helper, so torch's exporter and its packages are not needed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from divulge.core.errors import MissingPackage, UnsupportedModel
from divulge.models import ReluNetwork
from divulge.models.convnets import ResidualBlock
from divulge.oracles.arguments import checked_shape
from divulge.oracles.local.plain_layers import is_plain_sequence
from divulge.oracles.local.torch_module import Probabilities, input_shape_of

OPSET = 17
IR_VERSION = 8  # old enough for runtimes of the last years


def export_onnx(model: nn.Module, path: str | Path, *, input_shape: Sequence[int] | None = None) -> Path:
    """Write a torch model as an ONNX file with a free batch size, in the model's own precision.

    Parameters
    ----------
    model : nn.Module
        A sequence of the usual layers, an MLP, a ReluNetwork, or a residual network of ``divulge.models``.
    path : str or Path
        The file to write. Missing parent folders are made.
    input_shape : sequence of int or None, default None
        The shape of one input, where the model does not state it.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    UnsupportedModel
        If a layer cannot be written; the sentence names it.
    MissingPackage
        If onnx is not installed.

    Examples
    --------
    >>> import tempfile
    >>> from divulge import models, oracles
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     oracles.export_onnx(models.MLP([4, 3, 2]), f"{folder}/net.onnx").name
    'net.onnx'
    """
    try:
        from onnx import TensorProto, checker, helper, save
    except ImportError as error:
        raise MissingPackage("ONNX files need the onnx package; install divulge[onnx].") from error
    shape = checked_shape(input_shape) if input_shape is not None else input_shape_of(model)
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    kinds = {torch.float16: TensorProto.FLOAT16, torch.float32: TensorProto.FLOAT, torch.float64: TensorProto.DOUBLE}
    if dtype not in kinds:
        raise UnsupportedModel(f"A model in {dtype} cannot be written as ONNX; convert it to float32 first.")
    model = copy.deepcopy(model).cpu().eval()
    writer = _Writer(dtype)
    result = writer.write(model, "input")
    with torch.no_grad():
        outputs = model(torch.zeros(2, *shape, dtype=dtype)).shape[1:]
    writer.node("Identity", [result], output="output")
    graph = helper.make_graph(
        writer.nodes,
        "divulge",
        [helper.make_tensor_value_info("input", kinds[dtype], ["n", *shape])],
        [helper.make_tensor_value_info("output", kinds[dtype], ["n", *outputs])],
        writer.weights,
    )
    proto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="divulge"
    )
    checker.check_model(proto)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    save(proto, path)
    return path


class _Writer:
    """Collects nodes and weights; ``write`` adds a module's and returns the name of what it makes."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.width: int | None = None  # of the last linear layer
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def node(self, op: str, inputs: list[str], *, output: str | None = None, **attributes: Any) -> str:
        from onnx import helper

        output = output or f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def weight(self, tensor: Tensor) -> str:
        from onnx import numpy_helper

        name = f"weight_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(tensor.detach().cpu().contiguous().numpy(), name))
        return name

    def write(self, module: nn.Module, entry: str) -> str:
        if isinstance(module, ReluNetwork):
            return self._relu_network(module, entry)
        if is_plain_sequence(module):
            for layer in module:
                entry = self.write(layer, entry)
            return entry
        if isinstance(module, ResidualBlock):
            added = self.node("Add", [self.write(module.body, entry), self.write(module.shortcut, entry)])
            return self.write(module.last, added)
        for kinds, write in _WRITERS:
            if isinstance(module, kinds):
                return write(self, module, entry)
        raise UnsupportedModel(f"The layer {type(module).__name__} cannot be written as ONNX.")

    def linear(self, A: Tensor, b: Tensor | None, entry: str) -> str:
        self.width = len(A)
        inputs = [entry, self.weight(A), *([self.weight(b)] if b is not None else [])]
        return self.node("Gemm", inputs, transB=1)

    def _relu_network(self, model: ReluNetwork, entry: str) -> str:
        hidden = self.node("Relu", [self.linear(model.A, model.b, entry)])
        return self.node("Add", [self.linear(model.W, None, hidden), self.linear(model.P, model.q, entry)])


def _conv(writer: _Writer, layer: Any, entry: str) -> str:
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        raise UnsupportedModel(
            f"A convolution with the padding {layer.padding_mode!r}, {layer.padding!r} cannot be written."
        )
    weights = [writer.weight(layer.weight), *([writer.weight(layer.bias)] if layer.bias is not None else [])]
    return writer.node(
        "Conv",
        [entry, *weights],
        kernel_shape=list(layer.kernel_size),
        strides=list(layer.stride),
        pads=[*layer.padding, *layer.padding],
        dilations=list(layer.dilation),
        group=layer.groups,
    )


def _pool(writer: _Writer, layer: Any, entry: str) -> str:
    spatial = 1 if isinstance(layer, nn.MaxPool1d | nn.AvgPool1d) else 2
    kernel, stride, padding = (_each(size, spatial) for size in (layer.kernel_size, layer.stride, layer.padding))
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": stride, "pads": [*padding, *padding]}
    if layer.ceil_mode:
        raise UnsupportedModel(f"A {type(layer).__name__} with ceil_mode cannot be written as ONNX.")
    if isinstance(layer, nn.MaxPool1d | nn.MaxPool2d):
        return writer.node("MaxPool", [entry], dilations=_each(layer.dilation, spatial), **attributes)
    return writer.node("AveragePool", [entry], count_include_pad=int(layer.count_include_pad), **attributes)


def _batch_norm(writer: _Writer, layer: Any, entry: str) -> str:
    if layer.running_mean is None:
        raise UnsupportedModel("A batch normalisation without running statistics cannot be written as ONNX.")
    one, none = torch.ones_like(layer.running_mean), torch.zeros_like(layer.running_mean)
    parts = [one if layer.weight is None else layer.weight, none if layer.bias is None else layer.bias]
    variance = layer.running_var + layer.eps  # added here, since ONNX keeps epsilon in single precision
    names = [writer.weight(part) for part in (*parts, layer.running_mean, variance)]
    return writer.node("BatchNormalization", [entry, *names], epsilon=0.0)


def _average(writer: _Writer, layer: Any, entry: str) -> str:
    if _each(layer.output_size, 2) != [1, 1]:
        raise UnsupportedModel(f"An adaptive pool to {layer.output_size} cannot be written as ONNX; only to 1.")
    return writer.node("GlobalAveragePool", [entry])


def _softmax(writer: _Writer, layer: Any, entry: str) -> str:
    if layer.dim not in (1, -1):
        raise UnsupportedModel(f"A {type(layer).__name__} along dimension {layer.dim} cannot be written; only along 1.")
    return writer.node(type(layer).__name__, [entry], axis=1)


def _probabilities(writer: _Writer, layer: Any, entry: str) -> str:
    if writer.width == 1:  # the logit z of "yes" stands for the two logits 0 and z
        entry = writer.node("MatMul", [entry, writer.weight(torch.tensor([[0.0, 1.0]], dtype=writer.dtype))])
    return writer.node("LogSoftmax" if layer.log else "Softmax", [entry], axis=1)


def _flatten(writer: _Writer, layer: Any, entry: str) -> str:
    if layer.start_dim != 1 or layer.end_dim != -1:
        raise UnsupportedModel("A Flatten of part of the dimensions cannot be written as ONNX.")
    return writer.node("Flatten", [entry], axis=1)


def _unflatten(writer: _Writer, layer: Any, entry: str) -> str:
    shape = torch.tensor([0, *layer.unflattened_size])
    if layer.dim != 1:
        raise UnsupportedModel(f"An Unflatten of dimension {layer.dim} cannot be written as ONNX; only of 1.")
    return writer.node("Reshape", [entry, writer.weight(shape)])


def _each(size: Any, spatial: int) -> list[int]:
    return [int(size)] * spatial if isinstance(size, int) else [int(extent) for extent in size]


_Write = Callable[[_Writer, Any, str], str]
_WRITERS: list[tuple[Any, _Write]] = [
    (nn.Linear, lambda w, layer, x: w.linear(layer.weight, layer.bias, x)),
    (nn.ReLU, lambda w, layer, x: w.node("Relu", [x])),
    (nn.LeakyReLU, lambda w, layer, x: w.node("LeakyRelu", [x], alpha=layer.negative_slope)),
    (nn.ELU, lambda w, layer, x: w.node("Elu", [x], alpha=layer.alpha)),
    (nn.Tanh, lambda w, layer, x: w.node("Tanh", [x])),
    (nn.Sigmoid, lambda w, layer, x: w.node("Sigmoid", [x])),
    (nn.Softplus, lambda w, layer, x: w.node("Softplus", [x])),
    (nn.Softmax | nn.LogSoftmax, _softmax),
    (Probabilities, _probabilities),
    (nn.Identity | nn.Dropout | nn.Dropout2d, lambda w, layer, x: x),
    (nn.Flatten, _flatten),
    (nn.Unflatten, _unflatten),
    (nn.Conv1d | nn.Conv2d | nn.Conv3d, _conv),
    (nn.MaxPool1d | nn.MaxPool2d | nn.AvgPool1d | nn.AvgPool2d, _pool),
    (nn.AdaptiveAvgPool2d, _average),
    (nn.BatchNorm1d | nn.BatchNorm2d, _batch_norm),
]

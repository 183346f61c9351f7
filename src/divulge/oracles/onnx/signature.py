"""The inputs and outputs of an ONNX model as it was shipped, as one flat row each.

Several inputs are laid side by side in one row, in the order of the graph; ``OnnxSignature.inputs`` says which numbers
belong to which. Whole-number inputs take the nearest whole number. A ZipMap at the end of a scikit-learn classifier,
which makes dictionaries of its probabilities, is replaced by the tensor that it reads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from divulge.core.errors import InvalidInput, UnsupportedModel
from divulge.oracles.arguments import check_size, checked_shape
from divulge.oracles.onnx.graph import chosen_output, graph_inputs, row_shape

INPUT_TYPES: dict[int, Any] = {
    1: np.float32, 10: np.float16, 11: np.float64, 2: np.uint8, 3: np.int8, 4: np.uint16, 5: np.int16, 6: np.int32,
    7: np.int64, 9: np.bool_, 12: np.uint32, 13: np.uint64,
}  # fmt: skip
"""numpy's types by ONNX's number for them."""


@dataclass(frozen=True)
class InputTensor:
    """One input of the graph: the shape of one row of it, its number format, and its fixed batch size or None."""

    name: str
    shape: tuple[int, ...]
    dtype: Any
    rows: int | None

    @property
    def size(self) -> int:
        """Numbers in one row."""
        return math.prod(self.shape)

    def feed(self, X: NDArray[Any]) -> NDArray[Any]:
        """Rows [n, size] as the graph takes them."""
        kind = np.dtype(self.dtype)
        if kind.kind in "iu":
            bounds = np.iinfo(kind)
            X = np.clip(np.rint(X.astype(np.float64)), float(bounds.min), float(bounds.max))
        elif kind.kind == "b":
            X = X >= 0.5
        return X.reshape(len(X), *self.shape).astype(kind)


@dataclass(frozen=True)
class OnnxSignature:
    """The inputs that a row is cut into, and the outputs that an answer is joined from."""

    inputs: tuple[InputTensor, ...]
    outputs: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row: of the only input, or of all inputs side by side."""
        return self.inputs[0].shape if len(self.inputs) == 1 else (sum(tensor.size for tensor in self.inputs),)

    @property
    def rows(self) -> int | None:
        """The fixed batch size, or None."""
        return next((tensor.rows for tensor in self.inputs if tensor.rows is not None), None)

    @property
    def dtype(self) -> torch.dtype:
        """The number format of the floating-point inputs; float32 where there are none."""
        floats = [tensor.dtype for tensor in self.inputs if np.dtype(tensor.dtype).kind == "f"]
        return torch.from_numpy(np.zeros(0, dtype=floats[0])).dtype if floats else torch.float32

    @property
    def is_plain(self) -> bool:
        """Whether there is one floating-point input and one output, as the reader of graphs takes them."""
        return len(self.inputs) == len(self.outputs) == 1 and np.dtype(self.inputs[0].dtype).kind == "f"

    def feeds(self, X: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Rows [n, d] cut into the graph's inputs."""
        ends = np.cumsum([tensor.size for tensor in self.inputs])[:-1]
        parts = np.split(X.reshape(len(X), -1), ends, axis=1)
        return {tensor.name: tensor.feed(part) for tensor, part in zip(self.inputs, parts, strict=True)}


def onnx_signature(proto: Any, input_shape: Sequence[int] | None, output: str | None, *, labels: bool) -> OnnxSignature:
    """The signature of a model. ``output`` names one output, or several separated by commas."""
    entries = graph_inputs(proto)
    inputs = tuple(_input_tensor(proto, entry, input_shape, alone=len(entries) == 1) for entry in entries)
    check_size(sum(tensor.size for tensor in inputs), "input")
    if (
        input_shape is not None
        and len(inputs) > 1
        and math.prod(checked_shape(input_shape)) != sum(tensor.size for tensor in inputs)
    ):
        taken = ", ".join(f"{tensor.name} {tensor.shape}" for tensor in inputs)
        raise InvalidInput(f"The ONNX model takes {taken} side by side, not inputs of shape {tuple(input_shape)}.")
    names = [None] if output is None else [name.strip() for name in output.split(",")]
    return OnnxSignature(inputs, tuple(chosen_output(proto, name, labels=labels) for name in names))


def _input_tensor(proto: Any, entry: Any, input_shape: Sequence[int] | None, *, alone: bool) -> InputTensor:
    kind = entry.type.tensor_type.elem_type
    if kind not in INPUT_TYPES:
        raise UnsupportedModel(f"The ONNX input {entry.name} does not take numbers; only numbers can be asked with.")
    declared = [dim.dim_value for dim in entry.type.tensor_type.shape.dim]
    if alone:
        shape = row_shape(proto, input_shape)
    elif len(declared) > 1 and all(declared[1:]):
        shape = checked_shape(declared[1:])
    else:
        raise UnsupportedModel(
            f"The ONNX model has several inputs, and the shape of {entry.name} is open; export it with fixed extents."
        )
    return InputTensor(entry.name, shape, INPUT_TYPES[kind], (declared[0] if declared else 0) or None)


def without_zipmap(proto: Any) -> tuple[Any, bool]:
    """The model with each ZipMap replaced by the tensor it reads, and whether there was one."""
    from onnx import ModelProto, TensorProto, helper

    if not any(node.op_type == "ZipMap" for node in proto.graph.node):
        return proto, False
    changed = ModelProto()
    changed.CopyFrom(proto)
    tensors = set()
    for node in changed.graph.node:
        if node.op_type == "ZipMap":
            tensors.add(node.output[0])
            node.CopyFrom(helper.make_node("Identity", node.input, node.output, name=node.name))
    for out in changed.graph.output:
        if out.name in tensors:
            out.CopyFrom(helper.make_tensor_value_info(out.name, TensorProto.FLOAT, None))
    return changed, True

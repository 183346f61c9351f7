"""The inputs and outputs of an ONNX model as it was shipped, as one flat row each.

Several inputs are laid side by side in one row, in the order of the graph; ``OnnxSignature.inputs`` says which numbers
belong to which. Whole-number inputs take the nearest whole number. An input that has no entry for each row (a sampling
rate, the state of a recurrent network) is held: at the value that the user gives, a state otherwise at zero. A ZipMap
at the end of a scikit-learn classifier, which makes dictionaries of its probabilities, is replaced by the tensor it
reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from divulge.core.errors import InvalidInput, UnsupportedModel
from divulge.oracles.arguments import check_size, checked_shape
from divulge.oracles.onnx.graph import Shape, chosen_output, extents_of, graph_inputs, open_shape, row_shape

INPUT_TYPES: dict[int, Any] = {
    1: np.float32, 10: np.float16, 11: np.float64, 2: np.uint8, 3: np.int8, 4: np.uint16, 5: np.int16, 6: np.int32,
    7: np.int64, 9: np.bool_, 12: np.uint32, 13: np.uint64,
}  # fmt: skip
"""numpy's types by ONNX's number for them."""
_SAME_NUMBERS = ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose")
"""Operators behind which the numbers of an input are still the same."""


@dataclass(frozen=True)
class InputTensor:
    """One input of the graph: the shape of one row of it, its number format, and its fixed batch size or None."""

    name: str
    shape: tuple[int, ...]
    dtype: Any
    rows: int | None
    vocabulary: int | None = None
    """How many whole numbers the table of embeddings knows that they look up; None where they look up none."""

    @property
    def size(self) -> int:
        """Numbers in one row."""
        return math.prod(self.shape)

    def feed(self, X: NDArray[Any]) -> NDArray[Any]:
        """Rows [n, size] as the graph takes them."""
        kind = np.dtype(self.dtype)
        if kind.kind in "iu":
            low, high = (0, self.vocabulary - 1) if self.vocabulary else (np.iinfo(kind).min, np.iinfo(kind).max)
            X = np.clip(np.rint(X.astype(np.float64)), float(low), float(high))
        elif kind.kind == "b":
            X = X >= 0.5
        return X.reshape(len(X), *self.shape).astype(kind)


@dataclass(frozen=True, eq=False)
class HeldInput:
    """An input that is the same for every row; None in its shape is the place of the rows."""

    name: str
    shape: tuple[int | None, ...]
    dtype: Any
    value: NDArray[Any]

    @property
    def one_row(self) -> bool:
        """Whether it has room for one row only, as the state of a recurrent network with a fixed batch."""
        return bool(self.shape) and None not in self.shape and math.prod(e for e in self.shape if e) > 1

    def feed(self, rows: int) -> NDArray[Any]:
        """The input for so many rows."""
        shape = tuple(rows if extent is None else extent for extent in self.shape)
        return np.ascontiguousarray(np.broadcast_to(self.value, shape)).astype(self.dtype)


@dataclass(frozen=True)
class OnnxSignature:
    """The inputs that a row is cut into, those that are held, and the outputs that an answer is joined from."""

    inputs: tuple[InputTensor, ...]
    outputs: tuple[str, ...]
    held: tuple[HeldInput, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row: of the only input, or of all inputs side by side."""
        return self.inputs[0].shape if len(self.inputs) == 1 else (sum(tensor.size for tensor in self.inputs),)

    @property
    def rows(self) -> int | None:
        """The fixed batch size, or None."""
        if any(held.one_row for held in self.held):
            return 1
        return next((tensor.rows for tensor in self.inputs if tensor.rows is not None), None)

    @property
    def dtype(self) -> torch.dtype:
        """The number format of the floating-point inputs; float32 where there are none."""
        floats = [tensor.dtype for tensor in self.inputs if np.dtype(tensor.dtype).kind == "f"]
        return torch.from_numpy(np.zeros(0, dtype=floats[0])).dtype if floats else torch.float32

    @property
    def is_plain(self) -> bool:
        """Whether there is one floating-point input and one output, as the reader of graphs takes them."""
        alone = len(self.inputs) == len(self.outputs) == 1 and not self.held
        return alone and np.dtype(self.inputs[0].dtype).kind == "f"

    def feeds(self, X: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Rows [n, d] cut into the graph's inputs."""
        ends = np.cumsum([tensor.size for tensor in self.inputs])[:-1]
        parts = np.split(X.reshape(len(X), -1), ends, axis=1)
        asked = {tensor.name: tensor.feed(part) for tensor, part in zip(self.inputs, parts, strict=True)}
        return {**asked, **{held.name: held.feed(len(X)) for held in self.held}}


def onnx_signature(
    proto: Any,
    input_shape: Shape | None,
    output: str | None,
    *,
    labels: bool,
    fixed: Mapping[str, object] | None = None,
) -> OnnxSignature:
    """The signature of a model. ``output`` names one output, or several separated by commas."""
    entries = graph_inputs(proto)
    fixed = fixed or {}
    unknown = [name for name in fixed if name not in {entry.name for entry in entries}]
    if unknown:
        raise InvalidInput(
            f"The ONNX model has no input {unknown[0]!r} to hold; it has {', '.join(entry.name for entry in entries)}."
        )
    asked = [entry for entry in entries if entry.name not in fixed and _by_rows(entry, entries[0])]
    if not asked:
        raise InvalidInput("Every input of the ONNX model is held; leave one out of fixed= to ask with.")
    inputs = tuple(_input_tensor(proto, entry, input_shape, alone=len(entries) == 1) for entry in asked)
    held = tuple(_held(entry, fixed.get(entry.name)) for entry in entries if entry not in asked)
    check_size(sum(tensor.size for tensor in inputs), "input")
    _check_used(inputs, input_shape)
    names = [None] if output is None else [name.strip() for name in output.split(",")]
    return OnnxSignature(inputs, tuple(chosen_output(proto, name, labels=labels) for name in names), held)


def _check_used(inputs: tuple[InputTensor, ...], input_shape: Shape | None) -> None:
    """Refuse a shape that none of several inputs has."""
    taken = ", ".join(f"{tensor.name} {tensor.shape}" for tensor in inputs)
    if isinstance(input_shape, Mapping):
        unknown = [name for name in input_shape if name not in {tensor.name for tensor in inputs}]
        if unknown:
            raise InvalidInput(f"The ONNX model asks with {taken}, and not with {unknown[0]!r}.")
    elif input_shape is not None and len(inputs) > 1:
        shape = checked_shape(input_shape)
        if shape not in {tensor.shape for tensor in inputs} and math.prod(shape) != sum(t.size for t in inputs):
            raise InvalidInput(f"The ONNX model takes {taken} side by side, not inputs of shape {shape}.")


def _by_rows(entry: Any, first: Any) -> bool:
    """Whether an input has one entry for each row: its first extent is that of the first input."""
    mine, rows = extents_of(entry), extents_of(first)
    return bool(mine) and bool(rows) and mine[0] == rows[0] and (entry is first or len(mine) > 1 or mine[0] == 0)


def _vocabulary(proto: Any, name: str) -> int | None:
    """Rows of the smallest table of weights that the numbers of an input look up, as they are or through a cast."""
    tables = {entry.name: list(entry.dims) for entry in proto.graph.initializer}
    reached, sizes = {name}, []
    for node in proto.graph.node:  # which come in the order in which they are computed
        if node.op_type in _SAME_NUMBERS and node.input and node.input[0] in reached:
            reached.update(node.output)
        elif node.op_type == "Gather" and node.input[1] in reached and len(tables.get(node.input[0], [])) == 2:
            axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
            sizes.append(tables[node.input[0]][axis])
    return min(sizes, default=None)


def _input_tensor(proto: Any, entry: Any, input_shape: Shape | None, *, alone: bool) -> InputTensor:
    kind = entry.type.tensor_type.elem_type
    if kind not in INPUT_TYPES:
        raise UnsupportedModel(f"The ONNX input {entry.name} does not take numbers; only numbers can be asked with.")
    declared = extents_of(entry)
    shape = row_shape(proto, input_shape) if alone else _shape_of_several(entry, declared[1:], input_shape)
    rows = (declared[0] if declared else 0) or None
    return InputTensor(entry.name, shape, INPUT_TYPES[kind], rows, _vocabulary(proto, entry.name))


def _shape_of_several(entry: Any, declared: Sequence[int], input_shape: Shape | None) -> tuple[int, ...]:
    """The shape of one of several inputs: its own, or the user's where that fits what is open."""
    given = input_shape.get(entry.name) if isinstance(input_shape, Mapping) else input_shape
    if given is not None:
        shape = checked_shape(given)
        if len(shape) == len(declared) and all(d in (0, s) for d, s in zip(declared, shape, strict=True)):
            return shape
        if isinstance(input_shape, Mapping):
            raise InvalidInput(f"The ONNX input {entry.name} has the shape {tuple(declared)}, not {shape}.")
    if all(declared):
        return checked_shape(declared or (1,))
    raise open_shape(entry)


def _held(entry: Any, value: object) -> HeldInput:
    kind = entry.type.tensor_type.elem_type
    if kind not in INPUT_TYPES:
        raise UnsupportedModel(f"The ONNX input {entry.name} does not take numbers; only numbers can be given to it.")
    declared = extents_of(entry)
    if value is None and math.prod(declared) == 1:
        raise InvalidInput(
            f'The ONNX input {entry.name} is one number for all rows; say which with fixed={{"{entry.name}": NUMBER}}.'
        )
    shape = tuple(extent or None for extent in declared)
    try:
        array = np.asarray(0 if value is None else value, dtype=np.float64)
        held = HeldInput(entry.name, shape, INPUT_TYPES[kind], array)
        check_size(held.feed(1).size, "input")
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"The ONNX input {entry.name} of shape {declared} cannot hold {str(value)[:80]}.") from error
    return held


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

"""An ONNX graph as a torch module, so that its gradients and weights can be asked.

The graph is walked once with a small batch of zeros beside it, which settles the shapes that ONNX leaves open. What
does not depend on the data is computed then and there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from divulge.core.errors import InvalidInput, MissingPackage, UnsupportedModel
from divulge.oracles.arguments import checked_shape
from divulge.oracles.onnx.assembly import Step, Sum, assembled, folded
from divulge.oracles.onnx.layers import LAYERS, Node

Shape = Sequence[int] | Mapping[str, Sequence[int]]
"""The shape of one input, or of several by their names."""
PROBE_ROWS = 7  # a number that no layer is likely to have as its own size
FLOATS = {1: torch.float32, 10: torch.float16, 11: torch.float64}  # by ONNX's number for the type
WHOLE = (6, 7)  # int32 and int64
_PASSED_ON = ("Identity", "Dropout", "Cast")
_RESHAPES = ("Flatten", "Reshape", "Squeeze", "Unsqueeze")


def read_onnx(source: str | Path | Any, *, input_shape: Shape | None = None, output: str | None = None) -> nn.Module:
    """The torch module that computes ``output`` (by default the first output of numbers) of an ONNX file or model.

    ``input_shape`` is needed only where the graph leaves the shape of one input open. Operators that cannot be read
    raise UnsupportedModel with their names.
    """
    proto = load_proto(source)
    graph = proto.graph
    constants = {tensor.name: _tensor(tensor) for tensor in graph.initializer}
    entry = graph_input(proto)
    result = chosen_output(proto, output)
    needed = _needed(graph, result)
    shape = row_shape(proto, input_shape)
    rows = next(iter(extents_of(entry)), 0) or PROBE_ROWS
    probe = torch.zeros(rows, *shape, dtype=FLOATS[entry.type.tensor_type.elem_type])
    reader = _Reader(proto, constants, entry.name, probe)
    for node, wanted in zip(graph.node, needed, strict=True):
        if wanted:
            reader.read(node)
    module = assembled(folded(reader.steps), entry.name, reader.alias.get(result, result))
    if not hasattr(module, "input_shape"):
        module.input_shape = shape  # type: ignore[assignment]
    return module.eval()


# -- what the file says -----------------------------------------------------------------------------------------------


def load_proto(source: str | Path | Any) -> Any:
    """The file as an onnx.ModelProto; one that is loaded already is returned as it is."""
    try:
        import onnx
    except ImportError as error:
        raise MissingPackage("ONNX files need the onnx package; install divulge[onnx].") from error
    if isinstance(source, onnx.ModelProto):
        return source
    path = Path(source)
    if not path.is_file():
        raise InvalidInput(f"There is no file {path}.")
    try:
        return onnx.load(path)
    except Exception as error:  # protobuf's and the file system's errors mean the same to the user
        raise InvalidInput(f"{path} is not a readable ONNX model: {str(error).splitlines()[0]}") from error


def graph_inputs(proto: Any) -> list[Any]:
    """The inputs of the graph that are not weights."""
    weights = {tensor.name for tensor in proto.graph.initializer}
    return [entry for entry in proto.graph.input if entry.name not in weights]


def graph_input(proto: Any) -> Any:
    """The one input of the graph that holds the rows."""
    inputs = graph_inputs(proto)
    if len(inputs) != 1:
        names = ", ".join(entry.name for entry in inputs) or "none"
        raise UnsupportedModel(f"An ONNX model with one input is expected; this one has {len(inputs)} ({names}).")
    if inputs[0].type.tensor_type.elem_type not in FLOATS:
        raise UnsupportedModel(f"The ONNX input {inputs[0].name} does not take floating-point numbers.")
    return inputs[0]


def chosen_output(proto: Any, wanted: str | None, *, labels: bool = False) -> str:
    """The output asked for, or the first that holds numbers (or, where ``labels`` will do, whole ones)."""
    names = [out.name for out in proto.graph.output]
    if wanted is not None:
        if wanted not in names:
            raise InvalidInput(f"The ONNX model has no output {wanted!r}; it has {', '.join(names)}.")
        return wanted
    for out in proto.graph.output:
        if out.type.tensor_type.elem_type in FLOATS:
            return str(out.name)
    for out in proto.graph.output:
        if labels and out.type.tensor_type.elem_type in WHOLE:
            return str(out.name)
    raise UnsupportedModel(
        'The ONNX model has no output of numbers in floating-point; build the oracle with access="label" if there are '
        "labels."
    )


def extents_of(entry: Any) -> list[int]:
    """The extents of an input; zero where the file leaves one open, which some writers say by -1."""
    return [max(0, dim.dim_value) for dim in entry.type.tensor_type.shape.dim]


def open_shape(entry: Any) -> InvalidInput:
    """The refusal of an input whose shape is open, with a shape that could be given."""
    extents = extents_of(entry)[1:]
    size = 224 if len(extents) == 3 else 16
    example = ", ".join(str(extent or size) for extent in extents)
    form = ", ".join(str(extent) if extent else "?" for extent in extents)
    return InvalidInput(
        f"The ONNX model leaves the shape of its input {entry.name} open ({form}); pass the shape that one input has, "
        f"such as input_shape=({example}{',' if len(extents) == 1 else ''})."
    )


def row_shape(proto: Any, input_shape: Shape | None) -> tuple[int, ...]:
    """The shape of one input: from the user, from the graph, or from the first matrix."""
    (entry,) = graph_inputs(proto)
    declared = extents_of(entry)[1:]
    if isinstance(input_shape, Mapping):
        input_shape = input_shape.get(entry.name)
    if input_shape is not None:
        shape = checked_shape(input_shape)
        if len(declared) != len(shape) and math.prod(declared) == math.prod(shape):
            return checked_shape(declared)
        if declared and (
            len(declared) != len(shape) or any(d not in (0, s) for d, s in zip(declared, shape, strict=True))
        ):
            raise InvalidInput(f"The ONNX model takes inputs of shape {tuple(declared)}, not {shape}.")
        return shape
    if declared and all(declared):
        return checked_shape(declared)
    first = next((node for node in proto.graph.node if node.op_type in ("Gemm", "MatMul")), None)
    weights = {tensor.name: tensor.dims for tensor in proto.graph.initializer}
    if len(declared) == 1 and first is not None and first.input[0] == entry.name and first.input[1] in weights:
        flipped = any(a.name == "transB" and a.i for a in first.attribute)
        return (int(weights[first.input[1]][1 if flipped else 0]),)
    raise open_shape(entry)


def _needed(graph: Any, result: str) -> list[bool]:
    """For each node, whether the result depends on it."""
    wanted, flags = {result}, []
    for node in reversed(graph.node):
        flags.append(bool(wanted & set(node.output)))
        if flags[-1]:
            wanted |= set(node.input)
    return flags[::-1]


def _tensor(proto: Any) -> Tensor:
    from onnx import numpy_helper

    return torch.from_numpy(np.array(numpy_helper.to_array(proto)))


# -- reading the nodes -------------------------------------------------------------------------------------------------


class _Reader:
    """Reads the nodes in order; keeps constants, the probe at every point, and the layers so far."""

    def __init__(self, proto: Any, constants: dict[str, Tensor], entry: str, probe: Tensor) -> None:
        self.proto, self.constants = proto, constants
        self.probes = {entry: probe}
        self.alias: dict[str, str] = {}
        self.steps: list[Step] = []

    def read(self, node: Any) -> None:
        names = [self.alias.get(name, name) for name in node.input]
        computed = [name for name in names if name in self.probes]
        absent = [name for name in names if name and name not in self.probes and name not in self.constants]
        if absent:
            raise InvalidInput(
                f"The ONNX operator {node.op_type} ({node.name}) reads {absent[0]!r}, which nothing makes."
            )
        if node.op_type == "Shape" and computed:
            self.constants[node.output[0]] = torch.tensor(self.probes[computed[0]].shape)
        elif not computed:
            self._fold(node, names)
        elif node.op_type in _PASSED_ON:
            self.alias[node.output[0]] = computed[0]
        elif len(computed) == 2 and node.op_type == "Add":
            self._append(Sum(), names, node)
        else:
            self._append(self._layer(node, names, computed), computed[:1], node)

    def _append(self, layer: nn.Module, inputs: list[str], node: Any) -> None:
        probe = self.probes[inputs[0]]
        output = node.output[1] if node.op_type == "LinearClassifier" else node.output[0]  # the first is the label
        try:
            with torch.no_grad():
                made = layer(*(self.probes[name] for name in inputs))
        except RuntimeError as error:
            raise InvalidInput(
                f"The ONNX operator {node.op_type} ({node.name}) does not fit an input of shape "
                f"{tuple(probe.shape[1:])}: {str(error).splitlines()[0]}"
            ) from error
        if made.shape[0] != probe.shape[0]:
            raise UnsupportedModel(f"The ONNX operator {node.op_type} ({node.name}) mixes the rows of a batch.")
        self.probes[output] = made
        self.steps.append(Step(layer, tuple(inputs), output))

    def _layer(self, node: Any, names: list[str], computed: list[str]) -> nn.Module:
        probe = self.probes[computed[0]]
        at = {place: self.constants[name] for place, name in enumerate(names) if name in self.constants}
        described = Node(node.op_type, node.name, _attributes(node), at, probe)
        if len(computed) > 1:
            raise described.refuse("more than one of its inputs is computed")
        if node.op_type in _RESHAPES:
            return _reshaped(described)
        if node.op_type not in LAYERS:
            raise UnsupportedModel(
                f"The ONNX operator {node.op_type} ({node.name or 'unnamed'}) cannot be read into torch; values and "
                f"labels still work. Readable are {', '.join(sorted({*LAYERS, *_RESHAPES, *_PASSED_ON}))}."
            )
        return LAYERS[node.op_type](described)

    def _fold(self, node: Any, names: list[str]) -> None:
        """Compute a node that depends on constants only, with onnx's own reference code."""
        from onnx import TensorProto, helper
        from onnx.reference import ReferenceEvaluator

        inputs = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in node.input if name]
        outputs = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in node.output if name]
        graph = helper.make_graph([node], "constant", inputs, outputs)
        single = helper.make_model(graph, opset_imports=self.proto.opset_import, ir_version=self.proto.ir_version)
        feeds = {given: self.constants[name].numpy() for given, name in zip(node.input, names, strict=True) if given}
        try:
            made = ReferenceEvaluator(single).run(None, feeds)
        except Exception as error:
            raise UnsupportedModel(f"The ONNX operator {node.op_type} ({node.name}) cannot be computed.") from error
        for name, value in zip((name for name in node.output if name), made, strict=True):
            self.constants[name] = torch.from_numpy(np.array(value))


def _attributes(node: Any) -> dict[str, Any]:
    from onnx import helper

    values = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}


def _reshaped(node: Node) -> nn.Module:
    """Any change of a row's shape: to flat, from flat, or between two."""
    probe = node.probe
    if node.op == "Flatten":
        if node.attributes.get("axis", 1) != 1:
            raise node.refuse("it flattens rows together")
        return nn.Flatten()
    if node.op == "Reshape":
        wanted = node.constant(1).tolist()
        if not node.attributes.get("allowzero", 0):
            wanted = [probe.shape[i] if extent == 0 else extent for i, extent in enumerate(wanted)]
    else:
        axes = node.attributes.get("axes") or (node.constants[1].tolist() if 1 in node.constants else None)
        if axes is None:
            raise node.refuse("it does not say which dimensions")
        wanted = list(probe.shape)
        if node.op == "Unsqueeze":
            for axis in sorted(a % (len(wanted) + len(axes)) for a in axes):
                wanted.insert(axis, 1)
        else:
            wanted = [e for i, e in enumerate(wanted) if i not in {a % len(wanted) for a in axes}]
    try:
        shape = probe.reshape(wanted).shape
    except RuntimeError as error:
        raise node.refuse(f"{tuple(probe.shape)} does not fit into {tuple(wanted)}") from error
    if not shape or shape[0] != probe.shape[0]:
        raise node.refuse("it mixes the rows of a batch")
    if len(shape) == 2:
        return nn.Flatten()
    unflatten = nn.Unflatten(1, tuple(shape[1:]))
    return unflatten if probe.ndim == 2 else nn.Sequential(nn.Flatten(), unflatten)

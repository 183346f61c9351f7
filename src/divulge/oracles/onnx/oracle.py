"""An ONNX file as an oracle: values and labels by ONNX Runtime, gradients and weights by reading the graph.

Where the graph is read, the two are compared on a few rows first. With ``precision="double"`` a float32 graph is
answered by the torch module in float64, since ONNX Runtime computes in the numbers of the file; so is a float64 file
with an operator that ONNX Runtime has in float32 only (Conv, Elu).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from divulge.core.errors import InvalidInput, MissingPackage, TargetError, UnsupportedModel
from divulge.oracles.arguments import Precision, checked_batch_size, checked_precision
from divulge.oracles.base import Access, Oracle, OutputKind, check_access
from divulge.oracles.local.torch_module import LIVE_NUMBERS, jacobian
from divulge.oracles.onnx.graph import FLOATS, Shape, load_proto, read_onnx
from divulge.oracles.onnx.signature import onnx_signature, without_zipmap
from divulge.oracles.rows import in_batches

NUMPY = {torch.float16: np.float16, torch.float32: np.float32, torch.float64: np.float64}

PER_INPUT = 256
"""Numbers that are held for each number of an input. A batch is one call that no deadline interrupts: it takes about a
second of a detector that takes 30 ms for a picture of 64 x 64."""


class OnnxOracle(Oracle):
    """An ONNX model. ``oracle.signature`` says which numbers of a row belong to which input.

    Parameters
    ----------
    path : str or Path
        The file.
    access : {"label", "value", "gradient", "weights"}, default "value"
        What may be asked. Gradients and weights need a graph of operators that can be read into torch.
    budget : int or None, default None
        The largest total number of rows.
    precision : {"native", "double"}, default "native"
        "double" answers by the graph read into torch, in float64.
    input_shape : sequence of int, mapping or None, default None
        The shape of one input, where the file leaves it open; by name where there are several inputs.
    fixed : mapping or None, default None
        Inputs that are the same for every row, by name: a number or an array. A state that has no entry for each row is
        held at zero by itself.
    device : str, torch.device or None, default None
        Where rows and answers live; the CPU by default.
    output : str or None, default None
        The output to read, or several separated by commas; by default the first that holds floating-point numbers.
    batch_size : int or None, default None
        Rows computed at once.

    Raises
    ------
    InvalidInput
        If the file cannot be read, or an option does not fit it.
    UnsupportedModel
        If an operator, an input or an output cannot be asked.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        access: Access = "value",
        budget: int | None = None,
        precision: Precision = "native",
        input_shape: Shape | None = None,
        fixed: Mapping[str, object] | None = None,
        device: str | torch.device | None = None,
        output: str | None = None,
        batch_size: int | None = None,
    ) -> None:
        check_access(access)
        checked_precision(precision)
        proto, changed = without_zipmap(load_proto(path))
        self.signature = onnx_signature(proto, input_shape, output, labels=access == "label", fixed=fixed)
        native, shape = self.signature.dtype, self.signature.shape
        self._native, self._shape = native, shape
        self._session = _session(proto.SerializeToString() if changed else str(path), path)
        self._module: nn.Module | None = None
        if not self.signature.is_plain and (access in ("gradient", "weights") or precision == "double"):
            raise UnsupportedModel(
                "Gradients, weights and double precision are read from ONNX models with one input and one output of "
                "floating-point numbers; ask this one for values or labels."
            )
        if (
            self._session is None
            or access in ("gradient", "weights")
            or (precision == "double" and native != torch.float64)
        ):
            self._module = read_onnx(proto, input_shape=input_shape, output=self.signature.outputs[0])
        self._rows = self.signature.rows
        probe = self._first_answer(torch.zeros(2, *shape, dtype=native))
        self._tells_labels = not probe.is_floating_point()
        self._decides_by = _own_decision(proto, self.signature.outputs[0]) if self._session is not None else None
        if self._tells_labels and (access != "label" or probe.shape[1] != 1):
            raise UnsupportedModel(
                f'The ONNX output {self.signature.outputs[0]} holds labels; build the oracle with access="label".'
            )
        super().__init__(
            input_dim=math.prod(shape),
            output_dim=probe.shape[1],
            access=access,
            budget=budget,
            dtype=torch.float64 if precision == "double" else native,
            device=device or "cpu",
            input_shape=shape,
            threshold=0.5 if _last_operator(proto, self.signature.outputs[0]) == "Sigmoid" else 0.0,
            output_kind=_output_kind(proto, self.signature.outputs[0]),
            vocabulary=self.signature.inputs[0].vocabulary if len(self.signature.inputs) == 1 else None,
        )
        self._batch_size = checked_batch_size(batch_size) or max(1, LIVE_NUMBERS // (PER_INPUT * self.input_dim))
        if self._module is not None:
            self._compare(self._module)
            self._module.to(dtype=self.dtype, device=self.device)

    def _run(self, X: Tensor, names: Sequence[str] | None = None) -> Tensor:
        """ONNX Runtime's answers [n, k]; where the file fixes the batch, in batches of that many."""
        if self._session is None:
            with torch.no_grad():
                return self._forward(X)
        rows = X.reshape(len(X), -1).cpu().numpy()
        size = self._rows or len(rows)
        answers = []
        for start in range(0, len(rows), size):
            batch = rows[start : start + size]
            missing = size - len(batch)
            padded = np.concatenate([batch, np.zeros((missing, *batch.shape[1:]), batch.dtype)]) if missing else batch
            answers.append(self._answer(padded, names or self.signature.outputs)[: len(batch)])
        if len({answer.shape[1] for answer in answers}) > 1:
            raise UnsupportedModel("The ONNX model answers different rows with different numbers of outputs.")
        return torch.from_numpy(np.concatenate(answers))

    def _first_answer(self, X: Tensor) -> Tensor:
        """The answers to two rows; row by row where the graph does not take two, or mixes them."""
        if self._session is None or self._rows is not None:
            return self._run(X)
        other = X.clone()
        other[0] = 1
        with suppress(TargetError, UnsupportedModel):
            probe, beside = self._run(X), self._run(other)
            if probe.shape == beside.shape and np.allclose(probe[1], beside[1], rtol=1e-3, atol=1e-4, equal_nan=True):
                return probe
        self._rows = 1
        return self._run(X)

    def _answer(self, rows: np.ndarray, names: Sequence[str]) -> np.ndarray:
        """The outputs for one batch side by side, [n, k]."""
        try:
            answers = self._session.run(list(names), self.signature.feeds(rows))
        except Exception as error:  # the runtime raises classes of its own that it does not export
            raise TargetError(f"ONNX Runtime could not answer: {str(error).splitlines()[0]}") from error
        for name, answer in zip(names, answers, strict=True):
            by_rows = isinstance(answer, np.ndarray) and (len(rows) == 1 or answer.shape[:1] == (len(rows),))
            if not by_rows or answer.size == 0:
                raise UnsupportedModel(f"The ONNX output {name} does not hold one row of numbers for each input.")
            if answer.dtype.kind not in "fiub":
                raise UnsupportedModel(f"The ONNX output {name} holds {answer.dtype}, not numbers.")
        return np.concatenate([answer.reshape(len(rows), -1) for answer in answers], axis=1)

    def _compare(self, module: nn.Module) -> None:
        generator = torch.Generator().manual_seed(0)
        rows = torch.randn(4, *self._shape, generator=generator, dtype=torch.float64).to(self._native)
        theirs = self._run(rows).double()
        with torch.no_grad():
            ours = module(_reshaped(module, rows)).reshape(len(rows), -1).double()
        tolerance = 1e4 * torch.finfo(self._native).eps * (1 + float(theirs.abs().max()))
        if ours.shape != theirs.shape or not float((ours - theirs).abs().max()) <= tolerance:
            raise UnsupportedModel(
                "The ONNX graph was read into torch but does not answer as ONNX Runtime does; ask for values only."
            )

    def _forward(self, X: Tensor) -> Tensor:
        if self._module is None:
            raise UnsupportedModel('Only an ONNX oracle built with access="gradient" has a torch graph to explain.')
        out: Tensor = self._module(_reshaped(self._module, X))
        return out.reshape(len(X), -1)

    def _value(self, X: Tensor) -> Tensor:
        if self._session is not None and self.dtype == self._native:
            return in_batches(X, self._batch_size, lambda rows: (self._run(rows).to(self.device),))[0]
        with torch.no_grad():
            return in_batches(X, self._batch_size, lambda rows: (self._forward(rows),))[0]

    def _label(self, X: Tensor) -> Tensor:
        if self._decides_by is not None:
            return in_batches(X, self._batch_size, lambda rows: (self._decided(rows),))[0]
        if not self._tells_labels:
            return super()._label(X)
        return self._value(X)[:, 0].long()

    def _decided(self, X: Tensor) -> Tensor:
        """The labels that the graph itself gives."""
        return self._run(X.to(self._native), [str(self._decides_by)]).reshape(len(X)).long()

    def _gradient(self, X: Tensor) -> tuple[Tensor, Tensor]:
        values, gradients = in_batches(X, self._batch_size, lambda rows: jacobian(self._forward, rows))
        return values, gradients

    def _weights(self) -> nn.Module:
        return copy.deepcopy(self._module)  # type: ignore[return-value]  # read when the access was granted


def _reshaped(module: nn.Module, X: Tensor) -> Tensor:
    """Rows in the shape that the module was read with."""
    shape: tuple[int, ...] = module.input_shape  # type: ignore[assignment]
    return X.reshape(len(X), *shape)


def _session(source: str | bytes, path: str | Path) -> Any:
    """ONNX Runtime's session, or None where it has no code for an operator in the file's number format."""
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingPackage("ONNX models are run by onnxruntime; install divulge[onnx].") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4  # its errors are raised too; printed, they carry names of the file as they are
    try:
        return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime raises classes of its own that it does not export
        if "NOT_IMPLEMENTED" in str(error):
            return None
        raise InvalidInput(f"ONNX Runtime cannot load {path}: {str(error).splitlines()[0]}") from error


def _last_operator(proto: Any, output: str) -> str | None:
    """The operator that makes an output, apart from those that leave numbers as they are."""
    made = {name: node for node in proto.graph.node for name in node.output}
    while output in made and made[output].op_type in ("Identity", "Cast", "Normalizer"):
        output = made[output].input[0]
    return str(made[output].op_type) if output in made else None


def _own_decision(proto: Any, output: str) -> str | None:
    """The output with the decisions of an SVM, whose scores do not say them; None for other models.

    Only where its classes are 0, 1, ...: a label is the number of a class.
    """
    made = next((node for node in proto.graph.node if node.op_type == "SVMClassifier"), None)
    if made is None or _last_operator(proto, output) != "SVMClassifier":
        return None
    classes = next((list(one.ints) for one in made.attribute if one.name == "classlabels_ints"), [])
    first = proto.graph.output[0]
    is_labels = first.type.tensor_type.elem_type not in FLOATS and first.name != output
    return str(first.name) if is_labels and classes == list(range(len(classes))) and classes else None


def _output_kind(proto: Any, output: str) -> OutputKind:
    """What an output means, as far as the operator that makes it says."""
    last = _last_operator(proto, output)
    if last in ("Sigmoid", "Softmax"):
        return "probabilities"
    if last == "LogSoftmax":
        return "log-probabilities"
    if last in ("LinearRegressor", "TreeEnsembleRegressor", "SVMRegressor"):
        return "quantities"
    if last in ("LinearClassifier", "TreeEnsembleClassifier") and _has_label_output(proto):
        return "probabilities"
    return "scores"


def _has_label_output(proto: Any) -> bool:
    """Whether the model is a scikit-learn classifier as skl2onnx writes it: labels, and their probabilities."""
    return bool(proto.graph.output[0].type.tensor_type.elem_type not in FLOATS)

"""An ONNX file behind the counter: values and labels by ONNX Runtime, gradients and weights by reading the graph.

Where the graph is read, the two are compared on a few rows first. With ``precision="double"`` a float32 graph is
answered by the torch module in float64, since ONNX Runtime computes in the numbers of the file; so is a float64 file
with an operator that ONNX Runtime has in float32 only (Conv, Elu).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from divulge.errors import InvalidInput, MissingPackage, TargetError, UnsupportedModel
from divulge.oracles.base import Access, Oracle, check_access, in_batches
from divulge.oracles.onnx_graph import FLOATS, chosen_output, graph_input, load_proto, read_onnx, row_shape
from divulge.oracles.torch_model import LIVE_NUMBERS, Precision, checked_batch_size, checked_precision, jacobian

NUMPY = {torch.float16: np.float16, torch.float32: np.float32, torch.float64: np.float64}


class OnnxOracle(Oracle):
    """Answers for an ONNX model. ``output`` names the output to read; by default the first one that holds numbers."""

    def __init__(
        self,
        path: str | Path,
        *,
        access: Access = "value",
        budget: int | None = None,
        precision: Precision = "native",
        input_shape: Sequence[int] | None = None,
        device: str | torch.device | None = None,
        output: str | None = None,
        batch_size: int | None = None,
    ) -> None:
        check_access(access)
        checked_precision(precision)
        proto = load_proto(path)
        entry = graph_input(proto)
        native = FLOATS[entry.type.tensor_type.elem_type]
        shape = row_shape(proto, input_shape)
        self._input, self._output = entry.name, chosen_output(proto, output, labels=access == "label")
        self._rows_fixed = entry.type.tensor_type.shape.dim[0].dim_value or None
        self._native, self._shape = native, shape
        self._session = _session(path)
        self._module: nn.Module | None = None
        if (
            self._session is None
            or access in ("gradient", "weights")
            or (precision == "double" and native != torch.float64)
        ):
            self._module = read_onnx(proto, input_shape=input_shape, output=self._output)
        probe = self._run(torch.zeros(2, *shape, dtype=native))
        self._tells_labels = not probe.is_floating_point()
        if self._tells_labels and (access != "label" or probe.shape[1] != 1):
            raise UnsupportedModel(
                f'The ONNX output {self._output} holds labels; build the oracle with access="label".'
            )
        super().__init__(
            input_dim=math.prod(shape),
            output_dim=probe.shape[1],
            access=access,
            budget=budget,
            dtype=torch.float64 if precision == "double" else native,
            device=device or "cpu",
            input_shape=shape,
            threshold=0.5 if _ends_in_sigmoid(proto, self._output) else 0.0,
        )
        self._batch_size = checked_batch_size(batch_size) or max(1, LIVE_NUMBERS // (64 * self.input_dim))
        if self._module is not None:
            self._compare(self._module)
            self._module.to(dtype=self.dtype, device=self.device)

    def _run(self, X: Tensor) -> Tensor:
        """ONNX Runtime's answers [n, k]; where the file fixes the batch, in batches of that many."""
        if self._session is None:
            with torch.no_grad():
                return self._forward(X)
        rows = X.reshape(len(X), *self._shape).to(self._native).cpu().numpy()
        size = self._rows_fixed or len(rows)
        answers = []
        for start in range(0, len(rows), size):
            batch = rows[start : start + size]
            missing = size - len(batch)
            padded = np.concatenate([batch, np.zeros((missing, *batch.shape[1:]), batch.dtype)]) if missing else batch
            try:
                (answer,) = self._session.run([self._output], {self._input: padded})
            except Exception as error:  # the runtime raises classes of its own that it does not export
                raise TargetError(f"ONNX Runtime could not answer: {str(error).splitlines()[0]}") from error
            if not isinstance(answer, np.ndarray) or answer.ndim == 0 or len(answer) != size:
                raise UnsupportedModel(
                    f"The ONNX output {self._output} does not hold one row of numbers for each input."
                )
            answers.append(answer[: len(batch)].reshape(len(batch), -1))
        return torch.from_numpy(np.concatenate(answers))

    def _compare(self, module: nn.Module) -> None:
        generator = torch.Generator().manual_seed(0)
        rows = torch.randn(4, *self._shape, generator=generator, dtype=torch.float64).to(self._native)
        theirs = self._run(rows).double()
        with torch.no_grad():
            ours = module(_as_read(module, rows)).reshape(len(rows), -1).double()
        tolerance = 1e4 * torch.finfo(self._native).eps * (1 + float(theirs.abs().max()))
        if ours.shape != theirs.shape or not float((ours - theirs).abs().max()) <= tolerance:
            raise UnsupportedModel(
                "The ONNX graph was read into torch but does not answer as ONNX Runtime does; ask for values only."
            )

    def _forward(self, X: Tensor) -> Tensor:
        if self._module is None:
            raise UnsupportedModel('Only an ONNX oracle built with access="gradient" has a torch graph to explain.')
        out: Tensor = self._module(_as_read(self._module, X))
        return out.reshape(len(X), -1)

    def _value(self, X: Tensor) -> Tensor:
        if self._session is not None and self.dtype == self._native:
            return in_batches(X, self._batch_size, lambda rows: (self._run(rows).to(self.device),))[0]
        with torch.no_grad():
            return in_batches(X, self._batch_size, lambda rows: (self._forward(rows),))[0]

    def _label(self, X: Tensor) -> Tensor:
        if not self._tells_labels:
            return super()._label(X)
        return self._value(X)[:, 0].long()

    def _gradient(self, X: Tensor) -> tuple[Tensor, Tensor]:
        values, gradients = in_batches(X, self._batch_size, lambda rows: jacobian(self._forward, rows))
        return values, gradients

    def _weights(self) -> nn.Module:
        return copy.deepcopy(self._module)  # type: ignore[return-value]  # read when the access was granted


def _as_read(module: nn.Module, X: Tensor) -> Tensor:
    shape: tuple[int, ...] = module.input_shape  # type: ignore[assignment]
    return X.reshape(len(X), *shape)


def _session(path: str | Path) -> Any:
    """ONNX Runtime's session, or None where it has no code for an operator in the file's number format."""
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingPackage("ONNX models are run by onnxruntime; install divulge[onnx].") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime raises classes of its own that it does not export
        if "NOT_IMPLEMENTED" in str(error):
            return None
        raise InvalidInput(f"ONNX Runtime cannot load {path}: {str(error).splitlines()[0]}") from error


def _ends_in_sigmoid(proto: Any, output: str) -> bool:
    made = {name: node for node in proto.graph.node for name in node.output}
    while output in made and made[output].op_type in ("Identity", "Cast"):
        output = made[output].input[0]
    return output in made and made[output].op_type == "Sigmoid"

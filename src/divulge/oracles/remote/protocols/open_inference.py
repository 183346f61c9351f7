"""The Open Inference Protocol v2: tensors by name, with shapes and datatypes announced, as JSON or as plain bytes.

Where the server lists ``binary_tensor_data`` among its extensions, numbers travel as little-endian bytes behind a short
JSON header, which is both exact and an order of magnitude faster than decimal digits.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np

from divulge.core.errors import BadAnswer, InvalidInput, ServerRefused, UnsupportedModel
from divulge.oracles.ledger import Kind
from divulge.oracles.remote.protocols.base import Send, joined_answer, read_object
from divulge.oracles.remote.signature import DATATYPES, Array, Signature, TensorNames

HEADER_LENGTH = "Inference-Header-Content-Length"
BINARY = "binary_tensor_data"
INTEGERS = {"INT8": "<i1", "INT16": "<i2", "INT32": "<i4", "INT64": "<i8", "UINT8": "<u1", "UINT16": "<u2",
            "UINT32": "<u4", "UINT64": "<u8", "BOOL": "?"}  # fmt: skip
Tensors = dict[str, dict[str, Any]]  # the announced tensors, by name


class OpenInferenceV2:
    """One model at ``http://HOST/v2/models/NAME``."""

    has_explain = False

    def __init__(self, url: str) -> None:
        self.url = url

    def signature(self, names: TensorNames, send: Send) -> Signature:
        metadata = read_object(send(self.url).body, self.url)
        inputs, outputs = _announced(metadata, "inputs"), _announced(metadata, "outputs")
        parameters = metadata.get("parameters")
        parameters = parameters if isinstance(parameters, dict) else {}
        signature = Signature(
            identity={key: metadata.get(key) for key in ("name", "versions", "platform", "inputs", "outputs")},
            input_name=names.input or "input-0",
            max_rows=_positive(parameters.get("max_batch_size")),
            output_dim=_positive(parameters.get("output_dim")),
            threshold=_finite(parameters.get("threshold")),
            binary=self._offers_binary(send),
        )
        return _with_outputs(_with_input(signature, inputs, names), outputs, names)

    def _offers_binary(self, send: Send) -> bool:
        root = self.url[: self.url.index("/v2/models/")] + "/v2"
        try:
            extensions = read_object(send(root).body, root).get("extensions")
        except (ServerRefused, BadAnswer):  # a server may keep that page to itself
            return False
        return isinstance(extensions, list) and BINARY in extensions

    def ask(self, kind: Kind, rows: Array, signature: Signature, send: Send) -> Array:
        wanted = signature.output_names(kind)
        body, headers = _request(rows, signature, [name for name in wanted if name is not None])
        reply = send(f"{self.url}/infer", body, headers=headers, numbers=signature.max_numbers(kind, rows))
        tensors = read_tensors(reply.body, reply.headers.get(HEADER_LENGTH), self.url)
        return joined_answer(kind, rows, [_named(tensors, name, self.url) for name in wanted], self.url)


# -- what the server announces ----------------------------------------------------------------------------------------


def _announced(metadata: dict[str, Any], which: str) -> Tensors:
    try:
        tensors = [
            {"name": str(t["name"]), "datatype": str(t["datatype"]), "shape": [int(extent) for extent in t["shape"]]}
            for t in metadata.get(which) or []
        ]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise BadAnswer(f"The server describes its {which} in a way that the v2 protocol does not.") from error
    return {str(tensor["name"]): tensor for tensor in tensors}


def _with_input(signature: Signature, inputs: Tensors, names: TensorNames) -> Signature:
    if not inputs:
        return signature
    if names.input is not None and names.input not in inputs:
        raise InvalidInput(f"The model has no input {names.input!r}; it has {', '.join(inputs)}.")
    if len(inputs) > 1:
        raise UnsupportedModel(f"The model takes {len(inputs)} inputs ({', '.join(inputs)}); divulge asks with one.")
    taken = next(iter(inputs.values()))
    if taken["datatype"] not in DATATYPES:
        raise UnsupportedModel(f"The model takes {taken['datatype']} inputs; divulge asks with {', '.join(DATATYPES)}.")
    row, most = _row_shape(taken["shape"])
    return replace(
        signature,
        input_name=taken["name"],
        input_datatype=taken["datatype"],
        input_shape=row,
        max_rows=most if signature.max_rows is None else signature.max_rows,
    )


def _row_shape(shape: list[int]) -> tuple[tuple[int, ...] | None, int | None]:
    """One row's shape and how many may go together, from an announced shape whose first extent counts rows."""
    if len(shape) == 1 and shape[0] > 0:  # some servers announce the row alone
        return tuple(shape), None
    if not shape or shape[0] == 0 or shape[0] > 1:
        raise UnsupportedModel(f"The model takes inputs of the fixed shape {shape}; the first extent must be free.")
    row = tuple(shape[1:])
    return (row if row and all(extent > 0 for extent in row) else None), (1 if shape[0] == 1 else None)


def _with_outputs(signature: Signature, outputs: Tensors, names: TensorNames) -> Signature:
    for name in (names.output, names.gradient, names.label):
        if outputs and name is not None and name not in outputs:
            raise InvalidInput(f"The model has no output {name!r}; it has {', '.join(outputs)}.")
    gradient = names.gradient or ("gradient" if "gradient" in outputs else None)
    label = names.label or ("label" if "label" in outputs else None)
    floats = [n for n, o in outputs.items() if o["datatype"] in DATATYPES and n not in (gradient, label)]
    output = names.output or (floats[0] if floats else None)
    signature = replace(signature, output=output, gradient=gradient, label=label)
    if output is not None and output in outputs:
        shape = outputs[output]["shape"][1:]
        width = math.prod(shape) if all(extent > 0 for extent in shape) else None
        signature = replace(signature, output_dim=width, output_datatype=outputs[output]["datatype"])
    if outputs and output is None:
        if label is None:
            raise UnsupportedModel(
                f"None of the model's outputs ({', '.join(outputs)}) holds floating-point numbers; name the one that "
                "holds the decision with label_output=."
            )
        signature = replace(signature, labels_only=True)
    return signature


def _finite(number: object) -> float:
    return number if isinstance(number, float) and math.isfinite(number) else 0.0


def _positive(number: object) -> int | None:
    return number if isinstance(number, int) and number > 0 else None


# -- one batch --------------------------------------------------------------------------------------------------------


def _request(rows: Array, signature: Signature, wanted: list[str]) -> tuple[bytes, dict[str, str]]:
    rows = np.ascontiguousarray(rows, dtype=DATATYPES[signature.input_datatype])
    tensor: dict[str, Any] = {
        "name": signature.input_name,
        "shape": [len(rows), *(signature.input_shape or rows.shape[1:])],
        "datatype": signature.input_datatype,
    }
    request: dict[str, Any] = {"inputs": [tensor]}
    if wanted:
        request["outputs"] = [{"name": name} for name in wanted]
    if not signature.binary:
        tensor["data"] = rows.ravel().tolist()
        return json.dumps(request).encode(), {"Content-Type": "application/json"}
    tensor["parameters"] = {"binary_data_size": rows.nbytes}
    request["parameters"] = {"binary_data_output": True}
    header = json.dumps(request).encode()
    headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(header))}
    return b"".join((header, rows.data)), headers


def read_tensors(body: bytes, header_length: str | None, where: str) -> dict[str, Array]:
    """The output tensors of an answer, from JSON or from the bytes behind it."""
    if header_length is None:
        header, blob = body, memoryview(b"")
    else:
        if not (header_length.isascii() and header_length.isdigit()) or int(header_length[:20]) > len(body):
            raise BadAnswer(f"{where} sent the header length {header_length[:20]!r} with {len(body)} bytes.")
        header, blob = body[: int(header_length)], memoryview(body)[int(header_length) :]
    outputs = read_object(header, where).get("outputs")
    if not isinstance(outputs, list):
        raise BadAnswer(f'{where} answered without "outputs".')
    tensors: dict[str, Array] = {}
    try:
        for output in outputs:
            tensors[str(output["name"])], blob = _tensor(output, blob)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise BadAnswer(
            f"{where} answered a tensor that does not match its own description ({type(error).__name__}: {error})."
        ) from error
    return tensors


def _tensor(described: dict[str, Any], blob: memoryview) -> tuple[Array, memoryview]:
    shape, datatype = [int(extent) for extent in described["shape"]], described["datatype"]
    if min(shape, default=0) < 0:
        raise ValueError(f"negative shape {shape}")
    size = (described.get("parameters") or {}).get("binary_data_size")
    if size is None:
        numbers = np.asarray(described["data"], dtype=np.float64 if datatype in DATATYPES else None)
        return numbers.reshape(shape), blob
    if not 0 <= size <= len(blob):
        raise ValueError(f"{size} bytes promised, {len(blob)} sent")
    return np.frombuffer(blob[:size], dtype=(DATATYPES | INTEGERS)[datatype]).reshape(shape), blob[size:]


def _named(tensors: dict[str, Array], name: str | None, where: str) -> Array:
    if name is None:  # the server never said what its outputs are called
        floats = [tensor for tensor in tensors.values() if tensor.dtype.kind == "f"]
        if not floats:
            raise BadAnswer(
                f"{where} answered no floating-point output (it has {', '.join(tensors) or 'none'}); name one with "
                "output=, or the decision with label_output=."
            )
        return floats[0]
    if name not in tensors:
        raise BadAnswer(f"{where} answered without the output {name!r}; it sent {', '.join(tensors) or 'none'}.")
    if tensors[name].dtype.kind not in "fiub":
        raise BadAnswer(f"{where} answered with text where the output {name!r} should hold numbers.")
    return tensors[name]

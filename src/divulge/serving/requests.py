"""Reading an inference request and writing its answer: the Open Inference Protocol v2, as JSON or with binary tensors.

Nothing here touches a socket or a model. A request that does not fit raises ``RequestRefused`` with the status and the
sentence to answer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import torch
from starlette.responses import Response

from divulge.oracles.remote.protocols.open_inference import HEADER_LENGTH
from divulge.oracles.remote.signature import DATATYPES, TORCH_TYPES, Array

DATATYPE_OF = {dtype: name for name, dtype in TORCH_TYPES.items()}
HEADER_BYTES = 1 << 20  # of a request beyond its numbers: names, braces, white space
BYTES_PER_NUMBER = 64  # indented JSON with all its digits
PARSED_AT_ONCE = 1 << 20  # bytes of JSON that are parsed without a look at the shape first
_SHAPE = re.compile(rb'"shape"\s*:\s*\[\s*(\d+\s*(?:,\s*\d+\s*)*)\]')
Outputs = Mapping[str, tuple[int, ...]]  # the served outputs, with the shape of one row


class RequestRefused(Exception):
    """A request that is answered with a status and one sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True)
class InferenceRequest:
    """One checked request: the rows [n, d], and each wanted output with whether it is sent as bytes."""

    rows: Array
    outputs: dict[str, bool]
    id: str | None


def parse_request(
    body: bytes, header_length: str | None, *, input_shape: Sequence[int], outputs: Outputs, max_batch: int
) -> InferenceRequest:
    """The request in ``body``, checked against the served model."""
    _check_shape_early(body, list(input_shape), max_batch)
    content, blob = _split(body, header_length)
    wanted = _wanted_outputs(content, outputs)
    rows = _input_rows(content, blob, tuple(input_shape), max_batch)
    name = content.get("id")
    return InferenceRequest(rows, wanted, name if isinstance(name, str) else None)


def _check_shape_early(body: bytes, input_shape: list[int], max_batch: int) -> None:
    """Refuse a large body for its stated shape, or for its size, before its numbers become Python objects."""
    if len(body) <= PARSED_AT_ONCE:
        return
    found = _SHAPE.search(body)
    if found is None:
        raise RequestRefused(400, "The request states no shape for its input.")
    extents = [int(extent[:20]) for extent in found[1].decode("ascii").split(",")]
    if extents[1:] != input_shape or not 1 <= extents[0] <= max_batch:
        raise RequestRefused(
            400, f"The input's shape is [rows, {', '.join(map(str, input_shape))}], with at most {max_batch:,} rows."
        )
    if len(body) > HEADER_BYTES + BYTES_PER_NUMBER * math.prod(extents):
        raise RequestRefused(413, "The request has more bytes than the numbers that its shape states can take.")


def _split(body: bytes, header_length: str | None) -> tuple[dict[str, Any], memoryview]:
    """The JSON object and the bytes behind it."""
    if header_length is None:
        header, blob = body, memoryview(b"")
    else:
        if not _is_number(header_length) or int(header_length) > len(body):
            raise RequestRefused(400, f"The header {HEADER_LENGTH} does not fit the body.")
        header, blob = body[: int(header_length)], memoryview(body)[int(header_length) :]
    try:
        content = orjson.loads(header)
    except ValueError as error:
        raise RequestRefused(400, "The request is not JSON.") from error
    if not isinstance(content, dict):
        raise RequestRefused(400, "The request is not a JSON object.")
    return content, blob


def _wanted_outputs(content: dict[str, Any], outputs: Outputs) -> dict[str, bool]:
    everywhere = bool(_mapping(content.get("parameters")).get("binary_data_output", False))
    asked = content.get("outputs")
    if not asked:
        return dict.fromkeys(outputs, everywhere)
    if not isinstance(asked, list) or not all(isinstance(output, dict) for output in asked):
        raise RequestRefused(400, '"outputs" is a list of objects with a name each.')
    for output in asked:
        if not isinstance(output.get("name"), str) or output["name"] not in outputs:
            raise RequestRefused(400, f"The model has no such output; it has {', '.join(outputs)}.")
    return {o["name"]: bool(_mapping(o.get("parameters")).get("binary_data", everywhere)) for o in asked}


def _input_rows(content: dict[str, Any], blob: memoryview, input_shape: tuple[int, ...], max_batch: int) -> Array:
    inputs = content.get("inputs")
    if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], dict):
        raise RequestRefused(400, '"inputs" is a list of exactly one tensor.')
    tensor = inputs[0]
    if tensor.get("name") != "input":
        raise RequestRefused(400, 'The model has one input, "input".')
    shape, expected = tensor.get("shape"), list(input_shape)
    if not isinstance(shape, list) or shape[1:] != expected or type(shape[0]) is not int or shape[0] < 1:
        raise RequestRefused(400, f"The input's shape is [rows, {', '.join(map(str, expected))}].")
    if shape[0] > max_batch:
        raise RequestRefused(400, f"A request may have at most {max_batch:,} rows.")
    datatype = tensor.get("datatype")
    if not isinstance(datatype, str) or datatype not in DATATYPES:
        raise RequestRefused(400, f"The input's datatype is one of {', '.join(DATATYPES)}.")
    numbers = _numbers(tensor, blob, np.dtype(DATATYPES[datatype]))
    if numbers.size != math.prod(shape):
        raise RequestRefused(400, f"The input holds {numbers.size} numbers, and its shape asks for another count.")
    return numbers.reshape(shape[0], -1)


def _numbers(tensor: dict[str, Any], blob: memoryview, dtype: np.dtype[Any]) -> Array:
    size = _mapping(tensor.get("parameters")).get("binary_data_size")
    if size is not None:
        if type(size) is not int or size != len(blob) or size % dtype.itemsize:
            raise RequestRefused(400, f"binary_data_size does not fit the {len(blob)} bytes that came.")
        return np.frombuffer(bytearray(blob), dtype=dtype)
    try:
        numbers = np.asarray(tensor.get("data"))
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise RequestRefused(400, "The input's data is a list of numbers, flat or nested as its shape says.") from error
    if numbers.dtype.kind not in "fiu":
        raise RequestRefused(400, "The input's data is a list of numbers, flat or nested as its shape says.")
    with np.errstate(over="ignore"):  # the oracle refuses what became infinite
        return numbers.astype(dtype).ravel()


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20


def _mapping(parameters: Any) -> dict[str, Any]:
    return parameters if isinstance(parameters, dict) else {}


def inference_response(head: dict[str, Any], request: InferenceRequest, tensors: Mapping[str, Array]) -> Response:
    """The answer: the wanted tensors as JSON, or as bytes behind a JSON header."""
    outputs, blobs = [], []
    for name, binary in request.outputs.items():
        array = np.ascontiguousarray(tensors[name])
        datatype = "INT64" if array.dtype.kind == "i" else DATATYPE_OF[torch.from_numpy(array).dtype]
        output: dict[str, Any] = {"name": name, "datatype": datatype, "shape": list(array.shape)}
        if binary:
            output["parameters"] = {"binary_data_size": array.nbytes}
            blobs.append(array.data)
        else:
            output["data"] = array.ravel()
        outputs.append(output)
    if request.id is not None:
        head = head | {"id": request.id}
    header = orjson.dumps(head | {"outputs": outputs}, option=orjson.OPT_SERIALIZE_NUMPY)
    if not blobs:
        return Response(header, media_type="application/json")
    return Response(
        b"".join((header, *blobs)),
        media_type="application/octet-stream",
        headers={HEADER_LENGTH: str(len(header))},
    )

"""What every protocol shares: the description of a remote model, the shape of an answer, and reading JSON with care.

An answer is one array with a row for each question: the k values; or the k values and then the k x d gradients; or one
label. Nothing here opens a socket: ``send`` is given by the caller.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from divulge.errors import BadAnswer
from divulge.oracles.base import Kind
from divulge.oracles.transport import Reply

Array = NDArray[Any]
DATATYPES = {"FP16": "<f2", "FP32": "<f4", "FP64": "<f8"}  # what a row or a value may be
UNKNOWN_WIDTH = 1000  # outputs that a model may have before its first answer tells


class Send(Protocol):
    """One request of the caller's: GET without a body, POST with one; ``numbers`` is how many may come back."""

    def __call__(
        self, url: str, body: bytes | None = None, *, headers: dict[str, str] | None = None, numbers: int = 0
    ) -> Reply: ...


@dataclass(frozen=True)
class Signature:
    """What is known of a remote model before it is asked; None where nobody said."""

    facts: dict[str, Any]  # what makes this target this one, for the journal
    input_shape: tuple[int, ...] | None = None
    output_dim: int | None = None
    input_name: str = "input"
    input_datatype: str = "FP64"
    output: str | None = None
    output_datatype: str | None = None
    gradient: str | None = None
    label: str | None = None
    labels_only: bool = False
    threshold: float = 0.0  # above it a single output means label 1
    most_rows: int | None = None
    binary: bool = False

    def wanted(self, kind: Kind) -> list[str | None]:
        """The names of the parts that answer a question, in order; None for the only one there is."""
        return {"value": [self.output], "gradient": [self.output, self.gradient], "label": [self.label]}[kind]

    def expected(self, kind: Kind, rows: Array) -> int:
        """At most how many numbers an honest answer holds."""
        width = self.output_dim or UNKNOWN_WIDTH
        return len(rows) * (width * (1 + rows.shape[1]) if kind == "gradient" else width)


@dataclass(frozen=True)
class Names:
    """Which tensors the user named; None leaves the choice to what the server says."""

    input: str | None = None
    output: str | None = None
    gradient: str | None = None
    label: str | None = None


class Wire(Protocol):
    """A protocol bound to one model's address."""

    explains: bool  # whether it has an endpoint for gradients

    def signature(self, names: Names, send: Send) -> Signature: ...

    def ask(self, kind: Kind, rows: Array, about: Signature, send: Send) -> Array: ...


def side_by_side(kind: Kind, rows: Array, parts: list[Array], where: str) -> Array:
    """The parts of an answer, one row for each question, or BadAnswer if they are not that."""
    n, d = rows.shape
    for part in parts:
        if part.ndim == 0 or len(part) != n:
            got = f"{len(part)} rows" if part.ndim else "a single number"
            raise BadAnswer(f"{where} answered {got} to a question of {n} rows.")
    flat = [part.reshape(n, -1) for part in parts]
    if kind == "label":
        if flat[0].shape[1] != 1 or not np.array_equal(flat[0], np.rint(flat[0])):
            raise BadAnswer(f"{where} answered something other than one whole number for each label.")
        return flat[0].astype(np.int64)
    k = flat[0].shape[1]
    if k == 0:
        raise BadAnswer(f"{where} answered rows with no numbers in them.")
    if kind == "gradient" and flat[1].shape[1] != k * d:
        raise BadAnswer(
            f"{where} answered gradients of shape {list(parts[1].shape)}; for {k} outputs and {d} inputs {k * d} "
            "numbers a row were expected."
        )
    return flat[0] if len(flat) == 1 else np.concatenate(flat, axis=1)


def read_object(body: bytes, where: str) -> dict[str, Any]:
    """The JSON object in an answer, or BadAnswer that says what came instead."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        kind = "a web page" if body.lstrip()[:1] == b"<" else "something that is not JSON"
        raise BadAnswer(f"{where} answered with {kind} instead of a tensor; check the address.") from error
    if not isinstance(content, dict):
        raise BadAnswer(f"{where} answered with a JSON {type(content).__name__} instead of an object.")
    return content

"""What every protocol shares: sending a request, the layout of an answer, and reading JSON.

An answer is one array with a row for each query row: the k values; or the k values and then the k x d gradients; or
one label. Nothing here opens a socket: the caller provides ``send``.
"""

from __future__ import annotations

import json
from typing import Any, Protocol

import numpy as np

from divulge.core.errors import BadAnswer
from divulge.oracles.ledger import Kind
from divulge.oracles.remote.signature import Array, Signature, TensorNames
from divulge.oracles.remote.transport import Reply


class Send(Protocol):
    """Send one request. ``numbers`` is the most numbers that the answer may hold."""

    def __call__(
        self, url: str, body: bytes | None = None, *, headers: dict[str, str] | None = None, numbers: int = 0
    ) -> Reply: ...


class ModelProtocol(Protocol):
    """A protocol bound to one model's address."""

    has_explain: bool  # whether it has an endpoint for gradients

    def signature(self, names: TensorNames, send: Send) -> Signature:
        """What the server announces, with the tensors that the user named."""
        ...

    def ask(self, kind: Kind, rows: Array, signature: Signature, send: Send) -> Array:
        """The answer to one batch of rows."""
        ...


def joined_answer(kind: Kind, rows: Array, parts: list[Array], where: str) -> Array:
    """The parts of an answer side by side, one row for each query row, or BadAnswer if they do not fit."""
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

"""Numbers as nested JSON lists, as KServe v1 and MLflow send them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from divulge.core.errors import BadAnswer
from divulge.oracles.remote.protocols.base import Send, read_object
from divulge.oracles.remote.signature import Array, Signature


def post_json(url: str, question: dict[str, Any], send: Send, most: int) -> dict[str, Any]:
    """The JSON object that the server answers to a JSON object."""
    body = json.dumps(question).encode()
    return read_object(send(url, body, headers={"Content-Type": "application/json"}, numbers=most).body, url)


def shaped(rows: Array, signature: Signature) -> Array:
    """The rows in the shape that one input has."""
    return rows.reshape(len(rows), *signature.input_shape) if signature.input_shape else rows


def numbers_in(nested: Any, name: str | None, where: str) -> Array:
    """Numbers out of nested lists; with a name, out of a table of named columns or of a record for each row."""
    try:
        if name is not None and isinstance(nested, dict):
            nested = nested[name]
        elif name is not None and isinstance(nested, list) and nested and isinstance(nested[0], dict):
            nested = [record[name] for record in nested]
        return np.asarray(nested, dtype=np.float64)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        wanted = "numbers" if name is None else f"numbers under {name!r}"
        raise BadAnswer(
            f"{where} did not answer with {wanted} ({type(error).__name__}: {error}); the answer begins "
            f"{json.dumps(nested)[:80]}."
        ) from error

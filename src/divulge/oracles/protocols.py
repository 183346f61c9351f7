"""Which protocol an address speaks, and the two that travel as nested lists: KServe v1 and MLflow's /invocations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from divulge.errors import BadAnswer, InvalidInput
from divulge.oracles.base import Kind
from divulge.oracles.open_inference import V2
from divulge.oracles.wire import Array, Names, Send, Signature, Wire, read_object, side_by_side


def wire_for(url: str, columns: Sequence[str] | None = None) -> Wire:
    """The protocol that an address speaks, told by its path."""
    if "/v2/models/" in url:
        return V2(url.removesuffix("/infer"))
    if "/v1/models/" in url:
        return V1(url.removesuffix(":predict").removesuffix(":explain"))
    if url.endswith("/invocations"):
        return MLflow(url, columns)
    raise InvalidInput(
        f"{url} does not say which protocol it speaks; give http://HOST/v2/models/NAME (Open Inference Protocol), "
        "http://HOST/v1/models/NAME (KServe v1) or http://HOST/invocations (MLflow)."
    )


class V1:
    """KServe v1: ``:predict`` for values, ``:explain`` for gradients; nothing is announced."""

    explains = True

    def __init__(self, url: str) -> None:
        self.url = url

    def signature(self, names: Names, send: Send) -> Signature:
        metadata = read_object(send(self.url).body, self.url)
        facts = {"name": metadata.get("name")}
        return Signature(facts, output=names.output, gradient=names.gradient, label=names.label)

    def ask(self, kind: Kind, rows: Array, about: Signature, send: Send) -> Array:
        question = {"instances": _shaped(rows, about).tolist()}
        most = about.expected(kind, rows)
        if kind != "gradient":
            predictions = _post(f"{self.url}:predict", question, send, most).get("predictions")
            return side_by_side(kind, rows, [_numbers(predictions, about.wanted(kind)[0], self.url)], self.url)
        reply = _post(f"{self.url}:explain", question, send, most)
        if "explanations" not in reply:
            raise BadAnswer(f'{self.url}:explain answered without "explanations".')
        predictions = reply.get("predictions")
        if predictions is None:  # an explainer may leave them out
            predictions = _post(f"{self.url}:predict", question, send, most).get("predictions")
        values = _numbers(predictions, about.output, self.url)
        gradients = _numbers(reply["explanations"], about.gradient, self.url)
        return side_by_side(kind, rows, [values, gradients], self.url)


class MLflow:
    """``POST /invocations`` with tensor inputs, or with named columns where the model's signature has them."""

    explains = False

    def __init__(self, url: str, columns: Sequence[str] | None = None) -> None:
        self.url = url
        self.columns = list(columns) if columns is not None else None

    def signature(self, names: Names, send: Send) -> Signature:
        shape = (len(self.columns),) if self.columns else None
        facts = {"columns": self.columns}
        return Signature(facts, shape, output=names.output, gradient=names.gradient, label=names.label)

    def ask(self, kind: Kind, rows: Array, about: Signature, send: Send) -> Array:
        nested = _shaped(rows, about).tolist()
        question = (
            {"dataframe_split": {"columns": self.columns, "data": nested}} if self.columns else {"inputs": nested}
        )
        predictions = _post(self.url, question, send, about.expected(kind, rows)).get("predictions")
        parts = [_numbers(predictions, name, self.url) for name in about.wanted(kind)]
        return side_by_side(kind, rows, parts, self.url)


def _post(url: str, question: dict[str, Any], send: Send, most: int) -> dict[str, Any]:
    body = json.dumps(question).encode()
    return read_object(send(url, body, headers={"Content-Type": "application/json"}, numbers=most).body, url)


def _shaped(rows: Array, about: Signature) -> Array:
    return rows.reshape(len(rows), *about.input_shape) if about.input_shape else rows


def _numbers(nested: Any, name: str | None, where: str) -> Array:
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

"""MLflow's ``/invocations``: tensor inputs, or named columns where the model's signature has them."""

from __future__ import annotations

from collections.abc import Sequence

from divulge.oracles.ledger import Kind
from divulge.oracles.remote.protocols.base import Send, joined_answer
from divulge.oracles.remote.protocols.nested_lists import numbers_in, post_json, shaped
from divulge.oracles.remote.signature import Array, Signature, TensorNames


class MLflow:
    """``POST /invocations`` with tensor inputs, or with named columns where the model's signature has them."""

    has_explain = False

    def __init__(self, url: str, columns: Sequence[str] | None = None) -> None:
        self.url = url
        self.columns = list(columns) if columns is not None else None

    def signature(self, names: TensorNames, send: Send) -> Signature:
        shape = (len(self.columns),) if self.columns else None
        identity = {"columns": self.columns}
        return Signature(identity, shape, output=names.output, gradient=names.gradient, label=names.label)

    def ask(self, kind: Kind, rows: Array, signature: Signature, send: Send) -> Array:
        nested = shaped(rows, signature).tolist()
        question = (
            {"dataframe_split": {"columns": self.columns, "data": nested}} if self.columns else {"inputs": nested}
        )
        predictions = post_json(self.url, question, send, signature.max_numbers(kind, rows)).get("predictions")
        parts = [numbers_in(predictions, name, self.url) for name in signature.output_names(kind)]
        return joined_answer(kind, rows, parts, self.url)

"""KServe v1: rows as nested lists, ``:predict`` for values and ``:explain`` for gradients. Nothing is announced."""

from __future__ import annotations

from divulge.core.errors import BadAnswer
from divulge.oracles.ledger import Kind
from divulge.oracles.remote.protocols.base import Send, joined_answer, read_object
from divulge.oracles.remote.protocols.nested_lists import numbers_in, post_json, shaped
from divulge.oracles.remote.signature import Array, Signature, TensorNames


class KServeV1:
    """KServe v1: ``:predict`` for values, ``:explain`` for gradients; nothing is announced."""

    has_explain = True

    def __init__(self, url: str) -> None:
        self.url = url

    def signature(self, names: TensorNames, send: Send) -> Signature:
        metadata = read_object(send(self.url).body, self.url)
        identity = {"name": metadata.get("name")}
        return Signature(identity, output=names.output, gradient=names.gradient, label=names.label)

    def ask(self, kind: Kind, rows: Array, signature: Signature, send: Send) -> Array:
        question = {"instances": shaped(rows, signature).tolist()}
        most = signature.max_numbers(kind, rows)
        if kind != "gradient":
            predictions = post_json(f"{self.url}:predict", question, send, most).get("predictions")
            return joined_answer(
                kind, rows, [numbers_in(predictions, signature.output_names(kind)[0], self.url)], self.url
            )
        reply = post_json(f"{self.url}:explain", question, send, most)
        if "explanations" not in reply:
            raise BadAnswer(f'{self.url}:explain answered without "explanations".')
        predictions = reply.get("predictions")
        if predictions is None:  # an explainer may leave them out
            predictions = post_json(f"{self.url}:predict", question, send, most).get("predictions")
        values = numbers_in(predictions, signature.output, self.url)
        gradients = numbers_in(reply["explanations"], signature.gradient, self.url)
        return joined_answer(kind, rows, [values, gradients], self.url)

"""Any HTTP API with JSON of its own shape: a template of the request, and a path into the response.

In the template a string that is a placeholder stands for the input:

- ``"$rows"``: all rows of a batch as nested lists, several rows in one request,
- ``"$records"``: the same as a list of objects, by the names in ``columns``,
- ``"$row"`` and ``"$record"``: one row, so that each request carries one,
- ``"$0"``, ``"$1"``, ...: one number of one row, for fields with names of their own,
- ``"$rows:int"``, ``"$row:int"``, ``"$0:int"``: the same as whole numbers, such as token ids.

Inside a longer string (a prompt) ``$row`` and ``$0`` are replaced by their numbers.

The path is a JSON pointer (RFC 6901) where it is empty or starts with a slash, and a JMESPath expression otherwise. It
leads to one answer for each row of the request, or to the answer itself where a request carries one row. True and false
count as 1 and 0, so that ``[label == 'no', label == 'yes']`` reads a label that is text. A question for labels takes a
single whole number as the label, and of several numbers the place of the largest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import jmespath
import numpy as np

from divulge.core.errors import BadAnswer, InvalidInput
from divulge.oracles.ledger import Kind
from divulge.oracles.remote.protocols.base import Send, joined_answer
from divulge.oracles.remote.signature import Array, Signature, TensorNames

_WHOLE = re.compile(r"\$(rows|records|row|record|\d+)(:int)?")
_INSIDE = re.compile(r"\$(row|\d+)(:int)?")
PLACEHOLDERS = '"$rows", "$records", "$row", "$record" or "$0", "$1", ...'


class JsonTemplate:
    """``POST`` of a filled-in template; the answer is what the path leads to. Nothing is announced."""

    has_explain = False

    def __init__(self, url: str, request: object, response: str, columns: Sequence[str] | None = None) -> None:
        self.url = url
        self.template = _parsed(request)
        self.response = checked_path(response)
        self.columns = list(columns) if columns is not None else None
        used = set(_placeholders(self.template))
        if not used:
            raise InvalidInput(f"The request template says nowhere where the input goes; write {PLACEHOLDERS}.")
        if len({name in ("rows", "records") for name in used}) > 1:
            raise InvalidInput("The request template asks for one row and for many; use $row or $rows, not both.")
        if used & {"record", "records"} and self.columns is None:
            raise InvalidInput('"$record" and "$records" are objects by column; name the columns with columns=.')
        self.one_by_one = not used & {"rows", "records"}
        self._width = max((int(name) + 1 for name in used if name.isdigit()), default=0)

    def signature(self, names: TensorNames, send: Send) -> Signature:
        identity = {"request": self.template, "response": self.response, "columns": self.columns}
        width = len(self.columns) if self.columns else self._width
        return Signature(
            identity,
            (width,) if width else None,
            output=self.response,
            gradient=None if names.gradient is None else checked_path(names.gradient),
            label=self.response if names.label is None else checked_path(names.label),
            max_rows=1 if self.one_by_one else None,
        )

    def ask(self, kind: Kind, rows: Array, signature: Signature, send: Send) -> Array:
        shape = signature.input_shape or (rows.shape[1],)
        if self._width > rows.shape[1]:
            raise InvalidInput(
                f"The request template asks for ${self._width - 1}, and a row has {rows.shape[1]} numbers."
            )
        filled = _filled(self.template, rows.reshape(len(rows), *shape), self.columns)
        headers = {"Content-Type": "application/json"}
        body = json.dumps(filled).encode()
        reply = send(self.url, body, headers=headers, numbers=signature.max_numbers(kind, rows)).body
        document = _document(reply, self.url)
        parts = [self._numbers(document, path or "") for path in signature.output_names(kind)]
        return joined_answer(kind, rows, [_decided(parts[0])] if kind == "label" else parts, self.url)

    def _numbers(self, document: Any, path: str) -> Array:
        found = _at(document, path)
        try:
            if found is None:
                raise ValueError("nothing is there")
            numbers = np.asarray(found, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise BadAnswer(
                f"{self.url} has no numbers at {path!r} ({error}); its answer begins {json.dumps(document)[:200]}."
            ) from error
        return numbers[None] if self.one_by_one else numbers


def _decided(answer: Array) -> Array:
    """One label for each row: the number that stands there, or the place of the largest of several."""
    several = answer.ndim > 1 and answer[0].size > 1
    return answer.reshape(len(answer), -1).argmax(axis=1) if several else answer


def checked_path(path: str) -> str:
    """The path again, once it is a JSON pointer or a JMESPath expression."""
    if not isinstance(path, str):
        raise InvalidInput(f"response= is a JSON pointer or a JMESPath expression, not a {type(path).__name__}.")
    if path and not path.startswith("/"):
        try:
            _compiled(path)
        except jmespath.exceptions.JMESPathError as error:
            fault = " ".join(str(error).split())[:150]
            raise InvalidInput(
                f"The response path {path!r} is neither a JSON pointer nor JMESPath: {fault}."
            ) from error
    return path


@cache
def _compiled(path: str) -> Any:
    return jmespath.compile(path)


def _parsed(request: object) -> Any:
    """The template as JSON: text is parsed, anything else is taken as it is."""
    try:
        return json.loads(request) if isinstance(request, str) else json.loads(json.dumps(request))
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f'The request template is not JSON ({error}); write it like {{"inputs": "$rows"}}.'
        ) from error


def _document(body: bytes, where: str) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        kind = "a web page" if body.lstrip()[:1] == b"<" else "something that is not JSON"
        raise BadAnswer(f"{where} answered with {kind}; check the address.") from error


def _placeholders(template: Any) -> list[str]:
    """The names of the placeholders in a template."""
    if isinstance(template, dict):
        return [name for value in template.values() for name in _placeholders(value)]
    if isinstance(template, list):
        return [name for value in template for name in _placeholders(value)]
    if not isinstance(template, str):
        return []
    whole = _WHOLE.fullmatch(template)
    return [whole[1]] if whole else [inside[1] for inside in _INSIDE.finditer(template)]


def _filled(template: Any, rows: Array, columns: list[str] | None) -> Any:
    """The template with the rows [n, *shape] in the places of its placeholders."""
    if isinstance(template, dict):
        return {key: _filled(value, rows, columns) for key, value in template.items()}
    if isinstance(template, list):
        return [_filled(value, rows, columns) for value in template]
    if not isinstance(template, str):
        return template
    whole = _WHOLE.fullmatch(template)
    if whole:
        return _inserted(whole[1], bool(whole[2]), rows, columns)
    return _INSIDE.sub(lambda part: _as_text(_inserted(part[1], bool(part[2]), rows, columns)), template)


def _inserted(name: str, whole: bool, rows: Array, columns: list[str] | None) -> Any:
    numbers = np.rint(rows).astype(np.int64) if whole else rows
    if name == "rows":
        return numbers.tolist()
    if name == "row":
        return numbers[0].tolist()
    if name.isdigit():
        return numbers[0].reshape(-1)[int(name)].item()
    records = [dict(zip(columns or (), row, strict=True)) for row in numbers.reshape(len(numbers), -1).tolist()]
    return records if name == "records" else records[0]


def _as_text(value: Any) -> str:
    return json.dumps(value).strip("[]")


def _at(document: Any, path: str) -> Any:
    """What a JSON pointer or a JMESPath expression leads to; None where there is nothing."""
    if path and not path.startswith("/"):
        try:
            return _compiled(path).search(document)
        except jmespath.exceptions.JMESPathError:
            return None
    for token in path.split("/")[1:]:
        key = token.replace("~1", "/").replace("~0", "~")
        if isinstance(document, list) and key.isdigit() and int(key) < len(document):
            document = document[int(key)]
        elif isinstance(document, dict) and key in document:
            document = document[key]
        else:
            return None
    return document

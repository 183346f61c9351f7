"""A remote model behind the counter: batches, a few requests at a time, and a journal that survives being killed.

The ledger counts the rows that the attack was given, whether the server answered them now or an earlier run of the same
journal did, so that a resumed run reports the cost of an uninterrupted one; ``ledger.requests`` counts inference
requests actually sent, retries included, and ``from_journal`` the rows that cost none. When a question fails half-way,
the ledger keeps the rows that were answered and the error carries them in ``partial``.

With a journal each distinct row is asked once, ever: a target that answers with fresh noise looks deterministic through
it. Leave the journal out where averaging repeated answers is the point.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import numpy as np
import torch
from torch import Tensor

from divulge.errors import (
    AccessDenied,
    BadAnswer,
    DivulgeError,
    InvalidInput,
    JournalMismatch,
    NotDeterministic,
    ServerError,
    UnsupportedModel,
)
from divulge.oracles.asking import Asker, Received
from divulge.oracles.base import Access, Kind, Oracle, check_access
from divulge.oracles.journal import Journal
from divulge.oracles.protocols import wire_for
from divulge.oracles.torch_model import Precision
from divulge.oracles.transport import Reply, Transport
from divulge.oracles.wire import DATATYPES, Array, Names

MOST_ROWS = 1024  # of one request, unless the user or the server says otherwise
MOST_NUMBERS = 1 << 19  # of one request or answer: 4 MB of float64
TORCH_TYPES = {"FP16": torch.float16, "FP32": torch.float32, "FP64": torch.float64}
NUMPY_TYPES = {TORCH_TYPES[name]: np.dtype(code) for name, code in DATATYPES.items()}


@dataclass(frozen=True)
class Answered:
    """What a failed question still brought: the places in the question that were answered, and the answers."""

    index: Tensor  # [m]
    values: Tensor | None = None  # [m, k]
    gradients: Tensor | None = None  # [m, k, d]
    labels: Tensor | None = None  # [m]


class HttpOracle(Oracle):
    """Answers of a model at an address: Open Inference Protocol v2, KServe v1 or MLflow, told apart by the path.

    What the server announces (shape, number format, outputs) is read from it; what it does not (v1 and MLflow announce
    nothing) is given by ``input_shape``, ``output_dim`` and ``dtype``. Where the number of outputs stays unknown, one
    row of zeros is asked at the start, and counted. ``rate_limit`` is in requests a second; ``timeout`` is for one
    whole request. ``token_env`` names the environment variable that holds the bearer token.
    """

    def __init__(
        self,
        url: str,
        *,
        access: Access = "value",
        budget: int | None = None,
        journal: str | Path | None = None,
        token_env: str | None = None,
        rate_limit: float | None = None,
        concurrency: int = 4,
        timeout: float = 30.0,
        retries: int = 5,
        batch_size: int | None = None,
        input_name: str | None = None,
        output: str | None = None,
        gradient_output: str | None = None,
        label_output: str | None = None,
        columns: Sequence[str] | None = None,
        input_shape: Sequence[int] | None = None,
        output_dim: int | None = None,
        threshold: float | None = None,
        precision: Precision = "native",
        dtype: torch.dtype | None = None,
        device: str | torch.device | None = None,
    ) -> None:
        check_access(access)
        if batch_size is not None and batch_size < 1:
            raise InvalidInput(f"A batch of {batch_size} rows makes no sense; give one or more.")
        address = _address(url)
        self.url = str(address)
        self._transport = Transport(
            address, token=_token(token_env), timeout=timeout, retries=retries, rate_limit=rate_limit,
            concurrency=concurrency,
        )  # fmt: skip
        self._asker = Asker(self._ask_batch, concurrency=concurrency)
        try:
            self._wire = wire_for(self.url, columns)
            with self._clean_errors():
                names = Names(input_name, output, gradient_output, label_output)
                self._about = self._wire.signature(names, self._get)
            self._settle(access, input_shape, output_dim, precision, dtype)
            super().__init__(
                input_dim=math.prod(self._about.input_shape or ()),
                output_dim=self._about.output_dim or 0,
                access=access,
                budget=budget,
                dtype=self._dtype,
                device=device or "cpu",
                input_shape=self._about.input_shape,
                threshold=self._about.threshold if threshold is None else threshold,
            )
            self._batch_size = batch_size
            if journal is not None:
                self._asker.journal = Journal(journal, target=self.url, fingerprint=self._fingerprint())
            if not self.output_dim:
                self._learn_output_dim()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the connections and the journal."""
        self._asker.close()
        self._transport.close()

    def __enter__(self) -> HttpOracle:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    @property
    def from_journal(self) -> int:
        """Rows given to the attack without asking the server."""
        return self._asker.from_journal

    @property
    def network_seconds(self) -> float:
        """Wall-clock seconds during which at least one request was out."""
        return self._transport.network_seconds

    def check_deterministic(self, seed: int = 0) -> None:
        """Ask one random row twice, past the journal, and raise NotDeterministic if the answers differ."""
        kind: Kind = "value" if self.allows("value") else "label"
        row = torch.randn(1, self.input_dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        self.ledger.charge(kind, 2)
        try:
            pair = self._asker.fresh(self._wire_kind(kind), np.repeat(row.to(self.dtype).numpy(), 2, axis=0), 1)
        except BaseException as error:
            self.ledger.refund(kind, 2 - getattr(error, "rows_answered", 0))
            raise
        if not np.array_equal(pair[0], pair[1], equal_nan=True):
            raise NotDeterministic(
                f"{self.url} answered one row differently twice (by {np.abs(pair[0] - pair[1]).max():.3g}); treat it "
                "as noisy, and use no journal where repeated answers are to be averaged."
            )

    # -- what the server's word and the user's come to ----------------------------------------------------------------

    def _settle(
        self,
        access: Access,
        input_shape: Sequence[int] | None,
        output_dim: int | None,
        precision: Precision,
        dtype: torch.dtype | None,
    ) -> None:
        about = self._about
        if access == "weights":
            raise AccessDenied("A remote model does not hand out its weights; choose label, value or gradient access.")
        if about.labels_only and access != "label":
            raise AccessDenied(f'{self.url} answers labels only; build the oracle with access="label".')
        if access == "gradient" and about.gradient is None and not self._wire.explains:
            raise AccessDenied(
                f"{self.url} announces no output that holds gradients; name it with gradient_output= if there is one."
            )
        if input_shape is not None:
            about = replace(about, input_shape=tuple(int(extent) for extent in input_shape))
        if not about.input_shape or min(about.input_shape) < 1:
            raise InvalidInput(
                f"{self.url} does not say what one input looks like; pass input_shape=(...), such as (64,)."
            )
        if output_dim is not None:
            if about.output_dim not in (None, output_dim):
                raise InvalidInput(
                    f"The model announces {about.output_dim} outputs, and output_dim={output_dim} was given."
                )
            about = replace(about, output_dim=output_dim)
        elif about.output_dim is None and (about.labels_only or (access == "label" and about.label is not None)):
            about = replace(about, output_dim=1)  # labels are all that will be asked
        announced = [TORCH_TYPES[name] for name in (about.input_datatype, about.output_datatype) if name in TORCH_TYPES]
        native = max(announced, key=lambda kind: torch.finfo(kind).eps)
        self._dtype = dtype if dtype is not None else native
        if self._dtype not in NUMPY_TYPES:
            raise InvalidInput(f"dtype is torch.float16, float32 or float64, not {dtype}.")
        if precision == "double" and self._dtype != torch.float64:
            raise UnsupportedModel(
                f'{self.url} answers in {str(self._dtype).removeprefix("torch.")}; precision="double" needs a server '
                "that computes in FP64."
            )
        self._about = about

    def _fingerprint(self) -> str:
        about = self._about
        facts = {
            "server": about.facts, "input_shape": about.input_shape, "dtype": str(self._dtype),
            "tensors": [about.input_name, about.output, about.gradient, about.label],
        }  # fmt: skip
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def _learn_output_dim(self) -> None:
        kind: Kind = "label" if self.access == "label" else "value"
        self.ledger.charge(kind, 1)
        try:
            answer = self._fetch("value", torch.zeros(1, self.input_dim, dtype=self.dtype))
        except BaseException:
            self.ledger.refund(kind, 1)
            raise
        self.output_dim = answer.shape[1]
        self._about = replace(self._about, output_dim=self.output_dim)

    # -- the questions ------------------------------------------------------------------------------------------------

    def _value(self, X: Tensor) -> Tensor:
        return self._values(self._fetch("value", X))

    def _gradient(self, X: Tensor) -> tuple[Tensor, Tensor]:
        return self._gradients(self._fetch("gradient", X))

    def _label(self, X: Tensor) -> Tensor:
        if self._wire_kind("label") == "label":
            return self._labels(self._fetch("label", X))
        return super()._label(X)

    def _wire_kind(self, kind: Kind) -> Kind:
        """What the server is asked: a label is decided here from values where the server has no label output."""
        return "value" if kind == "label" and self._about.label is None else kind

    def _values(self, answer: Array) -> Tensor:
        return torch.from_numpy(answer).to(self.device)

    def _gradients(self, answer: Array) -> tuple[Tensor, Tensor]:
        both = torch.from_numpy(answer).to(self.device)
        k, d = self.output_dim, self.input_dim
        return both[:, :k].contiguous(), both[:, k:].reshape(len(both), k, d)

    def _labels(self, answer: Array) -> Tensor:
        return torch.from_numpy(answer).to(self.device)[:, 0]

    def _fetch(self, kind: Kind, X: Tensor) -> Array:
        rows = np.ascontiguousarray(X.cpu().numpy())
        try:
            answers = self._asker.answers(kind, rows, self._rows_a_request(kind), self._numpy_type(kind))
        except DivulgeError as error:
            if isinstance(error.partial, Received):
                error.partial = self._partial(kind, error.partial)
            raise
        if self.output_dim and answers.shape[1] != self._width(kind):
            raise JournalMismatch(f"The journal holds answers of another width than {self.url} gives; it is damaged.")
        return answers

    def _partial(self, kind: Kind, received: Received) -> Answered:
        where = torch.from_numpy(received.index)
        if kind == "gradient":
            values, gradients = self._gradients(received.answers)
            return Answered(where, values=values, gradients=gradients)
        if kind == "label":
            return Answered(where, labels=self._labels(received.answers))
        return Answered(where, values=self._values(received.answers))

    # -- one batch ----------------------------------------------------------------------------------------------------

    def _ask_batch(self, kind: Kind, rows: Array, stop: threading.Event) -> Array:
        def send(
            url: str, body: bytes | None = None, *, headers: dict[str, str] | None = None, numbers: int = 0
        ) -> Reply:
            return self._transport.send(
                "POST",
                url,
                body=body or b"",
                headers=headers,
                numbers=numbers,
                sent=self.ledger.count_request,
                stop=stop,
            )

        with self._clean_errors(), np.errstate(over="ignore"):  # a number too large for the dtype is an infinite answer
            answer = np.require(self._wire.ask(kind, rows, self._about, send), self._numpy_type(kind), ["C", "W"])
        if self.output_dim and answer.shape[1] != self._width(kind):
            raise BadAnswer(
                f"{self.url} answered {answer.shape[1]} numbers a row to a {kind} question; {self._width(kind)} were "
                "expected."
            )
        return answer

    def _get(
        self, url: str, body: bytes | None = None, *, headers: dict[str, str] | None = None, numbers: int = 0
    ) -> Reply:
        return self._transport.send("GET", url, headers=headers, numbers=numbers)

    @contextmanager
    def _clean_errors(self) -> Iterator[None]:
        """What a server said may stand in an error's sentence: without the token, printable, and not endless."""
        try:
            yield
        except ServerError as error:
            error.args = (self._transport.clean(error, most=1000),)
            raise

    def _width(self, kind: Kind) -> int:
        k = self.output_dim
        return {"value": k, "gradient": k * (1 + self.input_dim), "label": 1}[kind]

    def _numpy_type(self, kind: Kind) -> np.dtype[np.generic]:
        return np.dtype(np.int64) if kind == "label" else NUMPY_TYPES[self.dtype]

    def _rows_a_request(self, kind: Kind) -> int:
        numbers = max(self.input_dim, self._width(kind))
        rows = self._batch_size or max(1, min(MOST_ROWS, MOST_NUMBERS // numbers))
        return rows if self._about.most_rows is None else min(rows, self._about.most_rows)


def _address(url: str) -> httpx.URL:
    try:
        address = httpx.URL(url.rstrip("/"))
    except httpx.InvalidURL as error:
        raise InvalidInput(f"{url!r} is not an address: {error}.") from error
    if address.scheme not in ("http", "https") or not address.host:
        raise InvalidInput(f"{url!r} is not an address that starts with http:// or https:// and names a host.")
    if address.userinfo:
        raise InvalidInput("The address holds a password; take it out and pass token_env= instead.")
    if address.query or address.fragment:
        raise InvalidInput("The address of a model ends with its path; take out what follows the ? or #.")
    return address


def _token(variable: str | None) -> str | None:
    if variable is None:
        return None
    token = os.environ.get(variable, "").strip()
    if not token:
        raise InvalidInput(f"The environment variable {variable} holds no token; set it before the run.")
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise InvalidInput(f"The token in {variable} holds characters that a header cannot carry.")
    return token

"""A remote model as an oracle: batches, a few requests at a time, and a journal that survives a killed process.

The ledger counts the rows that the attack received, whether the server answered them now or an earlier run of the same
journal did. A resumed run therefore reports the cost of an uninterrupted one. ``ledger.requests`` counts inference
requests actually sent, retries included, and ``from_journal`` the rows that needed none. When a query fails half-way,
the ledger keeps the rows that were answered and the error carries them in ``partial``.

With a journal each distinct row is asked once, ever: a target that adds fresh noise looks deterministic through it.
Leave the journal out where repeated answers are to be averaged.
"""

from __future__ import annotations

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

from divulge.core.errors import (
    BadAnswer,
    DivulgeError,
    InvalidInput,
    JournalMismatch,
    NotDeterministic,
)
from divulge.core.storage import digest
from divulge.oracles.arguments import Precision
from divulge.oracles.base import Access, Oracle, check_access
from divulge.oracles.ledger import Kind
from divulge.oracles.remote.batching import BatchedClient, ReceivedRows
from divulge.oracles.remote.journal import Journal
from divulge.oracles.remote.protocols import protocol_for
from divulge.oracles.remote.signature import DATATYPES, TORCH_TYPES, Array, TensorNames, checked_dtype, complete
from divulge.oracles.remote.transport import Reply, Transport

MAX_ROWS = 1024  # of one request, unless the user or the server says otherwise
MAX_NUMBERS = 1 << 19  # of one request or answer: 4 MB of float64
NUMPY_TYPES = {TORCH_TYPES[name]: np.dtype(code) for name, code in DATATYPES.items()}


@dataclass(frozen=True)
class PartialAnswer:
    """The answers that arrived before a query failed, and the rows of the query that they belong to.

    Parameters
    ----------
    index : Tensor, [m]
        The positions of the answered rows in the query.
    values : Tensor or None, [m, k]
    gradients : Tensor or None, [m, k, d]
    labels : Tensor or None, [m]
    """

    index: Tensor
    values: Tensor | None = None
    gradients: Tensor | None = None
    labels: Tensor | None = None


class HttpOracle(Oracle):
    """A model at an address: Open Inference Protocol v2, KServe v1 or MLflow by its path, or JSON of its own shape.

    The server's metadata gives shape, number format and outputs. KServe v1 and MLflow announce nothing: give
    ``input_shape``, ``output_dim`` and ``dtype``. Where the number of outputs stays unknown, one row of zeros is asked
    at the start, and counted.

    Parameters
    ----------
    url : str
        ``http://HOST/v2/models/NAME``, ``http://HOST/v1/models/NAME`` or ``http://HOST/invocations``; with ``request``
        any address.
    access : {"label", "value", "gradient"}, default "value"
        What may be asked.
    budget : int or None, default None
        The largest total number of rows.
    journal : str, Path or None, default None
        The SQLite file that records every answer.
    token_env : str or None, default None
        The environment variable that holds the bearer token.
    rate_limit : float or None, default None
        The most requests per second.
    concurrency : int, default 4
        The most requests in flight at once.
    timeout : float, default 30.0
        Seconds for one whole request, from connecting to the last byte.
    retries : int, default 5
        Attempts after the first, for status 429 and 5xx and for broken connections.
    batch_size : int or None, default None
        Rows per request; by default up to 1,024, fewer for wide models.
    input_name, output, gradient_output, label_output : str or None, default None
        The tensors to use, where the metadata leaves a choice.
    request : str, dict, list or None, default None
        What is sent to an API with JSON of its own shape: JSON in which "$rows", "$row", "$records" or "$0", "$1", ...
        stand for the input.
    response : str or None, default None
        Where the answer stands in such an API's JSON: a JSON pointer or a JMESPath expression. By default it is the
        whole. ``gradient_output`` and ``label_output`` are such paths too.
    columns : sequence of str or None, default None
        Column names, for MLflow models with a signature of named columns, and for "$records".
    input_shape : sequence of int or None, default None
        The shape of one input, where the server does not announce it.
    output_dim : int or None, default None
        The number of outputs, where the server does not announce it.
    threshold : float or None, default None
        A single output above it means label 1; by default what the server announces, or 0.
    precision : {"native", "double"}, default "native"
        "double" refuses a server that answers in less than FP64.
    dtype : torch.dtype or None, default None
        The number format of the answers, where the server does not announce it.
    device : str, torch.device or None, default None
        Where answers live; the CPU by default.

    Raises
    ------
    InvalidInput
        If an option or the address makes no sense, or the server leaves something open that an option must say.
    AccessDenied
        If the server cannot give the access.
    ServerError
        If the server cannot be reached or answers nonsense.

    Examples
    --------
    >>> from divulge import serving
    >>> from divulge.models import MLP
    >>> from divulge.oracles.remote.http import HttpOracle
    >>> with serving.running(MLP([3, 4, 2])) as url, HttpOracle(url, budget=100) as oracle:
    ...     oracle.value([[1.0, 2.0, 3.0]]).shape, oracle.ledger.requests
    (torch.Size([1, 2]), 1)
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
        request: object = None,
        response: str | None = None,
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
        address = _checked_address(url, as_it_is=request is not None)
        self.url = str(address)
        self._transport = Transport(
            address, token=_token(token_env), timeout=timeout, retries=retries, rate_limit=rate_limit,
            concurrency=concurrency,
        )  # fmt: skip
        self._client = BatchedClient(self._ask_batch, concurrency=concurrency)
        try:
            self._protocol = protocol_for(self.url, columns, request, response)
            with self._redacted_errors():
                names = TensorNames(input_name, output, gradient_output, label_output)
                announced = self._protocol.signature(names, self._get)
            self._signature = complete(
                announced, self.url, access=access, input_shape=input_shape, output_dim=output_dim,
                has_explain=self._protocol.has_explain,
            )  # fmt: skip
            super().__init__(
                input_dim=math.prod(self._signature.input_shape or ()),
                output_dim=self._signature.output_dim or 0,
                access=access,
                budget=budget,
                dtype=checked_dtype(self._signature, self.url, dtype, precision),
                device=device or "cpu",
                input_shape=self._signature.input_shape,
                threshold=self._signature.threshold if threshold is None else threshold,
            )
            self._batch_size = batch_size
            if journal is not None:
                self._client.journal = Journal(journal, target=self.url, fingerprint=self._fingerprint())
            if not self.output_dim:
                self._ask_output_dim()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connections and the journal."""
        self._client.close()
        self._transport.close()

    def __enter__(self) -> HttpOracle:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    @property
    def from_journal(self) -> int:
        """Rows answered from the journal, without a request."""
        return self._client.from_journal

    @property
    def network_seconds(self) -> float:
        """Wall-clock seconds during which at least one request was in flight."""
        return self._transport.network_seconds

    def check_deterministic(self, seed: int = 0) -> None:
        """Ask one random row twice, without the journal. Both rows are charged.

        Parameters
        ----------
        seed : int, default 0
            Fixes the row.

        Raises
        ------
        NotDeterministic
            If the two answers differ.
        """
        kind: Kind = "value" if self.allows("value") else "label"
        row = torch.randn(1, self.input_dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        self.ledger.charge(kind, 2)
        try:
            pair = self._client.fresh(self._sent_kind(kind), np.repeat(row.to(self.dtype).numpy(), 2, axis=0), 1)
        except BaseException as error:
            self.ledger.refund(kind, 2 - getattr(error, "rows_answered", 0))
            raise
        if not np.array_equal(pair[0], pair[1], equal_nan=True):
            raise NotDeterministic(
                f"{self.url} answered one row differently twice (by {np.abs(pair[0] - pair[1]).max():.3g}); treat it "
                "as noisy, and use no journal where repeated answers are to be averaged."
            )

    def _fingerprint(self) -> str:
        signature = self._signature
        facts = {
            "server": signature.identity, "input_shape": signature.input_shape, "dtype": str(self.dtype),
            "tensors": [signature.input_name, signature.output, signature.gradient, signature.label],
        }  # fmt: skip
        return digest(json.dumps(facts, sort_keys=True))

    def _ask_output_dim(self) -> None:
        kind: Kind = "label" if self.access == "label" else "value"
        self.ledger.charge(kind, 1)
        try:
            answer = self._fetch("value", torch.zeros(1, self.input_dim, dtype=self.dtype))
        except BaseException:
            self.ledger.refund(kind, 1)
            raise
        self.output_dim = answer.shape[1]
        self._signature = replace(self._signature, output_dim=self.output_dim)

    # -- queries ------------------------------------------------------------------------------------------------------

    def _value(self, X: Tensor) -> Tensor:
        return self._values(self._fetch("value", X))

    def _gradient(self, X: Tensor) -> tuple[Tensor, Tensor]:
        return self._gradients(self._fetch("gradient", X))

    def _label(self, X: Tensor) -> Tensor:
        if self._sent_kind("label") == "label":
            return self._labels(self._fetch("label", X))
        return super()._label(X)

    def _sent_kind(self, kind: Kind) -> Kind:
        """What the server is asked: labels are decided here from values where the server has no label output."""
        return "value" if kind == "label" and self._signature.label is None else kind

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
            answers = self._client.answers(kind, rows, self._rows_per_request(kind), self._numpy_type(kind))
        except DivulgeError as error:
            if isinstance(error.partial, ReceivedRows):
                error.partial = self._partial(kind, error.partial)
            raise
        if self.output_dim and answers.shape[1] != self._width(kind):
            raise JournalMismatch(f"The journal holds answers of another width than {self.url} gives; it is damaged.")
        return answers

    def _partial(self, kind: Kind, received: ReceivedRows) -> PartialAnswer:
        index = torch.from_numpy(received.index)
        if kind == "gradient":
            values, gradients = self._gradients(received.answers)
            return PartialAnswer(index, values=values, gradients=gradients)
        if kind == "label":
            return PartialAnswer(index, labels=self._labels(received.answers))
        return PartialAnswer(index, values=self._values(received.answers))

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

        with self._redacted_errors(), np.errstate(over="ignore"):  # a number too large for the dtype becomes infinite
            answer = self._protocol.ask(kind, rows, self._signature, send)
            answer = np.require(answer, self._numpy_type(kind), ["C", "W"])
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
    def _redacted_errors(self) -> Iterator[None]:
        """Errors may quote the server: without the token, printable, and of limited length."""
        try:
            yield
        except DivulgeError as error:
            error.args = (self._transport.redact(error, most=1000),)
            raise

    def _width(self, kind: Kind) -> int:
        k = self.output_dim
        return {"value": k, "gradient": k * (1 + self.input_dim), "label": 1}[kind]

    def _numpy_type(self, kind: Kind) -> np.dtype[np.generic]:
        return np.dtype(np.int64) if kind == "label" else NUMPY_TYPES[self.dtype]

    def _rows_per_request(self, kind: Kind) -> int:
        numbers = max(self.input_dim, self._width(kind))
        rows = self._batch_size or max(1, min(MAX_ROWS, MAX_NUMBERS // numbers))
        return rows if self._signature.max_rows is None else min(rows, self._signature.max_rows)


def _checked_address(url: str, *, as_it_is: bool) -> httpx.URL:
    try:
        address = httpx.URL(url if as_it_is else url.rstrip("/"))
    except httpx.InvalidURL as error:
        raise InvalidInput(f"{url!r} is not an address: {error}.") from error
    if address.scheme not in ("http", "https") or not address.host:
        raise InvalidInput(f"{url!r} is not an address that starts with http:// or https:// and names a host.")
    if address.userinfo:
        raise InvalidInput("The address holds a password; take it out and pass token_env= instead.")
    if (address.query and not as_it_is) or address.fragment:
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

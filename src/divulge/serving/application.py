"""One oracle as a web application: the routes of the Open Inference Protocol v2.

Health, metadata and inference are as the protocol asks, with a ``gradient`` output where the oracle grants gradients
and a ``label`` output where it grants labels only. Requests are limited in bytes and rows, answers in bytes. The rows
answered are counted at ``/v2/models/NAME/stats``.

Requests that the model answers within milliseconds are answered on the event loop: to hand one to a thread and back
takes longer than to answer it. Others go to a thread, so that health and metadata are answered meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from functools import cached_property
from typing import Any

import anyio.to_thread
import torch
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from divulge import __version__
from divulge.core.errors import BudgetExhausted, DivulgeError, InvalidInput, TargetError
from divulge.oracles.base import Oracle
from divulge.oracles.remote.protocols.open_inference import BINARY, HEADER_LENGTH
from divulge.oracles.remote.signature import Array
from divulge.serving.requests import (
    BYTES_PER_NUMBER,
    DATATYPE_OF,
    HEADER_BYTES,
    InferenceRequest,
    RequestRefused,
    inference_response,
    parse_request,
)

MAX_BATCH = 16_384  # rows a request
MAX_BODY = 64 << 20  # bytes a request
MAX_ANSWER = 256 << 20  # bytes of the numbers in an answer
AT_ONCE_BYTES = 1 << 20  # a longer request is parsed in a thread
AT_ONCE_SECONDS = 0.005  # what takes the model longer is computed in a thread
THREADS = 2  # one parses or writes JSON while the model answers the other


class ModelServer:
    """One oracle as one served model.

    Parameters
    ----------
    oracle : Oracle
        What answers the requests: an oracle or a guard.
    name : str, default "model"
        The model's name in its address: letters, digits, ``-``, ``_`` and ``.``.
    version : str, default "1"
        The version that the metadata announces.
    max_batch : int, default 16384
        The most rows in one request.
    max_body : int, default 67108864
        The most bytes in one request.

    Raises
    ------
    InvalidInput
        If the name or a limit makes no sense.

    Examples
    --------
    >>> import divulge
    >>> from divulge.models import MLP
    >>> from divulge.serving import ModelServer
    >>> server = ModelServer(divulge.oracle(MLP([3, 4, 2])), name="small")
    >>> server.metadata()["inputs"]
    [{'name': 'input', 'datatype': 'FP32', 'shape': [-1, 3]}]
    """

    def __init__(
        self,
        oracle: Oracle,
        *,
        name: str = "model",
        version: str = "1",
        max_batch: int = MAX_BATCH,
        max_body: int = MAX_BODY,
    ) -> None:
        if not name or any(not (c.isascii() and (c.isalnum() or c in "-_.")) for c in name):
            raise InvalidInput(f"A model is served under a name of letters, digits, - _ and ., not {name!r}.")
        if max_batch < 1 or max_body < 1:
            raise InvalidInput("The limits of a request are at least one row and one byte.")
        self.oracle = oracle
        self.name, self.version = name, version
        self.max_batch, self.max_body = max_batch, max_body
        self._oracle_lock = threading.Lock()  # guards and modules need not be thread-safe
        self._requests = 0
        self._usual_seconds: dict[tuple[int, ...], float] = defaultdict(lambda: AT_ONCE_SECONDS)

    def app(self) -> Starlette:
        """The ASGI application."""
        model = f"/v2/models/{self.name}"
        versioned = f"{model}/versions/{self.version}"
        routes = [Route(f"{root}/infer", _Inference(self), methods=["POST"]) for root in (model, versioned)]
        routes += [
            Route("/v2", self._server_metadata),
            Route("/v2/health/live", self._health),
            Route("/v2/health/ready", self._health),
            Route(f"{model}/stats", self._stats),
        ]
        for root in (model, versioned):
            routes += [Route(root, self._metadata), Route(f"{root}/ready", self._ready)]
        handlers = {HTTPException: _protocol_error, Exception: _protocol_error}
        app = Starlette(routes=routes, exception_handlers=handlers)
        app.router.redirect_slashes = False  # a redirect would be no JSON
        return app

    def metadata(self) -> dict[str, Any]:
        """What the protocol tells a client about the model.

        Returns
        -------
        dict
            ``name``, ``versions``, ``platform``, ``inputs``, ``outputs`` and ``parameters``.
        """
        return {
            "name": self.name,
            "versions": [self.version],
            "platform": "divulge",
            "inputs": [
                {"name": "input", "datatype": self._datatype, "shape": [-1, *self.oracle.input_shape]},
            ],
            "outputs": [
                {"name": name, "datatype": "INT64" if name == "label" else self._datatype, "shape": [-1, *shape]}
                for name, shape in self._outputs().items()
            ],
            "parameters": {
                "max_batch_size": self._most_rows(self.oracle.allows("gradient")),
                "output_dim": self.oracle.output_dim,
                "threshold": float(self.oracle.threshold),
            },
        }

    @property
    def _datatype(self) -> str:
        return DATATYPE_OF[self.oracle.dtype]

    def _outputs(self) -> dict[str, tuple[int, ...]]:
        k, d = self.oracle.output_dim, self.oracle.input_dim
        if not self.oracle.allows("value"):
            return {"label": ()}
        return {"value": (k,), "gradient": (k, d)} if self.oracle.allows("gradient") else {"value": (k,)}

    # -- pages --------------------------------------------------------------------------------------------------------

    async def _server_metadata(self, request: Request) -> Response:
        return JSONResponse({"name": "divulge", "version": __version__, "extensions": [BINARY]})

    async def _health(self, request: Request) -> Response:
        key = request.url.path.rsplit("/", 1)[-1]
        return JSONResponse({key: True})

    async def _ready(self, request: Request) -> Response:
        return JSONResponse({"name": self.name, "ready": True})

    async def _metadata(self, request: Request) -> Response:
        return JSONResponse(self.metadata())

    async def _stats(self, request: Request) -> Response:
        rows = self.oracle.ledger.snapshot().as_dict()
        rows["requests"] = self._requests
        return JSONResponse({"name": self.name, **rows})

    # -- inference ----------------------------------------------------------------------------------------------------

    async def _infer(self, request: Request) -> Response:
        try:
            body = await self._read_body(request)
            header_length = request.headers.get(HEADER_LENGTH)
            if len(body) > AT_ONCE_BYTES:
                return await self._in_thread(self._answer, body, header_length)
            asked = self._parse(body, header_length)
            if self._usual_seconds[self._size(asked)] < AT_ONCE_SECONDS and self._oracle_lock.acquire(blocking=False):
                try:
                    return self._respond(asked, self._ask_timed(asked))
                finally:
                    self._oracle_lock.release()
            return await self._in_thread(self._answer_parsed, asked)
        except RequestRefused as refusal:
            return JSONResponse({"error": str(refusal)}, status_code=refusal.status)
        except ClientDisconnect:
            return Response(status_code=499)

    async def _in_thread(self, function: Any, *arguments: Any) -> Response:
        response: Response = await anyio.to_thread.run_sync(function, *arguments, limiter=self._threads)
        return response

    @cached_property
    def _threads(self) -> anyio.CapacityLimiter:
        return anyio.CapacityLimiter(THREADS)  # made on the event loop

    async def _read_body(self, request: Request) -> bytes:
        most = min(self.max_body, HEADER_BYTES + BYTES_PER_NUMBER * self.max_batch * self.oracle.input_dim)
        too_large = RequestRefused(413, f"A request may have at most {most:,} bytes.")
        announced = request.headers.get("content-length", "0")
        if not announced.isdecimal() or int(announced[:20]) > most:
            raise too_large
        chunks, size = [], 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > most:
                raise too_large
            chunks.append(chunk)
        return b"".join(chunks)

    def _parse(self, body: bytes, header_length: str | None) -> InferenceRequest:
        asked = parse_request(
            body, header_length, input_shape=self.oracle.input_shape, outputs=self._outputs(), max_batch=self.max_batch
        )
        most = self._most_rows("gradient" in asked.outputs)
        if len(asked.rows) > most:
            raise RequestRefused(400, f"The answer would be too large; ask for at most {most:,} rows at once.")
        return asked

    def _most_rows(self, gradients: bool) -> int:
        """Rows of which the answer keeps to its limit; one row is always answered."""
        numbers = self.oracle.output_dim * (1 + self.oracle.input_dim * gradients)
        return max(1, min(self.max_batch, MAX_ANSWER // (8 * numbers)))

    def _answer(self, body: bytes, header_length: str | None) -> Response:
        return self._answer_parsed(self._parse(body, header_length))

    def _answer_parsed(self, asked: InferenceRequest) -> Response:
        with self._oracle_lock:
            tensors = self._ask_timed(asked)
        return self._respond(asked, tensors)

    def _respond(self, asked: InferenceRequest, tensors: dict[str, Array]) -> Response:
        return inference_response({"model_name": self.name, "model_version": self.version}, asked, tensors)

    @staticmethod
    def _size(asked: InferenceRequest) -> tuple[int, ...]:
        """Requests of one size take about the same time."""
        return (len(asked.rows).bit_length(), "gradient" in asked.outputs)

    def _ask_timed(self, asked: InferenceRequest) -> dict[str, Array]:
        """The model's answer. A slow one sends requests of its size to a thread until some were quick again."""
        self._requests += 1
        start = time.perf_counter()
        try:
            return self._ask(asked.rows, set(asked.outputs))
        finally:
            seconds, size = time.perf_counter() - start, self._size(asked)
            self._usual_seconds[size] = max(seconds, 0.7 * self._usual_seconds[size])

    def _ask(self, rows: Array, wanted: set[str]) -> dict[str, Array]:
        X = torch.from_numpy(rows)
        try:
            if "label" in wanted:
                return {"label": self.oracle.label(X).cpu().numpy().astype("<i8")}
            if "gradient" in wanted:
                values, gradients = self.oracle.gradient(X)
                return {"value": values.cpu().numpy(), "gradient": gradients.cpu().numpy()}
            return {"value": self.oracle.value(X).cpu().numpy()}
        except BudgetExhausted as error:
            raise RequestRefused(403, str(error)) from error
        except TargetError as error:
            raise RequestRefused(422, str(error)) from error
        except DivulgeError as error:
            raise RequestRefused(400, str(error)) from error


class _Inference:
    """The page that answers inference requests, without the layers that the other pages need."""

    def __init__(self, server: ModelServer) -> None:
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._server._infer(Request(scope, receive))
        await response(scope, receive, send)


async def _protocol_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    said = {404: "There is no such model or page here.", 405: "This page does not take that method."}
    return JSONResponse({"error": said.get(status, "The request failed.")}, status_code=status)

"""A model behind real HTTP, so that an owner can rehearse: the Open Inference Protocol v2 over any oracle.

Health, metadata and inference as the protocol asks, JSON or the binary tensor extension, a ``gradient`` output where
the oracle grants gradients, a ``label`` output where it grants labels only. Requests are limited in bytes and rows,
and the rows answered are counted at ``/v2/models/NAME/stats``. It is a rehearsal stage, not a production server: no
authentication, one process, and 127.0.0.1 unless told otherwise.
"""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from divulge import __version__
from divulge.errors import BudgetExhausted, DivulgeError, InvalidInput, MissingPackage, TargetError
from divulge.oracles.base import Oracle
from divulge.oracles.open_inference import BINARY, HEADER_LENGTH
from divulge.oracles.torch_model import Precision
from divulge.oracles.wire import DATATYPES, Array

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route
except ImportError as error:
    raise MissingPackage("Serving needs starlette and uvicorn: pip install 'divulge[serve]'.") from error

MAX_BATCH = 16_384  # rows a request
MAX_BODY = 64 << 20  # bytes a request
DATATYPE_OF = {torch.float16: "FP16", torch.float32: "FP32", torch.float64: "FP64"}


class Refused(Exception):
    """A request that is answered with a status and one sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class ModelServer:
    """One oracle as one served model."""

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
        self._asking = threading.Lock()  # guards and modules need not be thread-safe; health stays responsive
        self._requests = 0

    def app(self) -> Starlette:
        model = f"/v2/models/{self.name}"
        versioned = f"{model}/versions/{self.version}"
        routes = [
            Route("/v2", self._server_metadata),
            Route("/v2/health/live", self._fine),
            Route("/v2/health/ready", self._fine),
            Route(f"{model}/stats", self._stats),
        ]
        for root in (model, versioned):
            routes += [
                Route(root, self._metadata),
                Route(f"{root}/ready", self._ready),
                Route(f"{root}/infer", self._infer, methods=["POST"]),
            ]
        return Starlette(routes=routes, exception_handlers={HTTPException: _protocol_error})

    # -- pages --------------------------------------------------------------------------------------------------------

    async def _server_metadata(self, request: Request) -> Response:
        return JSONResponse({"name": "divulge", "version": __version__, "extensions": [BINARY]})

    async def _fine(self, request: Request) -> Response:
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

    def metadata(self) -> dict[str, Any]:
        """What the protocol lets a client know of the model."""
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
                "max_batch_size": self.max_batch,
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

    # -- inference ----------------------------------------------------------------------------------------------------

    async def _infer(self, request: Request) -> Response:
        try:
            body = await self._body(request)
            return await run_in_threadpool(self._answer, body, request.headers.get(HEADER_LENGTH))
        except Refused as refusal:
            return JSONResponse({"error": str(refusal)}, status_code=refusal.status)

    async def _body(self, request: Request) -> bytes:
        too_large = Refused(413, f"A request may have at most {self.max_body:,} bytes.")
        announced = request.headers.get("content-length", "0")
        if not announced.isdigit() or int(announced) > self.max_body:
            raise too_large
        chunks, size = [], 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > self.max_body:
                raise too_large
            chunks.append(chunk)
        return b"".join(chunks)

    def _answer(self, body: bytes, header_length: str | None) -> Response:
        question, blob = _split(body, header_length)
        wanted = self._wanted(question)
        rows = self._rows(question, blob)
        with self._asking:
            self._requests += 1
            tensors = self._ask(rows, set(wanted))
        return _response({"model_name": self.name, "model_version": self.version}, question, wanted, tensors)

    def _wanted(self, question: dict[str, Any]) -> dict[str, bool]:
        """The outputs to send, each with whether it travels as bytes."""
        everywhere = bool(_mapping(question.get("parameters")).get("binary_data_output", False))
        asked = question.get("outputs")
        if not asked:
            return dict.fromkeys(self._outputs(), everywhere)
        if not isinstance(asked, list) or not all(isinstance(output, dict) for output in asked):
            raise Refused(400, '"outputs" is a list of objects with a name each.')
        for output in asked:
            if output.get("name") not in self._outputs():
                raise Refused(400, f"The model has no such output; it has {', '.join(self._outputs())}.")
        return {o["name"]: bool(_mapping(o.get("parameters")).get("binary_data", everywhere)) for o in asked}

    def _rows(self, question: dict[str, Any], blob: memoryview) -> Array:
        inputs = question.get("inputs")
        if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], dict):
            raise Refused(400, '"inputs" is a list of exactly one tensor.')
        tensor = inputs[0]
        if tensor.get("name") != "input":
            raise Refused(400, 'The model has one input, "input".')
        shape, expected = tensor.get("shape"), list(self.oracle.input_shape)
        if not isinstance(shape, list) or shape[1:] != expected or not isinstance(shape[0], int) or shape[0] < 1:
            raise Refused(400, f"The input's shape is [rows, {', '.join(map(str, expected))}].")
        if shape[0] > self.max_batch:
            raise Refused(400, f"A request may have at most {self.max_batch:,} rows.")
        datatype = tensor.get("datatype")
        if datatype not in DATATYPES:
            raise Refused(400, f"The input's datatype is one of {', '.join(DATATYPES)}.")
        numbers = _numbers(tensor, blob, np.dtype(DATATYPES[datatype]))
        if numbers.size != shape[0] * self.oracle.input_dim:
            raise Refused(400, f"The input holds {numbers.size} numbers, and its shape asks for another count.")
        return numbers.reshape(shape[0], -1)

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
            raise Refused(403, str(error)) from error
        except TargetError as error:
            raise Refused(422, str(error)) from error
        except DivulgeError as error:
            raise Refused(400, str(error)) from error


async def _protocol_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    said = {404: "There is no such model or page here.", 405: "This page does not take that method."}
    return JSONResponse({"error": said.get(status, "The request failed.")}, status_code=status)


def _split(body: bytes, header_length: str | None) -> tuple[dict[str, Any], memoryview]:
    if header_length is None:
        header, blob = body, memoryview(b"")
    else:
        if not header_length.isdigit() or int(header_length) > len(body):
            raise Refused(400, f"The header {HEADER_LENGTH} does not fit the body.")
        header, blob = body[: int(header_length)], memoryview(body)[int(header_length) :]
    try:
        question = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise Refused(400, "The request is not JSON.") from error
    if not isinstance(question, dict):
        raise Refused(400, "The request is not a JSON object.")
    return question, blob


def _numbers(tensor: dict[str, Any], blob: memoryview, dtype: np.dtype[Any]) -> Array:
    size = _mapping(tensor.get("parameters")).get("binary_data_size")
    if size is not None:
        if size != len(blob) or size % dtype.itemsize:
            raise Refused(400, f"binary_data_size does not fit the {len(blob)} bytes that came.")
        return np.frombuffer(bytearray(blob), dtype=dtype)
    try:
        numbers = np.asarray(tensor.get("data"))
    except ValueError as error:
        raise Refused(400, "The input's data is a list of numbers, flat or nested as its shape says.") from error
    if numbers.dtype.kind not in "fiu":
        raise Refused(400, "The input's data is a list of numbers, flat or nested as its shape says.")
    with np.errstate(over="ignore"):  # the oracle refuses what became infinite
        return numbers.astype(dtype).ravel()


def _mapping(parameters: Any) -> dict[str, Any]:
    return parameters if isinstance(parameters, dict) else {}


def _response(
    head: dict[str, Any], question: dict[str, Any], wanted: dict[str, bool], tensors: dict[str, Array]
) -> Response:
    outputs, blobs = [], []
    for name, binary in wanted.items():
        array = np.ascontiguousarray(tensors[name])
        datatype = "INT64" if array.dtype.kind == "i" else DATATYPE_OF[torch.from_numpy(array).dtype]
        output: dict[str, Any] = {"name": name, "datatype": datatype, "shape": list(array.shape)}
        if binary:
            output["parameters"] = {"binary_data_size": array.nbytes}
            blobs.append(array.data)
        else:
            output["data"] = array.ravel().tolist()
        outputs.append(output)
    if isinstance(question.get("id"), str):
        head = head | {"id": question["id"]}
    header = json.dumps(head | {"outputs": outputs}).encode()
    if not blobs:
        return Response(header, media_type="application/json")
    return Response(
        b"".join((header, *blobs)),
        media_type="application/octet-stream",
        headers={HEADER_LENGTH: str(len(header))},
    )


# -- opening and running it --------------------------------------------------------------------------------------------


def open_model(
    target: Any,
    *,
    gradients: bool = False,
    guard: str = "",
    seed: int = 0,
    precision: str = "native",
    trust_pickle: bool = False,
    name: str = "model",
    max_batch: int = MAX_BATCH,
    max_body: int = MAX_BODY,
) -> ModelServer:
    """A server of ``target``: an oracle, or whatever ``divulge.oracle`` takes, behind the guards that are named."""
    from divulge.oracles import guards, oracle
    from divulge.oracles.files import load_model

    version = "1"
    if not isinstance(target, Oracle):
        is_onnx = isinstance(target, str | Path) and Path(target).suffix.lower() == ".onnx"
        model = target if is_onnx else load_model(target, trust_pickle=trust_pickle)
        version = version_of(model, guard, str(seed), precision)
        target = oracle(model, access="gradient" if gradients else "value", precision=cast(Precision, precision))
    if guard:
        target = guards.guard(guard, seed=seed)(target)
    return ModelServer(target, name=name, version=version, max_batch=max_batch, max_body=max_body)


class _Announcing(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._announce()


def serve(
    served: ModelServer, *, host: str = "127.0.0.1", port: int = 8080, ready: Callable[[str], None] = lambda url: None
) -> None:
    """Serve until interrupted; ``ready`` gets the model's address once it answers. Port 0 takes a free one."""
    listener, url = _listen(served, host, port)
    with listener:
        _Announcing(_config(served), lambda: ready(url)).run(sockets=[listener])


@contextmanager
def running(target: Any, **options: Any) -> Iterator[str]:
    """The address of a model, served by a thread of this process while the block runs; options as ``open_model``."""
    served = open_model(target, **options)
    listener, url = _listen(served, "127.0.0.1", 0)
    up = threading.Event()
    server = _Announcing(_config(served), up.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    with listener:
        thread.start()
        up.wait()
        try:
            yield url
        finally:
            server.should_exit = True
            thread.join()


def version_of(model: Any, *options: str) -> str:
    """A version that changes with the weights and guards, so that a journal of the old is not taken for the new."""
    digest = hashlib.sha256(repr(options).encode())
    if isinstance(model, str | Path):
        digest.update(Path(model).read_bytes())
    elif isinstance(model, nn.Module):
        for name, tensor in sorted(model.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:12]


def _listen(served: ModelServer, host: str, port: int) -> tuple[socket.socket, str]:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # named as TCP, or asyncio leaves Nagle's algorithm on and every small answer waits 40 ms
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except (OSError, OverflowError) as error:
        raise InvalidInput(f"Cannot listen on {host} port {port}: {error}; choose another --host or --port.") from error
    shown = f"[{host}]" if family == socket.AF_INET6 else host
    return listener, f"http://{shown}:{listener.getsockname()[1]}/v2/models/{served.name}"


def _config(served: ModelServer) -> uvicorn.Config:
    return uvicorn.Config(
        served.app(), log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=2,
        limit_concurrency=128,
    )  # fmt: skip

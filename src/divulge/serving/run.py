"""Opening a model for serving and running the server: until interrupted, or in a thread of this process.

The server is for rehearsals, not for production: no authentication, one process, and 127.0.0.1 unless another address
is asked for.
"""

from __future__ import annotations

import itertools
import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from torch import nn

from divulge.core.errors import InvalidInput
from divulge.core.storage import digest
from divulge.oracles.arguments import Precision
from divulge.oracles.base import Oracle
from divulge.serving.application import MAX_BATCH, MAX_BODY, ModelServer
from divulge.serving.connections import LimitedProtocol


def open_model(
    target: object,
    *,
    gradients: bool = False,
    guard: str = "",
    seed: int | None = None,
    precision: Precision = "native",
    trust_pickle: bool = False,
    name: str = "model",
    max_batch: int = MAX_BATCH,
    max_body: int = MAX_BODY,
) -> ModelServer:
    """A server of a model, behind the guards that are named.

    Parameters
    ----------
    target : Oracle, or whatever ``divulge.oracle`` takes
        The model to serve.
    gradients : bool, default False
        Whether gradients are answered too.
    guard : str, default ""
        Guards as ``divulge.oracles.guard`` reads them, such as ``"noise:0.01,round:4"``.
    seed : int or None, default None
        None lets the guards draw from a secret source. A seed makes what they draw repeatable, for tests: a client
        who guesses it subtracts the noise.
    precision : {"native", "double"}, default "native"
        "double" serves a float64 copy of the model.
    trust_pickle : bool, default False
        Whether files that can run code are loaded.
    name : str, default "model"
        The model's name in its address.
    max_batch : int, default 16384
        The most rows in one request.
    max_body : int, default 67108864
        The most bytes in one request.

    Returns
    -------
    ModelServer

    Raises
    ------
    InvalidInput
        If the model cannot be opened, or a guard, the name or a limit makes no sense.

    Examples
    --------
    >>> from divulge import serving
    >>> from divulge.models import MLP
    >>> serving.open_model(MLP([3, 4, 2]), guard="label").metadata()["outputs"]
    [{'name': 'label', 'datatype': 'INT64', 'shape': [-1]}]
    """
    from divulge.oracles import guards, oracle
    from divulge.oracles.load_model import load_model

    version = "1"
    if not isinstance(target, Oracle):
        is_onnx = isinstance(target, str | Path) and Path(target).suffix.lower() == ".onnx"
        model = target if is_onnx else load_model(target, trust_pickle=trust_pickle)
        version = version_of(model, guard, _seed_text(guard, seed), precision)
        target = oracle(model, access="gradient" if gradients else "value", precision=precision)
    if guard:
        target = guards.guard(guard, seed=seed)(target)
    return ModelServer(target, name=name, version=version, max_batch=max_batch, max_body=max_body)


class _NotifyingServer(uvicorn.Server):
    """A uvicorn server that calls ``listening`` once it accepts connections."""

    def __init__(self, config: uvicorn.Config, listening: Callable[[], None]) -> None:
        super().__init__(config)
        self._listening = listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._listening()


def serve(
    served: ModelServer, *, host: str = "127.0.0.1", port: int = 8080, ready: Callable[[str], None] = lambda url: None
) -> None:
    """Serve until interrupted.

    Parameters
    ----------
    served : ModelServer
        What ``open_model`` returned.
    host : str, default "127.0.0.1"
        The address to listen on. Any other than the default lets other machines ask the model.
    port : int, default 8080
        The port to listen on; 0 takes a free one.
    ready : callable, default does nothing
        Called with the model's address once the server answers.

    Raises
    ------
    InvalidInput
        If the address or the port cannot be listened on.

    Examples
    --------
    >>> from divulge import serving
    >>> from divulge.models import MLP
    >>> served = serving.open_model(MLP([3, 4, 2]))
    >>> serving.serve(served, port=8080, ready=print)  # doctest: +SKIP
    http://127.0.0.1:8080/v2/models/model
    """
    listener, url = _listen(served, host, port)
    with listener:
        _NotifyingServer(_config(served), lambda: ready(url)).run(sockets=[listener])


@contextmanager
def running(target: object, **options: Any) -> Iterator[str]:
    """Serve a model from a thread of this process while the ``with`` block runs.

    Parameters
    ----------
    target : Oracle, or whatever ``divulge.oracle`` takes
        The model to serve.
    **options
        As for ``open_model``.

    Yields
    ------
    str
        The model's address.

    Examples
    --------
    >>> import divulge
    >>> from divulge import serving
    >>> from divulge.models import MLP
    >>> with serving.running(MLP([3, 4, 2]), gradients=True) as url:
    ...     divulge.oracle(url, access="gradient").gradient([[1.0, 2.0, 3.0]])[1].shape
    torch.Size([1, 2, 3])
    """
    served = open_model(target, **options)
    listener, url = _listen(served, "127.0.0.1", 0)
    started = threading.Event()
    server = _NotifyingServer(_config(served), started.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    with listener:
        thread.start()
        started.wait()
        try:
            yield url
        finally:
            server.should_exit = True
            thread.join()


def version_of(model: object, *options: str) -> str:
    """A version that changes with weights and guards, so that a journal of one is not used for the other."""
    content: Iterable[Any] = ()
    if isinstance(model, str | Path):
        content = [Path(model).read_bytes()]
    elif isinstance(model, nn.Module):
        content = itertools.chain.from_iterable(sorted(model.state_dict().items()))
    return digest(repr(options), *content)[:12]


def _seed_text(guard: str, seed: int | None) -> str:
    """What distinguishes the guards' noise from that of another server: the seed, or a mark of this one."""
    draws = any(part.strip().startswith(("noise", "smoothgrad")) for part in guard.split(","))
    return secrets.token_hex(8) if seed is None and draws else str(seed)


def _listen(served: ModelServer, host: str, port: int) -> tuple[socket.socket, str]:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # with the protocol named as TCP, asyncio turns Nagle's algorithm off; otherwise a small answer waits 40 ms
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
        served.app(), log_level="critical", access_log=False, lifespan="off", timeout_graceful_shutdown=2,
        http=LimitedProtocol, ws="none",
    )  # fmt: skip

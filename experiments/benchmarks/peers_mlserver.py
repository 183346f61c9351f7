"""``divulge serve`` beside MLServer in one run: the same network, the same JSON requests, the same clients, in turn.

MLServer needs an environment of its own, with ``mlserver`` and ``mlserver-sklearn``:

    DIVULGE_MLSERVER=/path/to/env/bin/mlserver python -m experiments peers_mlserver

Both serve a 64-32-10 ReLU network, MLServer as scikit-learn's MLPRegressor. It runs without workers of its own, which
for models of this size is its fastest setting, and without its access log. The servers take turns under each load, so
that what else the machine does weighs on both. Clients are connections of one process that send the next request when
the answer to the last is there.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import torch

from divulge.core.errors import InvalidInput
from divulge.models import MLP
from experiments.plan import Plan
from experiments.reliability.processes import served

WIDTHS = [64, 32, 10]
LOADS = [(rows, clients) for rows in (1, 256) for clients in (1, 8, 64)]
SECONDS, ROUNDS = 2.0, 2
"""Of load on one server at a time, and how often each has its turn."""
ESTIMATOR = """
import json, sys
import joblib, numpy as np
from sklearn.neural_network import MLPRegressor

parts = [np.array(part) for part in json.load(sys.stdin)]
inputs, outputs = parts[0].shape[1], parts[2].shape[0]
model = MLPRegressor(hidden_layer_sizes=[len(parts[0])], max_iter=1).fit(np.eye(inputs), np.ones((inputs, outputs)))
model.coefs_, model.intercepts_ = [parts[0].T, parts[2].T], [parts[1], parts[3]]
joblib.dump(model, "model.joblib")
"""


@contextmanager
def mlserver(model: MLP) -> Iterator[str]:
    """The address of the network behind MLServer."""
    program = os.environ.get("DIVULGE_MLSERVER", "")
    if not program:
        raise InvalidInput("Set DIVULGE_MLSERVER to the mlserver executable of an environment that has it.")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        weights = json.dumps([parameter.tolist() for parameter in model.parameters()])
        python = Path(program).with_name("python")
        subprocess.run([python, "-c", ESTIMATOR], cwd=folder, input=weights.encode(), check=True, capture_output=True)
        settings = {
            "name": "m",
            "implementation": "mlserver_sklearn.SKLearnModel",
            "parameters": {"uri": "model.joblib"},
        }
        (folder / "model-settings.json").write_text(json.dumps(settings))
        listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
        ports = [listener.getsockname()[1] for listener in listeners]
        for listener in listeners:
            listener.close()
        places = dict(zip(("http_port", "grpc_port", "metrics_port"), ports, strict=True))
        (folder / "settings.json").write_text(
            json.dumps({"host": "127.0.0.1", "parallel_workers": 0, "debug": False, **places})
        )
        with (folder / "log.txt").open("w") as log:
            server = subprocess.Popen([program, "start", "."], cwd=folder, stdout=log, stderr=log)
        try:
            yield _ready(f"http://127.0.0.1:{ports[0]}/v2/models/m", folder / "log.txt")
        finally:
            server.terminate()
            server.wait()


def _ready(url: str, log: Path) -> str:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        try:
            httpx.get(f"{url}/ready", trust_env=False).raise_for_status()
            return url
        except httpx.HTTPError:
            time.sleep(0.3)
    raise InvalidInput(f"MLServer did not start: {log.read_text()[-1000:]}")


def body(rows: int) -> bytes:
    """An inference request in JSON, which both servers take as it is."""
    X = torch.randn(rows, WIDTHS[0], generator=torch.Generator().manual_seed(rows), dtype=torch.float64)
    tensor = {"name": "input", "shape": list(X.shape), "datatype": "FP64", "data": X.flatten().tolist()}
    return json.dumps({"inputs": [tensor]}).encode()


class _Connection(asyncio.Protocol):
    """Sends a request again and again, and keeps how long each answer took."""

    def __init__(self, request: bytes, end: float, latencies: list[float], done: asyncio.Future[None]) -> None:
        self.request, self.end, self.latencies, self.done = request, end, latencies, done
        self.received = bytearray()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._send()

    def _send(self) -> None:
        self.received.clear()
        self.start = time.perf_counter()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.received += data
        head = self.received.find(b"\r\n\r\n")
        if head < 0:
            return
        if not self.received.startswith(b"HTTP/1.1 200"):
            self._end(ValueError(bytes(self.received[:300])))
            return
        lines = bytes(self.received[:head]).lower().split(b"\r\n")
        length = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length"))
        if len(self.received) < head + 4 + length:
            return
        now = time.perf_counter()
        self.latencies.append(now - self.start)
        if now > self.end:
            self._end(None)
        else:
            self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or ConnectionError("the server closed a connection"))

    def _end(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None) if error is None else self.done.set_exception(error)
        self.transport.close()


async def _under_load(url: str, content: bytes, clients: int, seconds: float) -> list[float]:
    parts, loop = urlsplit(url), asyncio.get_running_loop()
    head = (
        f"POST {parts.path}/infer HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    latencies: list[float] = []
    end = time.perf_counter() + seconds
    ends = [loop.create_future() for _ in range(clients)]
    for done in ends:
        make = partial(_Connection, head.encode() + content, end, latencies, done)
        await loop.create_connection(make, parts.hostname, parts.port)
    await asyncio.gather(*ends)
    return latencies


def _same(urls: dict[str, str], content: bytes) -> None:
    """Refuse to compare servers that do not answer alike."""
    answers = []
    for url in urls.values():
        said = httpx.post(
            f"{url}/infer", content=content, headers={"Content-Type": "application/json"}, trust_env=False
        )
        answers.append(np.array(said.raise_for_status().json()["outputs"][0]["data"]).ravel())
    if not np.allclose(*answers, rtol=1e-9, atol=1e-9):
        raise InvalidInput("The servers answer differently.")


def beside(urls: dict[str, str], rows: int, clients: int) -> dict[str, Any]:
    """Rows a second and latencies of each server under one load, in rounds."""
    content = body(rows)
    _same(urls, content)
    rates: dict[str, list[float]] = {name: [] for name in urls}
    latencies: dict[str, list[float]] = {name: [] for name in urls}
    for turn in range(ROUNDS):
        for name, url in list(urls.items())[:: 1 if turn % 2 == 0 else -1]:
            start = time.perf_counter()
            taken = asyncio.run(_under_load(url, content, clients, SECONDS))
            rates[name].append(rows * len(taken) / (time.perf_counter() - start))
            latencies[name] += taken
    result: dict[str, Any] = {}
    for name in urls:
        cuts = statistics.quantiles(latencies[name], n=100)
        result |= {
            f"{name}_rows_per_second": statistics.median(rates[name]),
            f"{name}_p50_ms": 1000 * cuts[49],
            f"{name}_p99_ms": 1000 * cuts[98],
        }
    ours, theirs = urls
    result["times_the_rows"] = result[f"{ours}_rows_per_second"] / result[f"{theirs}_rows_per_second"]
    result["times_the_p99"] = result[f"{ours}_p99_ms"] / result[f"{theirs}_p99_ms"]
    return result


def run(plan: Plan) -> dict[str, Any]:
    """Both servers under every load."""
    torch.manual_seed(0)
    model = MLP(WIDTHS).double()
    with ExitStack() as stack:
        theirs = stack.enter_context(mlserver(model))
        ours, _ = stack.enter_context(served(model))
        urls = {"divulge": ours, "mlserver": theirs}
        return plan.measure(
            "peers_mlserver",
            {
                f"{rows} row{'s' * (rows > 1)} a request, {clients} client{'s' * (clients > 1)}": partial(
                    beside, urls, rows, clients
                )
                for rows, clients in LOADS
            },
        )

"""A steady load at ``divulge serve``: errors, wrong answers, latency, and whether its memory stays flat.

Clients ask in turn for values of one row and of 256 rows in JSON, values and gradients in bytes, metadata and counts,
send requests that must be refused, open and drop connections, and check what comes back. The load is paced, so that
an hour of it leaves a machine usable.
"""

from __future__ import annotations

import itertools
import random
import socket
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import psutil
import torch

from divulge.models import MLP
from divulge.oracles.remote.protocols.open_inference import HEADER_LENGTH
from experiments.reliability.processes import memory_mb, served

RATE, CLIENTS, WIDTHS = 40.0, 8, [64, 32, 10]
"""Requests a second from all clients, the clients, and the served network."""
WARM = 0.1
"""Share of the time after which, and at the end of which, memory is compared."""


class Client:
    """One client: its own connection, the kinds of requests in turn, each with random rows."""

    def __init__(self, url: str, model: MLP, seed: int) -> None:
        self.url, self.model, self.draw = url, model, torch.Generator().manual_seed(seed)
        self.http = httpx.Client(trust_env=False, timeout=60, verify=False)
        self.kinds: dict[str, Callable[[], None]] = {
            "1 row, JSON": lambda: self.values(1),
            "256 rows, JSON": lambda: self.values(256),
            "256 rows, bytes": lambda: self.bytes("value", 256),
            "16 gradients, bytes": lambda: self.bytes("gradient", 16),
            "metadata": lambda: self.get(""),
            "counts": lambda: self.get("/stats"),
            "refused": self.refused,
            "dropped": self.dropped,
            "new connection": self.reconnect,
        }

    def rows(self, count: int) -> torch.Tensor:
        return torch.randn(count, WIDTHS[0], generator=self.draw, dtype=torch.float64)

    def check(self, said: np.ndarray, X: torch.Tensor) -> None:
        with torch.no_grad():
            truth = self.model(X).numpy()
        if not np.allclose(said.reshape(truth.shape), truth, rtol=1e-12, atol=1e-12):
            raise ValueError("a wrong answer")

    def values(self, count: int) -> None:
        X = self.rows(count)
        tensor = {"name": "input", "shape": list(X.shape), "datatype": "FP64", "data": X.flatten().tolist()}
        answer = self.http.post(f"{self.url}/infer", json={"inputs": [tensor]}).raise_for_status().json()
        self.check(np.array(answer["outputs"][0]["data"]), X)

    def bytes(self, output: str, count: int) -> None:
        X = self.rows(count)
        blob = X.numpy().tobytes()
        head = (
            b'{"inputs": [{"name": "input", "shape": [%d, %d], "datatype": "FP64", "parameters": '
            b'{"binary_data_size": %d}}], "outputs": [{"name": "value", "parameters": {"binary_data": true}}, '
            b'{"name": "%s", "parameters": {"binary_data": true}}]}'
        ) % (*X.shape, len(blob), output.encode())
        answer = self.http.post(f"{self.url}/infer", content=head + blob, headers={HEADER_LENGTH: str(len(head))})
        start = int(answer.raise_for_status().headers[HEADER_LENGTH])
        self.check(np.frombuffer(answer.content[start : start + 8 * count * WIDTHS[-1]]), X)

    def get(self, page: str) -> None:
        self.http.get(f"{self.url}{page}").raise_for_status()

    def refused(self) -> None:
        """A request that must be refused: not JSON, the wrong shape, infinite numbers, a page that is not there."""
        kind = int(torch.randint(4, (1,), generator=self.draw))
        if kind == 0:
            status = self.http.get(f"{self.url}/nothing").status_code
        else:
            tensor = {"name": "input", "shape": [1, 63 + kind], "datatype": "FP64", "data": [1.0] * 63}
            body = {"content": b"{" * 100} if kind == 1 else {"json": {"inputs": [tensor]}}
            status = self.http.post(f"{self.url}/infer", **body).status_code
        if not 400 <= status < 500:
            raise ValueError(f"status {status} for a request to refuse")

    def dropped(self) -> None:
        """A connection that goes away in the middle of a request."""
        parts = urlsplit(self.url)
        with socket.create_connection((parts.hostname, parts.port), timeout=60) as connection:
            connection.sendall(
                b"POST %b/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 9000\r\n\r\n{" % parts.path.encode()
            )

    def reconnect(self) -> None:
        self.http.close()
        self.http = httpx.Client(trust_env=False, timeout=60, verify=False)
        self.get("")


@contextmanager
def _sampled(pid: int, every: float) -> Iterator[list[float]]:
    """Megabytes of a process, again and again while the block runs."""
    samples: list[float] = []
    over = threading.Event()

    def sample() -> None:
        while not over.wait(every):
            samples.append(memory_mb(pid))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()


def run(seconds: float = 60.0, rate: float = RATE, clients: int = CLIENTS) -> dict[str, Any]:
    """A load of ``rate`` requests a second from so many clients for so many seconds."""
    torch.set_num_threads(1)
    model = MLP(WIDTHS).double()
    latencies: list[float] = []
    kinds: Counter[str] = Counter()
    errors: list[str] = []

    def client(number: int, url: str, end: float) -> None:
        one = Client(url, model, number)
        turns, draw = itertools.cycle(one.kinds.items()), random.Random(number)
        while time.monotonic() < end:
            kind, ask = next(turns)
            start = time.perf_counter()
            try:
                ask()
            except (httpx.HTTPError, OSError, ValueError) as error:
                errors.append(f"{kind}: {type(error).__name__}: {error}")
            latencies.append(time.perf_counter() - start)
            kinds[kind] += 1
            time.sleep(max(0.0, draw.uniform(0, 2) * clients / rate - latencies[-1]))
        one.http.close()

    with served(model, "--gradients") as (url, pid), _sampled(pid, max(seconds / 720, 0.2)) as samples:
        before, end = _processor_seconds(pid), time.monotonic() + seconds
        threads = [threading.Thread(target=client, args=(number, url, end)) for number in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        used = _processor_seconds(pid) - before
    return {
        "seconds": seconds,
        "requests": len(latencies),
        "kinds": dict(kinds),
        "errors": len(errors),
        "first_errors": errors[:3],
        **_summary(latencies, samples),
        "server_processor_share": used / seconds,
    }


def _processor_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def _summary(latencies: list[float], samples: list[float]) -> dict[str, float]:
    """Quantiles of the latencies, and memory in the second and in the last tenth of the time."""
    cuts = statistics.quantiles(latencies, n=100)
    tenth = max(int(WARM * len(samples)), 1)
    return {
        "p50_ms": 1000 * cuts[49],
        "p99_ms": 1000 * cuts[98],
        "memory_mb_warm": statistics.median(samples[tenth : 2 * tenth]),
        "memory_mb_end": statistics.median(samples[-tenth:]),
        "memory_mb_most": max(samples),
    }

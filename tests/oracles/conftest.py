"""A scripted HTTP server on a real socket, for servers that behave as no honest one would, and one that adds up."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

from divulge.oracles.remote import transport
from divulge.oracles.remote.http import HttpOracle

Script = Callable[[str, str, dict[str, str], bytes], object]


@contextmanager
def _running(script: Script) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            length = int(self.headers.get("content-length", 0))
            body = self.rfile.read(length)
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = script(self.command, self.path, headers, body)
            if answer is None:  # hang up without a word
                self.close_connection = True
                return
            status, extra, content = answer
            self.send_response(status)
            for name, value in extra.items():
                self.send_header(name, value)
            pieces = [content] if isinstance(content, bytes) else content
            if isinstance(content, bytes):
                self.send_header("Content-Length", str(len(content)))
            else:
                self.close_connection = True
            self.end_headers()
            try:
                for piece in pieces:
                    self.wfile.write(piece)
            except OSError:
                self.close_connection = True

        do_GET = do_POST = _answer  # noqa: N815

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def scripted() -> Iterator[Callable[[Script], str]]:
    """``scripted(script)`` runs ``script(method, path, headers, body) -> (status, headers, content)``, at a URL."""
    with ExitStack() as stack:
        yield lambda script: stack.enter_context(_running(script))


METADATA = json.dumps(
    {
        "name": "sum",
        "inputs": [{"name": "x", "datatype": "FP64", "shape": [-1, 3]}],
        "outputs": [{"name": "y", "datatype": "FP64", "shape": [-1, 1]}],
    }
).encode()


class SumServer:
    """Answers sums of rows, unless ``misbehave(n, body)`` has an answer for the n-th inference request."""

    def __init__(self, misbehave=lambda n, body: "behave"):
        self.misbehave = misbehave
        self.lock = threading.Lock()
        self.requests = 0
        self.rows = []
        self.headers = []

    def __call__(self, method, path, headers, body):
        if method == "GET":
            return (200, {}, METADATA) if path == "/v2/models/sum" else (404, {}, b"")
        with self.lock:
            number = self.requests
            self.requests += 1
            self.headers.append(headers)
        answer = self.misbehave(number, body)
        if answer != "behave":
            return answer
        tensor = json.loads(body)["inputs"][0]
        rows = torch.tensor(tensor["data"], dtype=torch.float64).reshape(tensor["shape"])
        with self.lock:
            self.rows += rows[:, 0].tolist()
        sums = {"name": "y", "datatype": "FP64", "shape": [len(rows), 1], "data": rows.sum(dim=1).tolist()}
        return 200, {}, json.dumps({"outputs": [sums]}).encode()


@pytest.fixture
def opened(scripted, monkeypatch):
    """``opened(misbehave, **options)``: a SumServer, and an HttpOracle that asks it and retries soon."""
    monkeypatch.setattr(transport, "FIRST_BACKOFF", 0.01)
    made = []

    def open_(misbehave=lambda n, body: "behave", **options):
        server = SumServer(misbehave)
        oracle = HttpOracle(scripted(server) + "/v2/models/sum", **options)
        made.append(oracle)
        return server, oracle

    yield open_
    for oracle in made:
        oracle.close()

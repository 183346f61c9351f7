"""Servers that behave as no honest one would: drips, floods, lies, bombs and nonsense, in the metadata and in answers.

A case passes if the client ends with a right answer or with a DivulgeError, within its timeout and bounded memory.
"""

from __future__ import annotations

import gzip
import itertools
import json
import resource
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import torch

from divulge.core.errors import DivulgeError
from divulge.oracles.remote import transport
from divulge.oracles.remote.http import HttpOracle

TIMEOUT = 3.0
SLACK = 8.0
"""Seconds beyond the timeout before a case counts as a hang; a loaded machine is slow to wake a thread."""
METADATA = json.dumps(
    {
        "name": "m",
        "inputs": [{"name": "x", "datatype": "FP64", "shape": [-1, 3]}],
        "outputs": [{"name": "y", "datatype": "FP64", "shape": [-1, 1]}],
    }
).encode()
ANSWER = json.dumps({"outputs": [{"name": "y", "datatype": "FP64", "shape": [1, 1], "data": [6.0]}]}).encode()
Pieces = Callable[[], Iterator[bytes]]


def response(body: bytes, status: str = "200 OK", **headers: str) -> bytes:
    """A whole HTTP response."""
    lines = {"Content-Length": str(len(body)), **{name.replace("_", "-"): value for name, value in headers.items()}}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode("latin-1") + body


def _drip(start: bytes, piece: bytes) -> Pieces:
    return lambda: itertools.chain([start], itertools.repeat(piece))


def _once(content: bytes) -> Pieces:
    return lambda: iter([content])


def _drips() -> Iterator[tuple[str, Pieces]]:
    ok = b"HTTP/1.1 200 OK\r\n"
    chunked = ok + b"Transfer-Encoding: chunked\r\n\r\n"
    yield "silence", _drip(b"", b"")
    yield "status line, a byte at a time", _drip(b"HTTP/1.1 200 ", b"O")
    yield "endless headers", _drip(ok, b"X-Drip: 1\r\n")
    yield "one endless header", _drip(ok + b"X-Long: ", b"a")
    yield "100 Continue", _drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n")
    yield "102 Processing", _drip(b"", b"HTTP/1.1 102 Processing\r\n\r\n")
    yield "chunk extensions", _drip(chunked + b"1", b";a=1")
    yield "chunk size digits", _drip(chunked, b"0")
    yield "tiny chunks", _drip(chunked, b"1\r\n \r\n")
    yield "trailers", _drip(chunked + b"0\r\n", b"X-T: 1\r\n")
    yield "body", _drip(ok + b"Content-Length: 100000\r\n\r\n", b" ")
    yield "body without a length", _drip(ok + b"\r\n", b" ")


def _bomb(window_bits: int) -> bytes:
    """A quarter of a gigabyte of spaces, packed."""
    packer = zlib.compressobj(9, zlib.DEFLATED, window_bits)
    block = b" " * (1 << 20)
    return b"".join(packer.compress(block) for _ in range(256)) + packer.flush()


def _floods() -> Iterator[tuple[str, Pieces]]:
    block = b" " * 65536
    yield "flood of spaces", _drip(b"HTTP/1.1 200 OK\r\n\r\n", block)
    yield "flood of continues", _drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)
    yield "flood of headers", _drip(b"HTTP/1.1 200 OK\r\n", b"X-A: 1\r\n" * 1000)
    yield (
        "flood of chunks",
        _drip(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + block + b"\r\n"),
    )
    bomb = _bomb(31)
    yield "gzip bomb", _once(response(bomb, Content_Encoding="gzip"))
    yield "stacked gzip bomb", _once(response(gzip.compress(bomb), Content_Encoding="gzip, gzip"))
    yield "deflate bomb", _once(response(_bomb(15), Content_Encoding="deflate"))
    yield "brotli that was not asked for", _once(response(b"\x0b\x02\x80", Content_Encoding="br"))
    yield "gzip cut short", _once(response(gzip.compress(ANSWER)[:-4], Content_Encoding="gzip"))
    yield "gzip that is not", _once(response(ANSWER, Content_Encoding="gzip"))


def _protocol() -> Iterator[tuple[str, Pieces]]:
    for status in (
        "301 Moved",
        "302 Found",
        "304 Not Modified",
        "400 Bad",
        "401 No",
        "403 No",
        "404 No",
        "413 Large",
        "418 Teapot",
        "429 Busy",
        "500 Broken",
        "502 Bad",
        "503 Busy",
        "599 Odd",
        "999 Odd",
        "204 Empty",
        "206 Part",
    ):
        yield f"status {status}", _once(response(b'{"error": "\\u001b[31m no"}', status))
    for wait in ("0", "²", "-1", "9" * 400, "nonsense", "Wed, 21 Oct 2015 07:28:00 GMT", "99999"):
        yield f"Retry-After {wait[:30]}", _once(response(b"", "503 Busy", Retry_After=wait))
    yield "two lengths", _once(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcde")
    yield "negative length", _once(b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n")
    yield "huge length", _once(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n{}")
    yield (
        "length and chunks",
        _once(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    )
    yield "no HTTP", _once(b"\x00\xff\xfe nonsense\r\n\r\n")
    yield "HTTP/2 preface", _once(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    yield "a header of escape bytes", _once(response(ANSWER, X_Name="\x1b[2J"))
    yield "hang up", _once(b"")
    yield "half an answer", _once(response(ANSWER)[:-10])


def _answers() -> Iterator[tuple[str, Pieces]]:
    def tensor(**changes: Any) -> bytes:
        return json.dumps(
            {"outputs": [{"name": "y", "datatype": "FP64", "shape": [1, 1], "data": [6.0]} | changes]}
        ).encode()

    bodies = {
        "empty": b"",
        "null": b"null",
        "a number": b"6",
        "a list": b"[]",
        "a web page": b"<html>",
        "no outputs": b"{}",
        "outputs are text": b'{"outputs": "y"}',
        "outputs are numbers": b'{"outputs": [1, 2]}',
        "no tensors": b'{"outputs": []}',
        "cut JSON": ANSWER[:-3],
        "nested 100,000 deep": b"[" * 100_000,
        "objects 50,000 deep": b'{"a":' * 50_000,
        "not UTF-8": b"\xff\xfe" + ANSWER,
        "a number of 4,000 digits": tensor().replace(b"6.0", b"9" * 4000),
        "a number of 9,000 digits": tensor().replace(b"6.0", b"9" * 9000),
        "1e999": tensor().replace(b"6.0", b"1e999"),
        "NaN": tensor().replace(b"6.0", b"NaN"),
        "another name": tensor(name="z"),
        "a list as name": tensor(name=["y"]),
        "text as data": tensor(data=["cat"]),
        "an object as data": tensor(data={"a": 1}),
        "no data": tensor(data=None),
        "ragged data": tensor(data=[[1], [2, 3]]),
        "too many rows": tensor(shape=[2, 1], data=[1, 2]),
        "too wide": tensor(shape=[1, 2], data=[1, 2]),
        "too few numbers": tensor(data=[]),
        "shape of 10^12": tensor(shape=[10**12, 1]),
        "negative shape": tensor(shape=[-1, 1]),
        "infinite shape": tensor().replace(b"[1, 1]", b"[1e999, 1]"),
        "shape is text": tensor(shape="11"),
        "unknown datatype": tensor(datatype="FP7"),
        "a list as datatype": tensor(datatype=["FP64"]),
        "a size without bytes": tensor(parameters={"binary_data_size": 8}),
        "a negative size": tensor(parameters={"binary_data_size": -8}),
        "a size of text": tensor(parameters={"binary_data_size": "8"}),
    }
    for name, body in bodies.items():
        yield name, _once(response(body))
    for length in ("²", "-1", "99999999", "1e3", "", "9" * 5000, "0x10", str(len(ANSWER))):
        yield f"header length {length[:12]!r}", _once(response(ANSWER, Inference_Header_Content_Length=length))


def _metadata() -> Iterator[tuple[str, Pieces]]:
    def shaped(shape: Any, outputs: Any = (-1, 1), **parameters: Any) -> bytes:
        tensors = {
            "inputs": [{"name": "x", "datatype": "FP64", "shape": shape}],
            "outputs": [{"name": "\x1b[31my", "datatype": "FP64", "shape": outputs}],
            "parameters": parameters,
        }
        return json.dumps(tensors).encode()

    bodies = {
        "10^12 inputs": shaped([-1, 10**12]),
        "3*10^8 inputs": shaped([-1, 3 * 10**8]),
        "inputs of 4,000 digits": shaped([-1, 10**4000]),
        "many extents": shaped([-1] + [1000] * 2000),
        "10^12 outputs": shaped([-1, 3], [-1, 10**12]),
        "no free extent": shaped([7, 3]),
        "zero inputs": shaped([-1, 0]),
        "negative outputs": shaped([-1, 3], [-1, -5]),
        "shape is text": shaped("3"),
        "shape of text": shaped(["-1", "3"]),
        "threshold NaN": shaped([-1, 3], threshold=float("nan")),
        "batches of 10^30": shaped([-1, 3], max_batch_size=10**30),
        "output_dim of 10^30": shaped([-1, 3], output_dim=10**30),
        "200,000 inputs by name": json.dumps(
            {"inputs": [{"name": str(i), "datatype": "FP64", "shape": [-1, 1]} for i in range(20_000)]}
        ).encode(),
    }
    for name, body in bodies.items():
        yield name, _once(response(body))


def modes() -> list[tuple[str, str, Pieces]]:
    """Every mode as (phase, name, bytes): in the answer to a query, and in the metadata."""
    everywhere = [*_drips(), *_floods(), *_protocol()]
    asked = [("query", name, pieces) for name, pieces in (*everywhere, *_answers())]
    return asked + [("metadata", name, pieces) for name, pieces in (*everywhere, *_metadata())]


class _Server:
    """Honest in one phase, and sends the bytes of a mode in the other."""

    def __init__(self, phase: str, pieces: Pieces, pause: float) -> None:
        self.phase, self.pieces, self.pause = phase, pieces, pause
        self.closed = threading.Event()
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}/v2/models/m"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while not self.closed.is_set():
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(30)
            head = b""
            while b"\r\n\r\n" not in head:
                part = connection.recv(65536)
                if not part:
                    return
                head += part
            query, root = head.startswith(b"POST"), head.split(b" ")[1] == b"/v2"
            if root or (query and self.phase == "metadata") or (not query and self.phase == "query"):
                honest = response(b"", "404 No") if root else response(ANSWER if query else METADATA)
                connection.sendall(honest.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
                return
            for piece in self.pieces():
                connection.sendall(piece)
                if self.closed.wait(self.pause if len(piece) < 100 else 0):
                    return

    def close(self) -> None:
        self.closed.set()
        self.socket.close()


def run_mode(phase: str, name: str, pieces: Pieces) -> tuple[str, float]:
    """How a case ended ("answer", "error", "hang", "false answer" or a foreign error), and its seconds."""
    server = _Server(phase, pieces, pause=0.02)
    start = time.monotonic()
    try:
        with HttpOracle(server.url, timeout=TIMEOUT, retries=1, concurrency=1) as oracle:
            value = oracle.value(torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64))
        ending = "answer" if float(value) == 6.0 else "false answer"
    except DivulgeError as error:
        ending = "error" if str(error).isprintable() else f"raw text in {phase}, {name}"
    except Exception as error:  # what the cases look for
        ending = f"{type(error).__name__} in {phase}, {name}: {error}"
    finally:
        server.close()
    seconds = time.monotonic() - start
    return (f"hang in {phase}, {name}" if seconds > 2 * TIMEOUT + SLACK else ending), seconds


def run(threads: int = 4, some: list[tuple[str, str, Pieces]] | None = None) -> dict[str, Any]:
    """Every mode, a few at once; the counts, and the memory that the whole process took at its peak."""
    chosen = modes() if some is None else some
    before, transport.FIRST_BACKOFF = transport.FIRST_BACKOFF, 0.01
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        with ThreadPoolExecutor(threads) as pool:
            endings = list(pool.map(lambda mode: run_mode(*mode), chosen))
    finally:
        transport.FIRST_BACKOFF = before
    bad = [ending for ending, _ in endings if ending not in ("answer", "error")]
    return {
        "modes": len(chosen),
        "answers": sum(ending == "answer" for ending, _ in endings),
        "errors": sum(ending == "error" for ending, _ in endings),
        "failures": len(bad),
        "first_failures": bad[:5],
        "slowest_seconds": max(seconds for _, seconds in endings),
        "memory_mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) / 1024,
    }

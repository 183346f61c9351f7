"""Requests that no honest client sends, at ``divulge serve`` in a process of its own.

A request passes if it is answered in JSON with a 4xx (or the connection is closed, where nothing was asked), and if an
honest client is answered right behind it.
"""

from __future__ import annotations

import json
import random
import re
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import httpx

from divulge.models import MLP
from experiments.reliability.processes import memory_mb, served

PATIENCE = 90.0
"""Seconds for an answer: more than the server's own limits on headers and bodies."""
HONEST = {"inputs": [{"name": "input", "shape": [1, 4], "datatype": "FP64", "data": [0.5] * 4}]}


def post(body: bytes, *headers: str, path: str = "infer", length: int | str | None = None) -> bytes:
    """One POST as bytes."""
    lines = [
        f"POST /v2/models/model/{path} HTTP/1.1",
        "Host: h",
        f"Content-Length: {len(body) if length is None else length}",
    ]
    return "\r\n".join([*lines, *headers]).encode("latin-1") + b"\r\n\r\n" + body


NO_REQUESTS = (
    b"", b"null", b"1", b"[]", b"{}", b'{"inputs": 1}', b'{"inputs": []}', b'{"inputs": [1]}', b"\xff\xfe",
    b"[" * 100_000, b'{"a":' * 50_000, b'{"inputs": [{}, {}]}',
)  # fmt: skip
"""Bodies that are no inference request at all."""
CHANGES: dict[str, tuple[Any, ...]] = {
    "name": (None, 1, [], {}, "other", ["input"]),
    "shape": (
        None, 1, "14", [], [1], [4], [0, 4], [-1, 4], [1, 5], [True, 4], [1.0, 4], [10**30, 4], [1, 4, 1], [[1], 4],
        [16_385, 4], ["1", "4"],
    ),
    "datatype": (None, 1, [], {}, "FP7", "BYTES", "INT64", "BOOL", ["FP64"]),
    "data": (
        None, 1, "0.5", {}, {"a": 1}, [], [0.5] * 3, [0.5] * 5, [None] * 4, ["a"] * 4, [[0.5] * 2, [0.5]], [True] * 4,
        [1e308 * 10] * 4, [10**400] * 4, [[[[[[0.5]]]]]],
    ),
    "parameters": tuple({"binary_data_size": size} for size in (0, 1, -8, 32, "32", True, 1.5, [], {}, 10**30)),
}  # fmt: skip
"""Values that a field of the input tensor may not have."""
OUTPUTS: tuple[Any, ...] = (
    1, "value", {}, [1], [{}], [{"name": 1}], [{"name": ["value"]}], [{"name": "gradient"}], [{"name": "none"}],
)  # fmt: skip
"""Outputs that cannot be asked for."""


def _bodies() -> Iterator[bytes]:
    yield from NO_REQUESTS
    tensor = HONEST["inputs"][0]
    for field, values in CHANGES.items():
        for value in values:
            yield json.dumps({"inputs": [{**tensor, field: value}]}).encode()
        yield json.dumps({"inputs": [{name: kept for name, kept in tensor.items() if name != field}]}).encode()
    for outputs in OUTPUTS:
        yield json.dumps({**HONEST, "outputs": outputs}).encode()


def requests() -> list[bytes]:
    """Every malformed request."""
    good = json.dumps(HONEST).encode()
    sent = [post(body) for body in _bodies()]
    lengths = ("²", "٣".encode().decode("latin-1"), "-1", "1e3", "9" * 5000, "0x5", "99999", "1.0", "nan", "+5")
    sent += [post(good, f"Inference-Header-Content-Length: {length}") for length in lengths]
    sent += [post(b"x" * 10, length=length) for length in ("-1", "²", "1e2", "9" * 400, "99999999999", "5, 6")]
    sent += [post(good, "Content-Encoding: gzip"), post(b"\x1f\x8b" + bytes(20), "Content-Encoding: gzip")]
    sent += [
        post(good, path=path) for path in ("", "nothing", "../../etc/passwd", "infer/x", "%00", "infer?x=\x01", "\xff")
    ]
    sent += [b"GET /v2/models/model/infer HTTP/1.1\r\nHost: h\r\n\r\n", b"DELETE /v2 HTTP/1.1\r\nHost: h\r\n\r\n"]
    sent += [b"GET /v2/models/other HTTP/1.1\r\nHost: h\r\n\r\n", b"BREW / HTTP/1.1\r\nHost: h\r\n\r\n"]
    sent += [
        b"NONSENSE\r\n\r\n",
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: h\r\n\r\n",
        b"GET\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\n" + b"X: 1\r\n" * 5000 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: h\r\n\r\n",
        b"POST /v2/models/model/infer HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /v2/models/model/infer HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"POST /v2/models/model/infer HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcde",
    ]
    draw = random.Random(0)
    while len(sent) < 200:  # honest requests with a few bytes changed
        body = bytearray(good)
        for _ in range(draw.randint(1, 4)):
            body[draw.randrange(len(body))] = draw.randrange(256)
        sent.append(post(bytes(body)))
    return sent


def _whole(received: bytes) -> bool:
    """Whether these bytes are a whole answer."""
    head, end, body = received.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    return bool(end) and length is not None and len(body) >= int(length[1])


def ending(url: str, content: bytes) -> str:
    """How the server ended one request: "refused", "answered", "closed", or what is wrong with its answer."""
    address = urlsplit(url)
    received = b""
    with socket.create_connection((address.hostname, address.port), timeout=PATIENCE) as connection:
        with suppress(OSError):  # the server may have closed the connection already
            connection.sendall(content)
        try:
            while not _whole(received) and (part := connection.recv(65536)):
                received += part
        except TimeoutError:
            return "hang"
        except OSError:
            pass
    head, _, body = received.partition(b"\r\n\r\n")
    if not head:
        return "closed"
    status = int(head.split(b" ", 2)[1])
    try:
        content_ = json.loads(body)
    except ValueError:
        return f"status {status} that is not JSON"
    if status == 200:
        return "answered"
    refused = 400 <= status < 500 or (status == 501)
    return "refused" if refused and set(content_) == {"error"} else f"status {status}"


def run(limit: int | None = None) -> dict[str, Any]:
    """Every request, each followed by an honest one; counts, and the memory of the server."""
    chosen = requests()[:limit]
    bad: list[str] = []
    counts = {"refused": 0, "answered": 0, "closed": 0}
    slowest = 0.0
    with served(MLP([4, 3, 2]).double()) as (url, pid), httpx.Client(trust_env=False, timeout=PATIENCE) as client:
        client.post(f"{url}/infer", json=HONEST).raise_for_status()
        before = memory_mb(pid)
        for content in chosen:
            start = time.monotonic()
            how = ending(url, content)
            slowest = max(slowest, time.monotonic() - start)
            if how in counts:
                counts[how] += 1
            else:
                bad.append(f"{how}: {content[:120]!r}")
            if client.post(f"{url}/infer", json=HONEST).status_code != 200:
                bad.append(f"an honest client is refused after {content[:120]!r}")
        grown = memory_mb(pid) - before
    return {
        "requests": len(chosen),
        **counts,
        "failures": len(bad),
        "first_failures": bad[:5],
        "slowest_seconds": slowest,
        "server_grew_mb": grown,
    }

"""One deadline for a whole request: also for a question that the server hardly reads, and for finding the server."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from divulge.core import errors
from divulge.oracles.remote.http import HttpOracle
from divulge.oracles.remote.transport import Transport

TIMEOUT = 0.8
LATE = 3.0  # seconds: for a loaded machine; what is tested below took several times longer


@pytest.fixture
def sipping() -> Iterator[str]:
    """A server that takes a little of what is sent, again and again, each time before a send would time out."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    closed = threading.Event()

    def sip() -> None:
        connection, _ = listening.accept()
        with connection:
            while not closed.wait(TIMEOUT / 4):
                connection.recv(1 << 14)

    threading.Thread(target=sip, daemon=True).start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    closed.set()
    listening.close()


def test_a_question_that_the_server_hardly_reads(sipping: str) -> None:
    import httpx

    transport = Transport(
        httpx.URL(sipping), token=None, timeout=TIMEOUT, retries=0, rate_limit=None, concurrency=1
    )  # fmt: skip
    began = time.monotonic()
    with pytest.raises(errors.ServerTimeout):
        transport.send("POST", sipping, body=bytes(20_000_000))
    assert time.monotonic() - began < TIMEOUT + LATE


@pytest.fixture
def full() -> Iterator[int]:
    """A port whose queue is full: nobody answers there, and nobody refuses."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(0)
    waiting = []
    for _ in range(4):
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex(listening.getsockname())
        waiting.append(one)
    yield listening.getsockname()[1]
    for one in (*waiting, listening):
        one.close()


def renamed(monkeypatch: pytest.MonkeyPatch, found: Any) -> None:
    real = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest, **more: (
        found(*rest) if host == "model.example" else real(host, *rest, **more)))  # fmt: skip


def addresses(port: int, *hosts: str) -> list[tuple[Any, ...]]:
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in hosts]


def test_a_name_with_many_addresses_that_lead_nowhere(monkeypatch: pytest.MonkeyPatch, full: int) -> None:
    tried = []
    connect = socket.create_connection

    def to_the_full_port(address: tuple[str, int], *rest: Any, **more: Any) -> socket.socket:
        tried.append(address)
        return connect(("127.0.0.1", full), *rest, **more)

    monkeypatch.setattr(socket, "create_connection", to_the_full_port)
    renamed(monkeypatch, lambda *rest: addresses(full, *(f"127.0.0.{last}" for last in range(1, 9))))
    began = time.monotonic()
    with pytest.raises(errors.ServerTimeout):
        HttpOracle(f"http://model.example:{full}/v2/models/m", timeout=TIMEOUT, retries=0)
    assert time.monotonic() - began < TIMEOUT + LATE
    assert len(tried) == 8


def test_a_name_that_nobody_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    done = threading.Event()
    renamed(monkeypatch, lambda *rest: done.wait(30) and [])
    began = time.monotonic()
    with pytest.raises(errors.ServerTimeout):
        HttpOracle("http://model.example:80/v2/models/m", timeout=TIMEOUT, retries=0)
    assert time.monotonic() - began < TIMEOUT + LATE
    done.set()


def test_a_name_without_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*rest: Any) -> list[Any]:
        raise socket.gaierror(-2, "Name or service not known")

    for found in (unknown, lambda *rest: []):
        with monkeypatch.context() as patch:
            renamed(patch, found)
            with pytest.raises(errors.ServerUnreachable, match=r"Name or service not known|no address"):
                HttpOracle("http://model.example:80/v2/models/m", timeout=TIMEOUT, retries=0)


def test_the_next_address_is_tried_where_the_first_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        renamed(monkeypatch, lambda *rest: addresses(rest[0], "127.0.0.2", "127.0.0.1"))
        threading.Thread(target=_refuse, args=(listening,), daemon=True).start()
        with pytest.raises(errors.ServerRefused, match="status 403"):
            HttpOracle(f"http://model.example:{listening.getsockname()[1]}/v2/models/m", timeout=30, retries=0)


def _refuse(listening: socket.socket) -> None:
    while True:
        connection, _ = listening.accept()
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 403 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        connection.close()

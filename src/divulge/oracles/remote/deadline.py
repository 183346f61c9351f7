"""One deadline for a whole HTTP request, whatever the server sends.

httpx limits each read by itself, so a server that sends one byte of a header, one ``100 Continue`` or one chunk
extension before each limit ends keeps a request alive for ever. Here every operation on the socket gets only the time
that is left until the deadline of the request that the thread is sending.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import httpcore
import httpx


class Deadline(threading.local):
    """The moment by which this thread's request must be answered."""

    def __init__(self) -> None:
        self._until: float | None = None

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Give the requests in the block this many seconds."""
        self._until = time.monotonic() + seconds
        try:
            yield
        finally:
            self._until = None

    def remaining(self, timeout: float | None, late: type[Exception]) -> float | None:
        """The smaller of a timeout and the time left; raises ``late`` where none is left."""
        if self._until is None:
            return timeout
        left = self._until - time.monotonic()
        if left <= 0:
            raise late("the deadline of the request has passed")
        return left if timeout is None else min(left, timeout)


class _Stream(httpcore.NetworkStream):
    """A connection whose operations end with the deadline."""

    def __init__(self, stream: httpcore.NetworkStream, deadline: Deadline) -> None:
        self._stream, self._deadline = stream, deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._deadline.remaining(timeout, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, self._deadline.remaining(timeout, httpcore.WriteTimeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        timeout = self._deadline.remaining(timeout, httpcore.ConnectTimeout)
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, timeout), self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _Backend(httpcore.NetworkBackend):
    """Opens connections that keep the deadline."""

    def __init__(self, backend: httpcore.NetworkBackend, deadline: Deadline) -> None:
        self._backend, self._deadline = backend, deadline

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        timeout = self._deadline.remaining(timeout, httpcore.ConnectTimeout)
        return _Stream(self._backend.connect_tcp(host, port, timeout, local_address, socket_options), self._deadline)

    def sleep(self, seconds: float) -> None:
        self._backend.sleep(seconds)


def keep_deadlines(client: httpx.Client) -> Deadline:
    """Make every connection of a client keep the deadline that is returned.

    httpx has no option for the network backend of httpcore, so the backend is replaced in the connection pools.
    """
    deadline = Deadline()
    for transport in (client._transport, *client._mounts.values()):
        if isinstance(transport, httpx.HTTPTransport):
            pool = transport._pool
            pool._network_backend = _Backend(pool._network_backend, deadline)
    return deadline

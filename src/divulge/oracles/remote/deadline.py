"""One deadline for a whole HTTP request, whatever the server sends.

httpx limits each read and each partial write by itself, so a server that sends one byte of a header, one ``100
Continue`` or one chunk extension, or takes a few bytes of the question, before each limit ends keeps a request alive
for ever. It does not limit the look-up of a name, and gives every address of a name the whole time. Here every
operation gets only the time that is left until the deadline of the request that the thread is sending.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import httpcore
import httpx

from divulge.core.aside import Aside


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
        connection = self._stream.get_extra_info("socket")
        encrypted = self._stream.get_extra_info("ssl_object") is not None
        if connection is None or (encrypted and not isinstance(connection, ssl.SSLSocket)):  # inside a proxy's own TLS
            self._stream.write(buffer, self._deadline.remaining(timeout, httpcore.WriteTimeout))
            return
        left = memoryview(buffer)
        while len(left):
            connection.settimeout(self._deadline.remaining(timeout, httpcore.WriteTimeout))
            try:
                left = left[connection.send(left) :]
            except TimeoutError as error:
                raise httpcore.WriteTimeout(str(error)) from error
            except OSError as error:
                raise httpcore.WriteError(str(error)) from error

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
        addresses = self._addresses(host, port, timeout)
        for place, address in enumerate(addresses):
            left = self._deadline.remaining(timeout, httpcore.ConnectTimeout)
            share = None if left is None else left / (len(addresses) - place)  # the first may lead nowhere
            try:
                stream = self._backend.connect_tcp(address, port, share, local_address, socket_options)
                return _Stream(stream, self._deadline)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                if address == addresses[-1]:
                    raise
        raise httpcore.ConnectError(f"{host} has no address")

    def _addresses(self, host: str, port: int, timeout: float | None) -> list[str]:
        """Where a name leads, without repeats."""
        look_up = Aside(partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM))
        try:
            found = look_up.wait(self._deadline.remaining(timeout, httpcore.ConnectTimeout))
        except TimeoutError as error:
            raise httpcore.ConnectTimeout(str(error)) from error
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(str(error)) from error
        return list(dict.fromkeys(str(one[4][0]) for one in found))

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

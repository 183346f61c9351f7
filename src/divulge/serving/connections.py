"""Limits on the server's connections: their number, the time for a request's headers, and refusals in JSON.

uvicorn limits neither the time in which headers arrive nor the number of idle connections, and answers a malformed
request in plain text. ``LimitedProtocol`` adds both limits, for one client and for all, and answers in the protocol's
own form. Where a limit is reached, the connection that has waited longest without a whole request is closed: a client
that holds many connections open does not lock the others out.
"""

from __future__ import annotations

import asyncio
import json
import time
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 10.0
MAX_CONNECTIONS = 128
MAX_PER_CLIENT = 96  # connections from one address
IDLE_SECONDS = 1.0  # a connection that waits longer than this for a request may be closed for another one


class LimitedProtocol(H11Protocol):
    """One connection: closed where its headers take too long, or where there are too many others."""

    _header_timer: asyncio.TimerHandle | None = None
    _waits_since = 0.0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if not self._admitted():
            self._refuse(503, "The server has too many connections; try again later.")
            return
        self._start_header_timer()

    def _admitted(self) -> bool:
        """Whether there is a place for this connection, if need be that of one that has waited too long."""
        others = [
            other
            for other in self.connections
            if isinstance(other, LimitedProtocol) and other is not self and not other.transport.is_closing()
        ]
        mine = [other for other in others if other.client and self.client and other.client[0] == self.client[0]]
        for group, most in ((mine, MAX_PER_CLIENT), (others, MAX_CONNECTIONS)):
            if len(group) < most:
                continue
            waiting = [other for other in group if other._header_timer is not None]
            oldest = min(waiting, key=lambda other: other._waits_since, default=None)
            if oldest is None or time.monotonic() - oldest._waits_since < IDLE_SECONDS:
                return False
            oldest._refuse(503, "The server has too many connections; this one was idle.")
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_header_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._start_header_timer()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not an HTTP request."""
        self._refuse(400, "The request is not HTTP that this server reads.")

    def _start_header_timer(self) -> None:
        self._stop_header_timer()
        self._waits_since = time.monotonic()
        self._header_timer = self.loop.call_later(HEADER_SECONDS, self._headers_late)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _headers_late(self) -> None:
        if not self.transport.is_closing():
            self._refuse(408, f"The headers of a request must arrive within {HEADER_SECONDS:g} seconds.")

    def _refuse(self, status: int, sentence: str) -> None:
        body = json.dumps({"error": sentence}).encode()
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode("ascii") + body)
        self.transport.close()

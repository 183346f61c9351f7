"""Limits on the server's connections: their number, the time and size of a request, and refusals in JSON.

uvicorn limits neither the time in which a request arrives or an answer is read, nor the size of its headers, nor the
number of idle connections, and answers a malformed request in plain text. ``LimitedProtocol`` adds these limits, and
answers in the protocol's own form. Where the number of connections reaches its limit, the one that has waited longest
without a whole request is closed: a client that holds many connections open does not lock the others out.
"""

from __future__ import annotations

import asyncio
import json
import time
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADER_SECONDS = 10.0
BODY_SECONDS = 60.0  # for a whole body to arrive
READ_SECONDS = 60.0  # for a client to read what was written for it
HEADER_BYTES = 1 << 16  # of a request beside its body: headers, trailers and the sizes of chunks
CHUNK_BYTES = 8  # for each byte of the body: "1\r\nx\r\n" is the smallest chunk
MAX_CONNECTIONS = 128
MAX_PER_CLIENT = 96  # connections from one address
IDLE_SECONDS = 1.0  # a connection that waits longer than this for a request may be closed for another one


class LimitedProtocol(HttpToolsProtocol):
    """One connection: closed where a request takes too long or too many bytes, or where there are too many others."""

    _timer: asyncio.TimerHandle | None = None  # until the headers, or the body, are there
    _read_timer: asyncio.TimerHandle | None = None
    _waits_since: float | None = None  # for the headers of a request
    _received = _body = 0  # bytes of the request under way
    _whole = True  # whether the last request arrived to its end

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if not self._admitted():
            self._refuse(503, "The server has too many connections; try again later.")
            return
        self._wait_for_headers()

    def _admitted(self) -> bool:
        """Whether there is a place for this connection, if need be that of one that has waited too long."""
        others = [
            other
            for other in self.connections
            if isinstance(other, LimitedProtocol) and other is not self and not other.transport.is_closing()
        ]
        mine = [other for other in others if other.client and self.client and other.client[0] == self.client[0]]
        now = time.monotonic()
        for group, most in ((mine, MAX_PER_CLIENT), (others, MAX_CONNECTIONS)):
            if len(group) < most:
                continue
            waiting = {other: other._waits_since for other in group if other._waits_since is not None}
            oldest = min(waiting, key=lambda other: waiting[other], default=None)
            if oldest is None or now - waiting[oldest] < IDLE_SECONDS:
                return False
            oldest._refuse(503, "The server has too many connections; this one was idle.")
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop(self._timer)
        self._stop(self._read_timer)
        super().connection_lost(exc)

    # -- a request arrives --------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        super().data_received(data)
        if self._received - (1 + CHUNK_BYTES) * self._body > HEADER_BYTES and not self.transport.is_closing():
            self._refuse(431, f"A request may have at most {HEADER_BYTES:,} bytes beside its body.")

    def on_headers_complete(self) -> None:
        self._whole, self._waits_since = False, None
        super().on_headers_complete()
        self._stop(self._timer)
        self._timer = self.loop.call_later(BODY_SECONDS, self._late, "body", BODY_SECONDS)

    def on_body(self, body: bytes) -> None:
        self._body += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._whole, self._received, self._body = True, 0, 0
        self._stop(self._timer)
        super().on_message_complete()
        if self.cycle.response_complete:  # it was refused before its end
            self._wait_for_headers()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._whole and self.cycle.response_complete and not self.transport.is_closing():
            self._wait_for_headers()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not an HTTP request."""
        self._refuse(400, "The request is not HTTP that this server reads.")

    def _wait_for_headers(self) -> None:
        self._stop(self._timer)
        self._waits_since = time.monotonic()
        self._timer = self.loop.call_later(HEADER_SECONDS, self._late, "headers", HEADER_SECONDS)

    def _late(self, part: str, seconds: float) -> None:
        if not self.transport.is_closing():
            self._refuse(408, f"The {part} of a request must arrive within {seconds:g} seconds.")

    # -- its answer leaves --------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """Called where the client does not read as fast as it asks."""
        super().pause_writing()
        self._stop(self._read_timer)
        self._read_timer = self.loop.call_later(READ_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Called where the client has read most of what was written."""
        self._stop(self._read_timer)
        super().resume_writing()

    def _refuse(self, status: int, sentence: str) -> None:
        self._stop(self._timer)
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # what the application may still send would follow the refusal
        body = json.dumps({"error": sentence}).encode()
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode("ascii") + body)
        self.transport.close()

    @staticmethod
    def _stop(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()

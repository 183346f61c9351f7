"""Sending requests to a server that may be down, slow, busy or hostile: retries, rate, deadlines and redaction.

One request is one call of ``Transport.send``. It waits for its turn under the rate limit, honours Retry-After for every
thread at once, never follows a redirect, ends with its deadline, reads no more than an honest answer takes, and turns
each failure into an error class of its own. The bearer token is in the client's headers only. It is removed from the
server's text before that text reaches an error message.
"""

from __future__ import annotations

import email.utils
import functools
import json
import os
import random
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address

import httpx

from divulge.core.errors import (
    InvalidInput,
    ServerError,
    ServerFailed,
    ServerRedirected,
    ServerRefused,
    ServerTimeout,
    ServerUnreachable,
)
from divulge.oracles.remote.body import read_body
from divulge.oracles.remote.deadline import keep_deadlines

FIRST_BACKOFF = 0.25  # seconds; doubles with every retry
LONGEST_BACKOFF = 30.0
LONGEST_RETRY_AFTER = 300.0  # a server that asks for more ends the run; a journal resumes it
OVERHEAD_BYTES = 1 << 20  # bytes an answer may take beyond its numbers: names, braces, white space

BYTES_PER_NUMBER = 64  # indented JSON with all its digits


@dataclass(frozen=True)
class Reply:
    """A successful answer: its headers (lower case names) and its whole body."""

    headers: httpx.Headers
    body: bytes


class Transport:
    """A thread-safe client of one server."""

    def __init__(
        self,
        url: httpx.URL,
        *,
        token: str | None,
        timeout: float,
        retries: int,
        rate_limit: float | None,
        concurrency: int,
    ) -> None:
        if timeout <= 0:
            raise InvalidInput(f"A timeout of {timeout} seconds makes no sense; give a positive number.")
        if retries < 0:
            raise InvalidInput(f"{retries} retries make no sense; give zero or more.")
        if rate_limit is not None and rate_limit <= 0:
            raise InvalidInput(
                f"A rate limit of {rate_limit} requests a second makes no sense; give a positive number."
            )
        if concurrency < 1:
            raise InvalidInput(f"A concurrency of {concurrency} makes no sense; give one or more.")
        self._server = f"{url.scheme}://{url.netloc.decode('ascii')}"
        self._token = token
        self._timeout = timeout
        self._retries = retries
        self._interval = 0.0 if rate_limit is None else 1.0 / rate_limit
        self._slots = threading.BoundedSemaphore(concurrency)
        self._lock = threading.Lock()
        self._next_start = 0.0  # no request starts before this moment
        self._reached = False
        self._in_flight = 0
        self._in_flight_since = 0.0
        self.network_seconds = 0.0
        trust_env = not _is_loopback(url.host)  # no proxy of the environment for this machine itself
        self._client = httpx.Client(
            headers={"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {token}"} if token else {}),
            timeout=timeout,
            follow_redirects=False,
            trust_env=trust_env,
            verify=_certificates(trust_env, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=concurrency),
        )
        self._deadline = keep_deadlines(self._client)

    def close(self) -> None:
        self._client.close()

    def send(
        self,
        method: str,
        url: str,
        *,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
        numbers: int = 0,
        sent: Callable[[], None] = lambda: None,
        stop: threading.Event | None = None,
    ) -> Reply:
        """The answer to one request.

        ``sent`` is called for every attempt, ``numbers`` is how many are expected back at most, and ``stop`` set means
        that nobody waits for the answer any more: no further attempt is made.
        """
        stop = stop or threading.Event()
        request = self._client.build_request(method, url, content=body, headers=headers)
        for attempt in range(self._retries + 1):
            with self._slots:
                self._wait_for_turn(stop)
                sent()
                outcome = self._attempt(request, OVERHEAD_BYTES + BYTES_PER_NUMBER * numbers)
            if isinstance(outcome, Reply):
                return outcome
            failure, pause = outcome
            if attempt == self._retries or stop.is_set():
                raise failure
            self._delay_requests(backoff(attempt) if pause is None else pause)
        raise AssertionError("the last attempt returns or raises")

    def redact(self, text: object, most: int = 200) -> str:
        """Text from outside as one short printable line that does not hold the token."""
        line = str(text)
        if self._token:
            line = line.replace(self._token, "[token]")
        line = " ".join("".join(c if c.isprintable() else " " for c in line).split())
        return line if len(line) <= most else line[:most] + "..."

    # -- one attempt --------------------------------------------------------------------------------------------------

    def _attempt(self, request: httpx.Request, most: int) -> Reply | tuple[ServerError, float | None]:
        """The reply; or a failure that may pass, and how long the server asks to wait; any other failure is raised."""
        try:
            status, reply = self._once(request, most)
        except httpx.TimeoutException as error:
            raise ServerTimeout(
                f"{self._server} did not answer within {self._timeout:g} seconds; raise timeout=, or ask for fewer "
                "rows at a time with batch_size=."
            ) from error
        except httpx.TransportError as error:
            lost = ServerUnreachable(
                f"{self._server} cannot be reached: {self.redact(error) or type(error).__name__}. Check the address "
                "and that the server runs."
            )
            lost.__cause__ = error
            if not self._reached:  # wrong address or nothing there yet: say so at once
                raise lost from error
            return lost, None
        self._reached = True
        if status < 300:
            return reply
        failure = self._refusal(status, reply)
        if not isinstance(failure, ServerFailed):
            raise failure
        pause = retry_after(reply.headers.get("retry-after"), reply.headers.get("date"))
        if pause is not None and pause > LONGEST_RETRY_AFTER:
            raise ServerFailed(
                f"{self._server} asks to wait {pause:.0f} seconds, longer than the {LONGEST_RETRY_AFTER:.0f} that "
                "divulge waits; run again later (with a journal, nothing is asked twice)."
            )
        return failure, pause

    def _once(self, request: httpx.Request, most: int) -> tuple[int, Reply]:
        self._request_started()
        try:
            with self._deadline.within(self._timeout):
                response = self._client.send(request, stream=True)
                try:
                    body = read_body(response, most, self._server)
                finally:
                    response.close()
        finally:
            self._request_finished()
        return response.status_code, Reply(response.headers, body)

    def _refusal(self, status: int, reply: Reply) -> ServerError:
        said = self.redact(_error_text(reply.body))
        said = f": {said}" if said else ""
        if status < 400:
            location = self.redact(reply.headers.get("location", "an unnamed place"))
            return ServerRedirected(
                f"{self._server} redirects to {location} (status {status}); queries are never sent on to another "
                "address. Give that address yourself if you trust it."
            )
        if status == 429 or status >= 500:
            return ServerFailed(f"{self._server} answered status {status} after {self._retries} retries{said}")
        advice = {
            401: " Name the environment variable that holds the bearer token with token_env=.",
            403: " The token does not open this model.",
            404: " Check the model's name in the address.",
            413: " Ask for fewer rows at a time with batch_size=.",
        }.get(status, "")
        return ServerRefused(f"{self._server} refused with status {status}{said}.{advice}")

    # -- taking turns -------------------------------------------------------------------------------------------------

    def _wait_for_turn(self, stop: threading.Event) -> None:
        while True:
            with self._lock:
                now = time.monotonic()
                if now >= self._next_start:
                    self._next_start = now + self._interval
                    return
                pause = self._next_start - now
            if stop.wait(pause):
                raise ServerFailed(f"{self._server} was not asked again: another request of the same question failed.")

    def _delay_requests(self, seconds: float) -> None:
        """Start no request for this long: a busy server said so, or it just failed."""
        with self._lock:
            self._next_start = max(self._next_start, time.monotonic() + seconds)

    def _request_started(self) -> None:
        with self._lock:
            if self._in_flight == 0:
                self._in_flight_since = time.perf_counter()
            self._in_flight += 1

    def _request_finished(self) -> None:
        with self._lock:
            self._in_flight -= 1
            if self._in_flight == 0:
                self.network_seconds += time.perf_counter() - self._in_flight_since


def backoff(attempt: int) -> float:
    """Seconds before the next attempt: doubling, with jitter so that many clients do not return together."""
    ceiling = min(LONGEST_BACKOFF, FIRST_BACKOFF * 2.0**attempt)
    return ceiling * (0.5 + 0.5 * _jitter.random())


def retry_after(header: str | None, server_date: str | None = None) -> float | None:
    """Seconds that a Retry-After header asks for, as a number or as a date; None where it says nothing readable.

    A date is read against the server's own clock (its Date header), so that a wrong clock on either side does no
    harm. A server that does not tell its clock is read against ours, if that makes sense: a wait that is over, or
    longer than any that is waited for, rather says that a clock is wrong.
    """
    if header is None:
        return None
    header = header.strip()
    if header.isascii() and header.isdigit():
        return float(header) if len(header) < 10 else float("inf")
    moment, now = _timestamp(header), _timestamp(server_date)
    if moment is None:
        return None
    if now is not None:
        return max(0.0, moment - now)
    pause = moment - time.time()
    return pause if 0 <= pause <= LONGEST_RETRY_AFTER else None


def _timestamp(date: str | None) -> float | None:
    try:
        return None if date is None else email.utils.parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


_jitter = random.SystemRandom()  # timing only: no answer depends on it


def _error_text(body: bytes) -> str:
    """What the server says went wrong: the protocols' own field for it, or the start of whatever it sent."""
    try:
        content = json.loads(body)
        return str(content["error"] if "error" in content else content["message"]).rstrip(".")
    except (ValueError, KeyError, TypeError, RecursionError):
        return body[:1000].decode("utf-8", "replace")


@functools.cache
def _certificates(trust_env: bool, file: str | None, folder: str | None) -> ssl.SSLContext:
    """The authorities that clients trust, read once: that takes 25 ms of processor time.

    httpx reads ``file`` and ``folder`` from the environment itself; here they tell one list from another.
    """
    return httpx.create_ssl_context(trust_env=trust_env)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False

"""Sending requests to a server that may be down, slow, busy or lying: retries, rate, deadlines and redaction.

One request is one call of ``Transport.send``. It waits for its turn under the rate limit, honours Retry-After for every
thread at once, never follows a redirect, reads no more than it was promised, and turns each failure into the error
class of its own. The bearer token lives in the client's headers only; text that came from the server is cleaned of it
before it reaches an error message.
"""

from __future__ import annotations

import email.utils
import json
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address

import httpx

from divulge.errors import (
    BadAnswer,
    InvalidInput,
    ServerError,
    ServerFailed,
    ServerRedirected,
    ServerRefused,
    ServerTimeout,
    ServerUnreachable,
)

FIRST_BACKOFF = 0.25  # seconds; doubles with every retry
LONGEST_BACKOFF = 30.0
LONGEST_RETRY_AFTER = 300.0  # a server that asks for more is taken at its word: the run stops, and a journal resumes it
ROOM = 1 << 20  # bytes an answer may take beyond its numbers: names, braces, white space

BYTES_A_NUMBER = 64  # indented JSON with all its digits


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
        self._where = f"{url.scheme}://{url.netloc.decode('ascii')}"
        self._token = token
        self._timeout = timeout
        self._retries = retries
        self._gap = 0.0 if rate_limit is None else 1.0 / rate_limit
        self._places = threading.BoundedSemaphore(concurrency)
        self._lock = threading.Lock()
        self._next_slot = 0.0  # no request starts before this moment
        self._reached = False
        self._out = 0
        self._out_since = 0.0
        self.network_seconds = 0.0
        self._client = httpx.Client(
            headers={"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {token}"} if token else {}),
            timeout=timeout,
            follow_redirects=False,
            trust_env=not _is_loopback(url.host),  # the environment's proxy has no business with this machine
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=concurrency),
        )

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
            with self._places:
                self._wait_for_slot(stop)
                sent()
                outcome = self._attempt(request, ROOM + BYTES_A_NUMBER * numbers)
            if isinstance(outcome, Reply):
                return outcome
            failure, pause = outcome
            if attempt == self._retries or stop.is_set():
                raise failure
            self._hold(backoff(attempt) if pause is None else pause)
        raise AssertionError("the last attempt returns or raises")

    def clean(self, text: object, most: int = 200) -> str:
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
                f"{self._where} did not answer within {self._timeout:g} seconds; raise timeout=, or ask for fewer rows "
                "at a time with batch_size=."
            ) from error
        except httpx.DecodingError as error:
            raise BadAnswer(f"{self._where} sent an answer that does not unpack: {self.clean(error)}.") from error
        except httpx.TransportError as error:
            lost = ServerUnreachable(
                f"{self._where} cannot be reached: {self.clean(error) or type(error).__name__}. Check the address and "
                "that the server runs."
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
        pause = retry_after(reply.headers.get("retry-after"))
        if pause is not None and pause > LONGEST_RETRY_AFTER:
            raise ServerFailed(
                f"{self._where} asks to wait {pause:.0f} seconds, longer than the {LONGEST_RETRY_AFTER:.0f} that "
                "divulge waits; run again later (with a journal, nothing is asked twice)."
            )
        return failure, pause

    def _once(self, request: httpx.Request, most: int) -> tuple[int, Reply]:
        deadline = time.monotonic() + self._timeout
        self._departed()
        try:
            response = self._client.send(request, stream=True)
            try:
                chunks: list[bytes] = []
                size = 0
                for chunk in response.iter_bytes():
                    size += len(chunk)
                    if size > most:
                        raise BadAnswer(
                            f"{self._where} sent more than {most:,} bytes, more than the asked-for answer can take."
                        )
                    if time.monotonic() > deadline:
                        raise httpx.ReadTimeout("the answer trickled in too slowly")
                    chunks.append(chunk)
            finally:
                response.close()
        finally:
            self._returned()
        return response.status_code, Reply(response.headers, b"".join(chunks))

    def _refusal(self, status: int, reply: Reply) -> ServerError:
        said = self.clean(_error_text(reply.body))
        said = f": {said}" if said else ""
        if status < 400:
            location = self.clean(reply.headers.get("location", "an unnamed place"))
            return ServerRedirected(
                f"{self._where} redirects to {location} (status {status}); queries are never sent on to another "
                "address. Give that address yourself if you trust it."
            )
        if status == 429 or status >= 500:
            return ServerFailed(f"{self._where} answered status {status} after {self._retries} retries{said}")
        advice = {
            401: " Name the environment variable that holds the bearer token with token_env=.",
            403: " The token does not open this model.",
            404: " Check the model's name in the address.",
            413: " Ask for fewer rows at a time with batch_size=.",
        }.get(status, "")
        return ServerRefused(f"{self._where} refused with status {status}{said}.{advice}")

    # -- taking turns -------------------------------------------------------------------------------------------------

    def _wait_for_slot(self, stop: threading.Event) -> None:
        while True:
            with self._lock:
                now = time.monotonic()
                if now >= self._next_slot:
                    self._next_slot = now + self._gap
                    return
                pause = self._next_slot - now
            if stop.wait(pause):
                raise ServerFailed(f"{self._where} was not asked again: another request of the same question failed.")

    def _hold(self, seconds: float) -> None:
        """Nobody asks for this long: a busy server said so, or it just failed."""
        with self._lock:
            self._next_slot = max(self._next_slot, time.monotonic() + seconds)

    def _departed(self) -> None:
        with self._lock:
            if self._out == 0:
                self._out_since = time.perf_counter()
            self._out += 1

    def _returned(self) -> None:
        with self._lock:
            self._out -= 1
            if self._out == 0:
                self.network_seconds += time.perf_counter() - self._out_since


def backoff(attempt: int) -> float:
    """Seconds before the next attempt: doubling, with jitter so that many clients do not return together."""
    ceiling = min(LONGEST_BACKOFF, FIRST_BACKOFF * 2.0**attempt)
    return ceiling * (0.5 + 0.5 * _jitter.random())


def retry_after(header: str | None) -> float | None:
    """Seconds that a Retry-After header asks for, as a number or as a date; None where it says nothing readable."""
    if header is None:
        return None
    header = header.strip()
    if header.isascii() and header.isdigit():
        return float(header)
    try:
        moment = email.utils.parsedate_to_datetime(header)
    except ValueError:
        return None
    return max(0.0, moment.timestamp() - time.time())


_jitter = random.SystemRandom()  # timing only: no answer depends on it


def _error_text(body: bytes) -> str:
    """What the server says went wrong: the protocols' own field for it, or the start of whatever it sent."""
    try:
        content = json.loads(body)
        return str(content["error"] if "error" in content else content["message"]).rstrip(".")
    except (ValueError, KeyError, TypeError, RecursionError):
        return body[:1000].decode("utf-8", "replace")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False

"""The timeout bounds a whole request, whatever a server drips; unpacking is bounded; clocks may be wrong."""

from __future__ import annotations

import email.utils
import functools
import gzip
import json
import resource
import socket
import threading
import time
import zlib

import pytest

from divulge.core import errors
from divulge.oracles.remote import transport
from divulge.oracles.remote.http import HttpOracle
from divulge.oracles.remote.transport import retry_after

TIMEOUT = 0.8
METADATA = json.dumps(
    {
        "name": "sum",
        "inputs": [{"name": "x", "datatype": "FP64", "shape": [-1, 3]}],
        "outputs": [{"name": "y", "datatype": "FP64", "shape": [-1, 1]}],
    }
).encode()
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(METADATA) + METADATA
NOT_THERE = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


class RawServer:
    """Answers GET honestly and everything else by ``drip``: bytes for ever, one piece each pause."""

    def __init__(self, drip, *, metadata=None, pause=0.1):
        self.drip, self.metadata, self.pause = drip, metadata, pause
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}/v2/models/sum"
        self.closed = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while not self.closed.is_set():
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with connection:
            try:
                while head := self._head(connection):
                    path = head.split(b" ")[1]
                    if head.startswith(b"GET") and path == b"/v2":
                        connection.sendall(NOT_THERE)
                    elif head.startswith(b"GET") and self.metadata is None:
                        connection.sendall(WHOLE)
                    else:
                        for piece in self.drip() if head.startswith(b"POST") else self.metadata():
                            connection.sendall(piece)
                            if self.closed.wait(self.pause):
                                return
            except OSError:
                return

    @staticmethod
    def _head(connection):
        head = b""
        while b"\r\n\r\n" not in head:
            part = connection.recv(65536)
            if not part:
                return b""
            head += part
        return head

    def close(self):
        self.closed.set()
        self.socket.close()


def headers():
    yield b"HTTP/1.1 200 OK\r\n"
    while True:
        yield b"X-Drip: 1\r\n"


def one_header_byte_at_a_time():
    yield b"HTTP/1.1 200 OK\r\nX-Long: "
    while True:
        yield b"a"


def continues():
    while True:
        yield b"HTTP/1.1 100 Continue\r\n\r\n"


def chunk_extensions():
    yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1"
    while True:
        yield b";extension=1"


def body():
    yield b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"
    while True:
        yield b" "


def silence():
    while True:
        yield b""


DRIPS = [headers, one_header_byte_at_a_time, continues, chunk_extensions, body, silence]


@pytest.fixture
def running():
    servers = []

    def start(*args, **options):
        servers.append(RawServer(*args, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.mark.parametrize("drip", DRIPS)
def test_no_drip_outlives_the_timeout_of_an_inference_request(running, drip):
    with HttpOracle(running(drip).url, timeout=TIMEOUT) as oracle:
        start = time.monotonic()
        with pytest.raises(errors.ServerTimeout, match=r"within 0\.8 seconds"):
            oracle.value([[1.0, 2.0, 3.0]])
        assert time.monotonic() - start < 4 * TIMEOUT
        assert oracle.ledger.total == 0


@pytest.mark.parametrize("drip", DRIPS)
def test_no_drip_outlives_the_timeout_of_the_metadata(running, drip):
    start = time.monotonic()
    with pytest.raises(errors.ServerTimeout):
        HttpOracle(running(drip, metadata=drip).url, timeout=TIMEOUT)
    assert time.monotonic() - start < 4 * TIMEOUT


def test_a_flood_of_continues_without_a_pause_ends_too(running):
    with HttpOracle(running(lambda: iter(lambda: b"HTTP/1.1 100 Continue\r\n\r\n" * 100, None), pause=0).url,
                    timeout=TIMEOUT) as oracle:  # fmt: skip
        start = time.monotonic()
        with pytest.raises(errors.ServerError):
            oracle.value([[1.0, 2.0, 3.0]])
        assert time.monotonic() - start < 4 * TIMEOUT


# -- packed answers ---------------------------------------------------------------------------------------------------


def answered(rows: int = 1) -> bytes:
    sums = {"name": "y", "datatype": "FP64", "shape": [rows, 1], "data": [6.0] * rows}
    return json.dumps({"outputs": [sums]}).encode()


@functools.cache
def bomb(size: int = 1 << 30) -> bytes:
    packer = zlib.compressobj(1, wbits=31)
    block = b" " * (1 << 20)
    return b"".join(packer.compress(block) for _ in range(size >> 20)) + packer.flush()


@pytest.mark.parametrize(
    ("encoding", "content"),
    [("gzip", gzip.compress(answered(), mtime=0)), ("deflate", zlib.compress(answered())), ("identity", answered())],
    ids=["gzip", "deflate", "identity"],
)
def test_an_answer_packed_once_is_read(opened, encoding, content):
    _, oracle = opened(lambda n, body: (200, {"Content-Encoding": encoding}, content))
    assert oracle.value([[1.0, 2.0, 3.0]]).item() == 6


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2])
def test_a_bomb_is_refused_before_memory_goes(opened, times):
    packed = bomb() if times == 1 else gzip.compress(bomb(), mtime=0)
    _, oracle = opened(lambda n, body: (200, {"Content-Encoding": ", ".join(["gzip"] * times)}, packed))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(errors.BadAnswer, match=r"sent more than|encoding 'gzip, gzip'"):
        oracle.value([[1.0, 2.0, 3.0]])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10  # kilobytes: 200 MB


@pytest.mark.parametrize(
    ("encoding", "content", "words"),
    [
        ("br", answered(), "encoding 'br'"),
        ("zstd", answered(), "encoding 'zstd'"),
        ("gzip", b"not packed at all", "does not unpack"),
        ("gzip", gzip.compress(answered(), mtime=0)[:-9], "does not unpack"),
        ("gzip", gzip.compress(answered(), mtime=0) * 2, "does not unpack"),
    ],
    ids=["brotli", "zstd", "not packed", "cut short", "two members"],
)
def test_what_does_not_unpack_is_refused(opened, encoding, content, words):
    _, oracle = opened(lambda n, body: (200, {"Content-Encoding": encoding}, content))
    with pytest.raises(errors.BadAnswer, match=words):
        oracle.value([[1.0, 2.0, 3.0]])


# -- clocks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong_by", [-86_400, 0, 86_400])
def test_a_retry_after_date_is_read_against_the_server_s_own_clock(wrong_by):
    now = time.time() + wrong_by
    later, date = (email.utils.formatdate(moment, usegmt=True) for moment in (now + 20, now))
    assert 19 <= retry_after(later, date) <= 21


def test_a_retry_after_without_a_date_is_read_against_our_clock():
    later = email.utils.formatdate(time.time() + 20, usegmt=True)
    assert 18 <= retry_after(later) <= 20
    assert 18 <= retry_after(later, "not a date") <= 20
    for wrong_by in (-3600, 3600):  # our clock, or the server's: then its date says nothing
        assert retry_after(email.utils.formatdate(time.time() + wrong_by + 20, usegmt=True)) is None
    assert retry_after("9" * 400) > transport.LONGEST_RETRY_AFTER
    assert retry_after("Fri, 99 Nov 9999 99:99:99 GMT") is None


@pytest.mark.parametrize("extent", [10**12, 10**3999])
def test_metadata_of_an_impossible_size_is_refused_before_memory_goes(running, extent):
    metadata = METADATA.replace(b"[-1, 3]", b"[-1, %d]" % extent)
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(metadata) + metadata
    with pytest.raises(errors.UnsupportedModel, match="divulge handles at most") as refusal:
        HttpOracle(running(silence, metadata=lambda: iter([answer]), pause=0).url, timeout=5)
    assert len(str(refusal.value)) < 300

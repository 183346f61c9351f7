"""Any metadata, any answer and any bytes from a server end in a result or in a DivulgeError."""

from __future__ import annotations

import json
import math
import socket
import threading

import httpx
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from divulge.core.errors import BadAnswer, DivulgeError
from divulge.oracles.remote import transport
from divulge.oracles.remote.http import HttpOracle
from divulge.oracles.remote.protocols import protocol_for
from divulge.oracles.remote.protocols.open_inference import HEADER_LENGTH, read_tensors
from divulge.oracles.remote.signature import Signature, TensorNames, complete
from divulge.oracles.remote.transport import Reply, retry_after

URL = "http://host/v2/models/m"
ROWS = np.ones((2, 3))
MANY = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
NUMBERS = (
    st.integers(-3, 5)
    | st.sampled_from([2**31, 2**63, 10**12, 10**400, -(2**63), 1e308, math.inf, -math.inf, math.nan, 0.5, True])
    | st.floats()
)
TEXTS = st.sampled_from(["x", "y", "FP64", "FP32", "INT64", "BYTES", "BOOL", "gradient", "label", "\x1b[31m", "²", ""])
LEAVES = st.none() | st.booleans() | NUMBERS | TEXTS
ANY = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["name", "shape", "datatype", "data", "parameters", "binary_data_size", "outputs", "inputs"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
TENSORS = ANY | st.lists(
    ANY
    | st.fixed_dictionaries(
        {},
        optional={
            "name": TEXTS | ANY,
            "datatype": TEXTS | ANY,
            "shape": st.lists(NUMBERS, max_size=4) | ANY,
            "data": st.lists(NUMBERS, max_size=8) | ANY,
            "parameters": st.fixed_dictionaries({}, optional={"binary_data_size": NUMBERS | ANY}) | ANY,
        },
    ),
    max_size=3,
)
METADATA = ANY | st.fixed_dictionaries(
    {},
    optional={
        "name": ANY,
        "inputs": TENSORS,
        "outputs": TENSORS,
        "extensions": ANY,
        "parameters": ANY | st.dictionaries(st.sampled_from(["max_batch_size", "output_dim", "threshold"]), LEAVES),
    },
)


def outcome(call):
    """What the call returns, or the sentence of its DivulgeError. Any other error fails the test."""
    try:
        return call(), ""
    except DivulgeError as error:
        return None, str(error)


def replying(content, headers=None):
    """A ``send`` that answers everything with this content."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return lambda url, body_=None, **options: Reply(httpx.Headers(headers or {}), body)


@pytest.mark.slow
@given(METADATA)
@MANY
def test_any_metadata_is_a_signature_or_a_sentence(metadata):
    def read():
        signature = protocol_for(URL, None).signature(TensorNames(), replying(metadata))
        return complete(signature, URL, access="value", input_shape=None, output_dim=None, has_explain=False)

    signature, said = outcome(read)
    assert said or signature.input_shape


@pytest.mark.slow
@given(
    TENSORS, st.binary(max_size=40), st.none() | st.integers(0, 100) | st.sampled_from(["²", "-1", "1e3", "9" * 5000])
)
@MANY
def test_any_tensors_are_arrays_or_a_bad_answer(outputs, blob, length):
    header = json.dumps({"outputs": outputs}).encode()
    announced = None if length is None else str(len(header) if length == 0 else length)
    tensors, said = outcome(lambda: read_tensors(header + blob, announced, URL))
    assert said or all(isinstance(tensor, np.ndarray) for tensor in tensors.values())


@pytest.mark.slow
@given(st.binary(max_size=200), st.sampled_from(["value", "gradient", "label"]))
@MANY
def test_any_bytes_are_an_answer_or_a_bad_answer(body, kind):
    signature = Signature({}, (3,), 1, output="y", gradient="gradient", label="label")
    with pytest.raises(BadAnswer):
        protocol_for(URL, None).ask(kind, ROWS, signature, replying(body))


@pytest.mark.slow
@given(ANY, st.sampled_from(["http://host/v1/models/m", "http://host/invocations"]), st.sampled_from([None, "y"]))
@MANY
def test_nested_lists_of_anything_are_an_answer_or_a_bad_answer(predictions, url, name):
    signature = Signature({}, (3,), None, output=name)
    send = replying({"predictions": predictions})
    answer, said = outcome(lambda: protocol_for(url, None).ask("value", ROWS, signature, send))
    assert said or len(answer) == len(ROWS)


@pytest.mark.slow
@given(st.none() | st.text(max_size=40), st.none() | st.text(max_size=40))
@MANY
def test_any_retry_after_is_a_number_of_seconds_or_nothing(header, date):
    seconds = retry_after(header, date)
    assert seconds is None or seconds >= 0


HONEST = json.dumps(
    {"inputs": [{"name": "x", "datatype": "FP64", "shape": [-1, 3]}],
     "outputs": [{"name": "y", "datatype": "FP64", "shape": [-1, 1]}]}
).encode()  # fmt: skip
ANSWER = b'{"outputs": [{"name": "y", "datatype": "FP64", "shape": [1, 1], "data": [6.0]}]}'


class OneAnswer:
    """A server that is honest about its metadata and sends given bytes to every other request, then hangs up."""

    def __init__(self):
        self.sent = b""
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}/v2/models/m"
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(10)
                try:
                    self._answer(connection)
                except OSError:
                    continue

    def _answer(self, connection):
        head = b""
        while b"\r\n\r\n" not in head:
            part = connection.recv(65536)
            if not part:
                return
            head += part
        if head.startswith(b"GET"):
            connection.sendall(
                b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(HONEST) + HONEST
            )
        else:
            connection.sendall(self.sent)


@pytest.fixture(scope="module")
def server():
    server = OneAnswer()
    before, transport.FIRST_BACKOFF = transport.FIRST_BACKOFF, 0.001
    yield server
    transport.FIRST_BACKOFF = before
    server.socket.close()


HEADERS = st.sampled_from(
    ["Content-Length", "Content-Encoding", "Transfer-Encoding", "Retry-After", "Date", "Location", HEADER_LENGTH]
)
VALUES = st.sampled_from(
    ["", "0", "80", "-1", "9" * 30, "²", "gzip", "br", "chunked", "identity", "\x1b[2J"]
) | st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=12)
RESPONSES = st.binary(max_size=120) | st.builds(
    lambda status, headers, body: (
        f"HTTP/1.1 {status} \r\n".encode()
        + "".join(f"{n}: {v}\r\n" for n, v in headers).encode("latin-1")
        + b"\r\n"
        + body
    ),
    st.sampled_from([100, 200, 204, 206, 301, 304, 400, 404, 429, 500, 503, 999, -1]),
    st.lists(st.tuples(HEADERS, VALUES), max_size=4),
    st.binary(max_size=60) | st.just(ANSWER),
)


@pytest.mark.slow
@given(sent=RESPONSES)
@settings(MANY, max_examples=80)
def test_any_bytes_on_the_socket_end_in_an_answer_or_a_divulge_error(server, sent):
    def ask():
        with HttpOracle(server.url, timeout=20, retries=1) as oracle:
            return oracle.value([[1.0, 2.0, 3.0]])

    server.sent = sent
    value, said = outcome(ask)
    assert said.isprintable()
    assert said or torch.equal(value, torch.tensor([[6.0]], dtype=torch.float64))

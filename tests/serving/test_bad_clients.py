"""Clients that send nonsense, slowly, or too much: JSON with a 4xx, a closed connection, and the others are served."""

from __future__ import annotations

import json
import socket
import threading
import time
from urllib.parse import urlsplit

import httpx
import pytest
import torch

import divulge
from divulge import serving
from divulge.models import MLP
from divulge.serving import application, connections, requests

MODEL = MLP([3, 4, 2]).double()


@pytest.fixture
def url():
    with serving.running(MODEL, max_batch=50) as url:
        yield url


def connect(url):
    address = urlsplit(url)
    return socket.create_connection((address.hostname, address.port), timeout=10)


def received(connection):
    content = b""
    while part := connection.recv(65536):
        content += part
    return content


def closed_within(connection, seconds):
    """Whether the other side closes; a connection that nobody reads from shows that only when it is written to."""
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            connection.sendall(b"\r\n")
            time.sleep(0.1)
    except ConnectionError:
        return True
    return False


def question(**changes):
    tensor = {"name": "input", "shape": [2, 3], "datatype": "FP64", "data": [0.5] * 6} | changes
    return {"inputs": [tensor]}


BAD = {
    "a list as name": question() | {"outputs": [{"name": ["value"]}]},
    "an object as datatype": question(datatype={"a": 1}),
    "a truth as rows": question(shape=[True, 3], data=[0.5] * 3),
    "a text as size": question(parameters={"binary_data_size": "48"}),
    "a truth as size": question(parameters={"binary_data_size": True}),
    "an object as data": question(data={"a": 1}),
    "null in data": question(data=[None] * 6),
}


@pytest.mark.parametrize("asked", BAD.values(), ids=BAD.keys())
def test_a_malformed_request_is_answered_in_json_with_400(url, asked):
    reply = httpx.post(f"{url}/infer", json=asked, trust_env=False)
    assert reply.status_code == 400
    assert set(reply.json()) == {"error"}


@pytest.mark.parametrize("length", ["²", "٣", "9" * 5000, "1e3"])
def test_a_header_length_of_strange_digits_is_400(url, length):
    headers = {"Inference-Header-Content-Length": length.encode()}
    reply = httpx.post(f"{url}/infer", json=question(), headers=headers, trust_env=False)
    assert (reply.status_code, set(reply.json())) == (400, {"error"})


@pytest.mark.parametrize("sent", [b"NONSENSE\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"\x00\x01\x02\r\n\r\n"])
def test_what_is_not_http_is_answered_in_json(url, sent):
    with connect(url) as connection:
        connection.sendall(sent)
        head, _, body = received(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert set(json.loads(body)) == {"error"}


def test_a_model_that_breaks_is_answered_in_json(monkeypatch):
    def broken(self, rows, wanted):
        raise MemoryError

    monkeypatch.setattr(application.ModelServer, "_ask", broken)
    with serving.running(MODEL) as url:
        reply = httpx.post(f"{url}/infer", json=question(), trust_env=False)
    assert (reply.status_code, set(reply.json())) == (500, {"error"})


def test_headers_that_drip_are_cut_off_and_others_are_served(monkeypatch):
    monkeypatch.setattr(connections, "HEADER_SECONDS", 1.0)
    with serving.running(MODEL) as url, connect(url) as slow:
        slow.sendall(b"POST /v2/models/model/infer HTTP/1.1\r\nHost: a\r\n")
        start = time.monotonic()
        try:
            while time.monotonic() - start < 8:
                slow.sendall(b"X-Drip: 1\r\n")
                assert httpx.get(url, trust_env=False).status_code == 200
                time.sleep(0.2)
            pytest.fail("the drip was never cut off")
        except OSError:
            assert time.monotonic() - start < 6


def test_a_body_that_never_ends_is_408(monkeypatch):
    monkeypatch.setattr(connections, "BODY_SECONDS", 0.5)
    with serving.running(MODEL) as url, connect(url) as slow:
        slow.sendall(b"POST /v2/models/model/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n{")
        head, _, body = received(slow).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408")
    assert "within 0.5 seconds" in json.loads(body)["error"]


START = b"POST /v2/models/model/infer HTTP/1.1\r\nHost: a\r\n"
CHUNKED = START + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("start", "again"),
    [
        (START, b"X-Many: 1\r\n"),
        (START + b"X-Long: ", b"a" * 100),
        (b"GET /", b"a" * 100),
        (CHUNKED + b"1", b";extension=1"),
        (CHUNKED + b"1\r\n{\r\n0\r\n", b"X-Trailer: 1\r\n"),
        (CHUNKED, b"1;%b\r\n \r\n" % (b"a" * 200)),
    ],
    ids=[
        "many headers",
        "a long header",
        "a long address",
        "chunk extensions",
        "trailers",
        "extensions of tiny chunks",
    ],
)
def test_what_comes_beside_a_body_is_limited_in_size(url, start, again):
    with connect(url) as flood:
        said = b""
        try:
            flood.sendall(start)
            for _ in range(40):
                flood.sendall(again * (20_000 // len(again)))
            flood.settimeout(20)
            said = received(flood)
        except OSError:  # closed while it was sent to, which discards the answer
            pass
        assert said[:12] in (b"", b"HTTP/1.1 431", b"HTTP/1.1 400")
    assert httpx.get(url, trust_env=False).status_code == 200


def test_a_body_of_tiny_chunks_is_read(url):
    body = json.dumps(question()).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    with connect(url) as connection:
        connection.sendall(CHUNKED.replace(b"Host: a", b"Host: a\r\nConnection: close") + chunks + b"0\r\n\r\n")
        assert received(connection).startswith(b"HTTP/1.1 200")


def test_requests_that_are_sent_before_the_last_answer_are_answered_in_turn(url):
    body = json.dumps(question()).encode()
    one = START + b"Content-Length: %d\r\n\r\n" % len(body) + body
    last = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    with connect(url) as connection:
        connection.sendall(one * 20 + last)
        said = received(connection)
    assert said.count(b"HTTP/1.1 200") == 21
    assert said.endswith(b'{"live":true}')


def test_a_client_that_does_not_read_its_answers_is_dropped(monkeypatch):
    monkeypatch.setattr(connections, "READ_SECONDS", 0.5)
    body = json.dumps(question(shape=[50, 3], data=[0.123456789] * 150)).encode()
    one = START + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with serving.running(MLP([3, 4, 5000]).double()) as url, socket.socket() as deaf:
        address = urlsplit(url)
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect((address.hostname, address.port))
        deaf.settimeout(1.0)
        deaf.sendall(one * 10)  # answers of five megabytes each
        assert closed_within(deaf, 60.0)
        assert httpx.get(url, trust_env=False).status_code == 200


def test_a_refused_request_that_goes_on_is_read_to_its_end_and_the_next_one_answered(url):
    with connect(url) as connection:
        connection.sendall(START + b"Content-Length: 3000000\r\n\r\n" + b" " * 1_000_000)
        assert connection.recv(65536).startswith(b"HTTP/1.1 413")
        connection.sendall(b" " * 2_000_000)
        connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert received(connection).endswith(b'{"live":true}')


def test_an_answer_that_would_be_too_large_is_refused_and_the_metadata_says_so(monkeypatch):
    monkeypatch.setattr(application, "MAX_ANSWER", 8 * 2 * (1 + 3) * 10)
    with serving.running(MODEL, gradients=True) as url:
        assert httpx.get(url, trust_env=False).json()["parameters"]["max_batch_size"] == 10
        for rows, status in ((10, 200), (11, 400)):
            asked = question(shape=[rows, 3], data=[0.5] * 3 * rows)
            assert httpx.post(f"{url}/infer", json=asked, trust_env=False).status_code == status
        few = question(shape=[40, 3], data=[0.5] * 120) | {"outputs": [{"name": "value"}]}
        assert httpx.post(f"{url}/infer", json=few, trust_env=False).status_code == 200


def test_health_is_answered_while_a_slow_model_computes():
    def slow(X):
        time.sleep(1.0)
        return X.sum(axis=1)

    with serving.running(divulge.oracle(slow, input_shape=(3,))) as url:
        for _ in range(2):  # the second one is known to be slow
            asked = threading.Thread(target=httpx.post, args=(f"{url}/infer",), kwargs={"json": question()})
            asked.start()
            time.sleep(0.3)
            assert httpx.get(url, trust_env=False, timeout=60).status_code == 200
            still = asked.is_alive()
            asked.join()
            assert still


def test_connections_beyond_the_limit_are_refused_in_json(monkeypatch):
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 3)
    with serving.running(MODEL) as url:
        held = [connect(url) for _ in range(3)]
        time.sleep(0.3)
        with connect(url) as one_more:
            head, _, body = received(one_more).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503")
        assert set(json.loads(body)) == {"error"}
        for connection in held:
            connection.close()


def test_a_large_body_is_refused_by_its_shape_before_it_is_parsed(monkeypatch):
    """Sixty megabytes of numbers with a shape that is not the model's never become Python objects."""
    parsed = []
    monkeypatch.setattr(requests, "_split", lambda body, length: parsed.append(len(body)))
    body = b'{"inputs": [{"name": "input", "shape": [700000, 4], "datatype": "FP64", "data": [' + b"0.5," * 500_000
    body += b"0.5]}]}"
    with pytest.raises(requests.RequestRefused, match=r"\[rows, 3\]"):
        requests.parse_request(body, None, input_shape=(3,), outputs={"value": (2,)}, max_batch=16_384)
    assert not parsed


def test_a_body_longer_than_the_largest_question_is_413(url):
    reply = httpx.post(f"{url}/infer", content=b" " * (2 << 20), trust_env=False)
    assert reply.status_code == 413  # 50 rows of 3 numbers never take two megabytes
    large = question(shape=[50, 3], data=torch.randn(50, 3, dtype=torch.float64).tolist())
    assert httpx.post(f"{url}/infer", json=large, trust_env=False).status_code == 200


def test_idle_connections_make_room_for_a_client_that_asks(monkeypatch):
    monkeypatch.setattr(connections, "MAX_PER_CLIENT", 3)
    monkeypatch.setattr(connections, "IDLE_SECONDS", 0.2)
    monkeypatch.setattr(connections, "HEADER_SECONDS", 60.0)
    with serving.running(MODEL) as url:
        held = [connect(url) for _ in range(3)]
        for connection in held:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n")  # headers that never end
        time.sleep(1.0)
        assert httpx.get(url, trust_env=False).status_code == 200
        head, _, body = received(held[0]).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503")
        assert "idle" in json.loads(body)["error"]
        for connection in held:
            connection.close()


@pytest.mark.parametrize(
    ("start", "status"),
    [(b'{"inputs": [{"name": "input", "data": [', 400), (b'{"inputs": [{"shape": [1, 3], "data": [', 413)],
    ids=["no shape", "a shape of three numbers"],
)
def test_a_large_body_is_refused_before_it_is_parsed(monkeypatch, start, status):
    monkeypatch.setattr(requests, "_split", lambda body, length: pytest.fail("parsed"))
    with pytest.raises(requests.RequestRefused) as refused:
        requests.parse_request(
            start + b"0.5," * 600_000 + b"0.5]}]}", None, input_shape=(3,), outputs={"value": (2,)}, max_batch=16_384
        )
    assert refused.value.status == status

"""Clients that send nonsense, slowly, or too much: JSON with a 4xx, a closed connection, and the others are served."""

from __future__ import annotations

import json
import socket
import time
from urllib.parse import urlsplit

import httpx
import pytest
import torch

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
    monkeypatch.setattr(application, "BODY_SECONDS", 0.5)
    with serving.running(MODEL) as url, connect(url) as slow:
        slow.sendall(b"POST /v2/models/model/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n{")
        head, _, body = received(slow).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408")
    assert "within 0.5 seconds" in json.loads(body)["error"]


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

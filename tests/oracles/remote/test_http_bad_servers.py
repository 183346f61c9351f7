"""A server that is down, slow, busy or lying gets the error of its own, and the ledger keeps what was answered."""

from __future__ import annotations

import email.utils
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from divulge.core import errors
from divulge.oracles.remote import transport
from divulge.oracles.remote.http import HttpOracle
from divulge.oracles.remote.journal import Journal

JSON = {"Content-Type": "application/json"}


def reply(content: object, status: int = 200) -> tuple[int, dict[str, str], bytes]:
    return status, JSON, json.dumps(content).encode()


def numbered(n: int) -> torch.Tensor:
    return torch.stack([torch.arange(n), torch.ones(n), torch.ones(n)], dim=1).double()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


# -- what the server does wrong, and what it is called ----------------------------------------------------------------


def test_a_server_that_is_down_is_said_at_once():
    start = time.monotonic()
    with pytest.raises(errors.ServerUnreachable, match="cannot be reached"):
        HttpOracle(f"http://127.0.0.1:{free_port()}/v2/models/m")
    assert time.monotonic() - start < 5


def test_a_server_that_hangs_up_once_is_asked_again(opened):
    _, oracle = opened(lambda n, body: None if n == 0 else "behave")
    assert oracle.value(numbered(4)).flatten().tolist() == [2, 3, 4, 5]
    assert (oracle.ledger.value, oracle.ledger.requests) == (4, 2)


def test_a_server_that_always_hangs_up_is_unreachable(opened):
    server, oracle = opened(lambda n, body: None, retries=2)
    with pytest.raises(errors.ServerUnreachable):
        oracle.value(numbered(4))
    assert (oracle.ledger.total, oracle.ledger.requests, server.requests) == (0, 3, 3)


def slowly(n, body):
    time.sleep(5.0)
    return "behave"


def trickling(n, body):
    def pieces():
        for byte in output():
            time.sleep(0.1)
            yield bytes([byte])

    return 200, JSON, pieces()


@pytest.mark.parametrize("behaviour", [slowly, trickling])
def test_a_slow_server_times_out(opened, behaviour):
    _, oracle = opened(behaviour, timeout=0.8)
    start = time.monotonic()
    with pytest.raises(errors.ServerTimeout, match=r"within 0\.8 seconds"):
        oracle.value(numbered(4))
    assert time.monotonic() - start < 4
    assert oracle.ledger.total == 0


def test_a_redirect_is_never_followed(opened, scripted):
    visits = []
    elsewhere = scripted(lambda *request: visits.append(request) or reply({}))
    _, oracle = opened(lambda n, body: (307, {"Location": elsewhere + "/v2/models/sum/infer"}, b""))
    with pytest.raises(errors.ServerRedirected, match="redirects to"):
        oracle.value(numbered(4))
    with pytest.raises(errors.ServerRedirected):
        HttpOracle(scripted(lambda *request: (301, {"Location": elsewhere}, b"")) + "/v2/models/sum")
    assert visits == []
    assert oracle.ledger.total == 0


def output(**changes) -> bytes:
    tensor = {"name": "y", "datatype": "FP64", "shape": [4, 1], "data": [1.0, 2.0, 3.0, 4.0]} | changes
    return json.dumps({"outputs": [{key: value for key, value in tensor.items() if value is not None}]}).encode()


def endless():
    while True:
        yield b"1" * 65536


BAD_ANSWERS = {
    "a web page": b"<!doctype html><p>Please log in</p>",
    "not JSON": b"\x00\x01\x02",
    "nothing": b"",
    "a list": b"[1, 2]",
    "nested too deep": b"[" * 100_000,
    "no outputs": b'{"predictions": [1]}',
    "outputs that are no list": b'{"outputs": {"y": 1}}',
    "an output that is a number": b'{"outputs": [1]}',
    "another output": output(name="z"),
    "no shape": output(shape=None),
    "a shape of text": output(shape="big"),
    "a negative shape": output(shape=[-1, 4]),
    "too few numbers": output(data=[1.0]),
    "too few rows": output(shape=[2, 1], data=[1.0, 2.0]),
    "too many rows": output(shape=[6, 1], data=[1.0] * 6),
    "too many columns": output(shape=[4, 2], data=[1.0] * 8),
    "no columns": output(shape=[4, 0], data=[]),
    "text": output(data=["a", "b", "c", "d"]),
    "text that says so": output(datatype="BYTES", data=["a", "b", "c", "d"]),
    "binary that never came": output(data=None, parameters={"binary_data_size": 32}),
}


@pytest.mark.slow
@pytest.mark.parametrize("body", BAD_ANSWERS.values(), ids=BAD_ANSWERS.keys())
def test_an_answer_that_is_not_the_promised_tensor_is_refused_and_not_charged(opened, body):
    _, oracle = opened(lambda n, _: (200, JSON, body))
    with pytest.raises(errors.BadAnswer) as caught:
        oracle.value(numbered(4))
    assert oracle.ledger.total == 0
    assert len(str(caught.value)) < 600


def test_an_endless_answer_is_cut_off(opened):
    _, oracle = opened(lambda n, _: (200, JSON, endless()))
    with pytest.raises(errors.BadAnswer, match="bytes"):
        oracle.value(numbered(4))


@pytest.mark.parametrize("length", ["999", "-1", "many"])
def test_a_header_length_that_lies_is_refused(opened, length):
    _, oracle = opened(lambda n, _: (200, {"Inference-Header-Content-Length": length}, output()))
    with pytest.raises(errors.BadAnswer, match="header length"):
        oracle.value(numbered(4))


@pytest.mark.parametrize("metadata", [b"<html>", b"[]", b'{"inputs": [{"name": "x"}]}', b'{"inputs": 3}'])
def test_metadata_that_makes_no_sense_is_refused(scripted, metadata):
    with pytest.raises(errors.BadAnswer):
        HttpOracle(scripted(lambda *request: (200, JSON, metadata)) + "/v2/models/sum")


@pytest.mark.parametrize("bad", ["NaN", "Infinity", "null"])
def test_an_answer_of_nan_is_an_answer_and_is_counted(opened, bad):
    body = output().replace(b"3.0", bad.encode())
    _, oracle = opened(lambda n, _: (200, JSON, body))
    with pytest.raises(errors.NonFiniteAnswer, match="1 of 4 rows"):
        oracle.value(numbered(4))
    assert oracle.ledger.value == 4


# -- busy servers -----------------------------------------------------------------------------------------------------


def test_500_then_fine_is_fine(opened):
    _, oracle = opened(lambda n, body: reply({"error": "oops"}, 500) if n < 2 else "behave")
    assert oracle.value(numbered(2)).flatten().tolist() == [2, 3]
    assert (oracle.ledger.value, oracle.ledger.requests) == (2, 3)


def test_a_server_that_stays_broken_is_given_up(opened):
    server, oracle = opened(lambda n, body: reply({"error": "out of memory"}, 503), retries=3)
    with pytest.raises(errors.ServerFailed, match=r"status 503.*out of memory"):
        oracle.value(numbered(2))
    assert (oracle.ledger.total, oracle.ledger.requests, server.requests) == (0, 4, 4)


def test_retry_after_in_seconds_is_honoured_by_every_thread(opened):
    times = []

    def busy(n, body):
        times.append(time.monotonic())
        return (429, {"Retry-After": "1"}, b"") if n == 0 else "behave"

    _, oracle = opened(busy, batch_size=1, concurrency=2)
    oracle.value(numbered(8))
    late = [moment - times[0] for moment in times]
    assert sum(after < 0.9 for after in late) <= 3  # the one refused, and what was already out
    assert oracle.ledger.value == 8


def test_retry_after_as_a_date_is_honoured(opened):
    def busy(n, body):
        date = email.utils.formatdate(time.time() + 2, usegmt=True)  # whole seconds: between one and two from now
        return (503, {"Retry-After": date}, b"") if n == 0 else "behave"

    _, oracle = opened(busy)
    start = time.monotonic()
    oracle.value(numbered(1))
    assert time.monotonic() - start > 0.9


@pytest.mark.parametrize(
    ("header", "seconds"), [("7", 7.0), (" 0 ", 0.0), ("soon", None), (None, None), ("-3", None), ("Mon, 99 X", None)]
)
def test_retry_after_is_read_or_ignored(header, seconds):
    assert transport.retry_after(header) == seconds


def test_a_retry_after_in_the_past_means_now():
    assert transport.retry_after("Wed, 21 Oct 2015 07:28:00 GMT", "Wed, 21 Oct 2015 07:29:00 GMT") == 0.0


def test_a_server_that_asks_for_an_hour_is_taken_at_its_word(opened):
    server, oracle = opened(lambda n, body: (429, {"Retry-After": "3600"}, b""))
    with pytest.raises(errors.ServerFailed, match="3600 seconds"):
        oracle.value(numbered(1))
    assert server.requests == 1


def test_backoff_doubles_up_to_a_ceiling_with_jitter(monkeypatch):
    monkeypatch.setattr(transport, "FIRST_BACKOFF", 1.0)
    for attempt, ceiling in [(0, 1), (1, 2), (3, 8), (20, transport.LONGEST_BACKOFF)]:
        pauses = {transport.backoff(attempt) for _ in range(50)}
        assert ceiling / 2 <= min(pauses) < max(pauses) <= ceiling


@pytest.mark.parametrize(
    ("status", "advice"), [(401, "token_env"), (404, "name"), (413, "batch_size"), (400, "refused")]
)
def test_a_refusal_is_not_retried_and_says_what_to_do(opened, status, advice):
    server, oracle = opened(lambda n, body: reply({"error": "no\x1b[31m"}, status))
    with pytest.raises(errors.ServerRefused, match=advice) as caught:
        oracle.value(numbered(1))
    assert server.requests == 1
    assert "\x1b" not in str(caught.value)


def test_the_rate_limit_spaces_requests(opened):
    _, oracle = opened(batch_size=1, rate_limit=20)
    start = time.monotonic()
    oracle.value(numbered(8))
    assert time.monotonic() - start >= 7 / 20


def test_concurrency_is_bounded_over_all_threads(opened):
    lock, now, most = threading.Lock(), [0], [0]

    def watch(n, body):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.02)
        with lock:
            now[0] -= 1
        return "behave"

    _, oracle = opened(watch, batch_size=1, concurrency=3)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: oracle.value(numbered(6)), range(4)))
    assert 1 < most[0] <= 3


# -- what the user hands in -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:9/somewhere", "protocol"),
        ("ftp://127.0.0.1/v2/models/m", "http://"),
        ("http:///v2/models/m", "names a host"),
        ("http://user:pass@127.0.0.1/v2/models/m", "token_env"),
        ("http://127.0.0.1/v2/models/m?key=1", "path"),
        ("http://[::1/v2/models/m", "not an address"),
    ],
)
def test_an_address_that_makes_no_sense_is_refused(url, said):
    with pytest.raises(errors.InvalidInput, match=said):
        HttpOracle(url)


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": 0}, {"retries": -1}, {"rate_limit": 0}, {"concurrency": 0}, {"batch_size": 0}, {"access": "all"},
        {"access": "weights"}, {"output_dim": 2}, {"output": "z"}, {"input_name": "z"}, {"dtype": torch.int64},
        {"gradient_output": "z"}, {"access": "gradient"}, {"budget": -1},
    ],
    ids=str,
)  # fmt: skip
def test_options_that_make_no_sense_are_refused(opened, options):
    with pytest.raises(errors.InvalidInput):
        opened(**options)


def test_a_journal_of_another_target_is_refused(opened, tmp_path):
    Journal(tmp_path / "answers.db", target="http://elsewhere/v2/models/m", fingerprint="f").close()
    with pytest.raises(errors.JournalMismatch, match="elsewhere"):
        opened(journal=tmp_path / "answers.db")

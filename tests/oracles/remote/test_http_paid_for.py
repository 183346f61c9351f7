"""Answers that were paid for are kept, rows are counted exactly under concurrency, and the token goes nowhere."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from divulge.core import errors
from divulge.oracles.remote.http import HttpOracle


def reply(content: object, status: int = 200) -> tuple[int, dict[str, str], bytes]:
    return status, {}, json.dumps(content).encode()


def numbered(n: int) -> torch.Tensor:
    return torch.stack([torch.arange(n), torch.ones(n), torch.ones(n)], dim=1).double()


def refuse_row_55(n, body):
    if 55.0 in json.loads(body)["inputs"][0]["data"]:
        return reply({"error": "not that one"}, 400)
    time.sleep(0.02)
    return "behave"


def test_a_failure_half_way_charges_exactly_the_answered_rows_and_hands_them_over(opened):
    server, oracle = opened(refuse_row_55, batch_size=10, concurrency=3)
    with pytest.raises(errors.ServerRefused) as caught:
        oracle.value(numbered(200))
    assert oracle.ledger.value == len(server.rows)
    partial = caught.value.partial
    assert sorted(server.rows) == partial.index.tolist()
    assert torch.equal(partial.values[:, 0], partial.index.double() + 2)
    assert len(server.rows) < 190  # what had not been sent was not sent


def test_with_a_journal_a_failed_question_asks_only_the_rest(opened, tmp_path):
    server, oracle = opened(refuse_row_55, batch_size=10, concurrency=3, journal=tmp_path / "answers.db")
    with pytest.raises(errors.ServerRefused) as caught:
        oracle.value(numbered(200))
    kept = len(server.rows)
    assert oracle.ledger.value == kept == len(caught.value.partial.index)
    server.misbehave = lambda n, body: "behave"
    assert torch.equal(oracle.value(numbered(200))[:, 0], torch.arange(200).double() + 2)
    assert sorted(server.rows) == list(range(200))
    assert oracle.from_journal == kept


def test_a_journal_that_fills_its_disk_hands_over_what_was_paid_for(opened, tmp_path):
    server, oracle = opened(batch_size=50, journal=tmp_path / "answers.db", concurrency=1)
    oracle._client.journal._db.execute("PRAGMA max_page_count=7")
    with pytest.raises(errors.JournalUnusable, match="full") as caught:
        oracle.value(numbered(5000))
    assert oracle.ledger.value == len(server.rows)
    assert len(caught.value.partial.index) > 0


def test_the_budget_is_exact_under_concurrency(opened):
    server, oracle = opened(budget=100, batch_size=2)

    def ask(i):
        try:
            oracle.value(numbered(3))
        except errors.BudgetExhausted:
            return 0
        return 3

    with ThreadPoolExecutor(8) as pool:
        got = sum(pool.map(ask, range(60)))
    assert got == oracle.ledger.value == len(server.rows) == 99


def test_threads_that_ask_the_same_rows_at_once_ask_the_server_once(opened, tmp_path):
    def slow(n, body):
        time.sleep(0.02)
        return "behave"

    server, oracle = opened(slow, batch_size=5, journal=tmp_path / "answers.db")
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda i: oracle.value(numbered(40).roll(i, 0)), range(6)))
    assert sorted(server.rows) == list(range(40))
    assert all(torch.equal(answer.roll(-i, 0), answers[0]) for i, answer in enumerate(answers))
    assert oracle.ledger.value == 240


# -- the token --------------------------------------------------------------------------------------------------------

TOKEN = "s3cr3t-t0k3n"


def test_the_token_reaches_the_server_and_nothing_else(opened, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("MODEL_TOKEN", TOKEN)
    caplog.set_level(0)

    def echo(n, body):
        return reply({"error": f"I do not know Bearer {TOKEN}"}, 403) if n else "behave"

    server, oracle = opened(echo, token_env="MODEL_TOKEN", journal=tmp_path / "answers.db")
    oracle.value(numbered(2))
    with pytest.raises(errors.ServerRefused) as caught:
        oracle.value(numbered(5))
    oracle.close()
    assert all(headers["authorization"] == f"Bearer {TOKEN}" for headers in server.headers)
    assert TOKEN not in str(caught.value)
    assert "[token]" in str(caught.value)
    assert TOKEN not in repr(oracle)
    assert TOKEN not in caplog.text
    assert all(TOKEN.encode() not in path.read_bytes() for path in tmp_path.iterdir())


def test_a_bad_answer_that_echoes_the_token_is_cleaned(opened, monkeypatch):
    monkeypatch.setenv("MODEL_TOKEN", TOKEN)
    _, oracle = opened(
        lambda n, body: reply({"outputs": [{"name": TOKEN, "datatype": "FP64", "shape": [1], "data": [1.0]}]}),
        token_env="MODEL_TOKEN",
    )
    with pytest.raises(errors.BadAnswer) as caught:
        oracle.value(numbered(4))
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("token", ["", "  ", "two words", "new\nline", "schlüssel"])
def test_a_token_that_no_header_can_carry_is_refused_without_being_shown(monkeypatch, token):
    monkeypatch.setenv("MODEL_TOKEN", token)
    with pytest.raises(errors.InvalidInput, match="MODEL_TOKEN") as caught:
        HttpOracle("http://127.0.0.1:9/v2/models/m", token_env="MODEL_TOKEN")
    assert not token.strip() or token not in str(caught.value)

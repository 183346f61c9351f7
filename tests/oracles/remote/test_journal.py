"""The journal keeps every answer, gives back exactly what it was given, and belongs to one target."""

from __future__ import annotations

import sqlite3
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from divulge import serving
from divulge.core import errors
from divulge.models import MLP
from divulge.oracles.remote.http import HttpOracle
from divulge.oracles.remote.journal import Journal, keys_of
from divulge.serving.run import version_of

TARGET = {"target": "http://host/v2/models/m", "fingerprint": "abc"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "answers.db"


def test_a_second_run_asks_nothing_and_reports_the_same_cost(path):
    X = torch.randn(300, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def attack(oracle):
        return [oracle.value(X), oracle.gradient(X[:50])[1], oracle.label(X[50:120]), oracle.value(X[:10])]

    with serving.running(MLP([5, 4, 2]).double(), gradients=True) as url:
        with HttpOracle(url, access="gradient", journal=path, batch_size=64) as first:
            fresh = attack(first)
        with HttpOracle(url, access="gradient", journal=path, batch_size=100) as second:
            again = attack(second)
    assert all(torch.equal(a, b) for a, b in zip(fresh, again, strict=True))
    cost, resumed = first.ledger.snapshot(), second.ledger.snapshot()
    assert (cost.value, cost.gradient, cost.label) == (resumed.value, resumed.gradient, resumed.label) == (310, 50, 70)
    assert (cost.requests, first.from_journal) == (6, 80)  # labels were decided from recorded values
    assert (resumed.requests, second.from_journal) == (0, 430)


def test_a_row_that_stands_twice_in_a_question_is_asked_once(path):
    X = torch.zeros(8, 5, dtype=torch.float64)
    X[3:] += 1
    model = MLP([5, 4, 1]).double()
    with serving.running(model) as url, HttpOracle(url, journal=path, batch_size=1) as oracle:
        torch.testing.assert_close(oracle.value(X), model(X).detach())
        assert (oracle.ledger.value, oracle.ledger.requests, oracle.from_journal) == (8, 2, 6)


def test_a_retrained_model_at_the_same_address_is_another_target(path):
    for seed, url in enumerate(["http://host/v2/models/m", "http://other/v2/models/m"]):
        journal = Journal(path.with_suffix(f".{seed}"), target=url, fingerprint="abc")
        journal.write([b"k" * 16], np.ones((1, 2)))
        journal.close()
    with pytest.raises(errors.JournalMismatch, match="other inputs, outputs or version"):
        Journal(path.with_suffix(".0"), target=TARGET["target"], fingerprint="xyz")
    with pytest.raises(errors.JournalMismatch, match="http://other"):
        Journal(path.with_suffix(".1"), **TARGET)
    assert version_of(MLP([2, 2])) != version_of(MLP([2, 2]))


def test_a_file_that_is_no_journal_is_refused_and_left_alone(path):
    path.write_text("dear diary" * 200)
    with pytest.raises(errors.JournalUnusable, match="not a database"):
        Journal(path, **TARGET)
    assert path.read_text() == "dear diary" * 200


def test_the_database_of_another_program_is_refused_and_left_alone(path):
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE mine (x)")
    before = path.read_bytes()
    with pytest.raises(errors.JournalMismatch, match="another program"):
        Journal(path, **TARGET)
    assert path.read_bytes() == before


def test_a_journal_of_another_format_is_refused(path):
    Journal(path, **TARGET).close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE about SET is_ = '99' WHERE name = 'format'")
    with pytest.raises(errors.JournalMismatch, match="format 99"):
        Journal(path, **TARGET)


def test_a_folder_that_is_not_there_is_said(tmp_path):
    with pytest.raises(errors.JournalUnusable, match="folder that exists"):
        Journal(tmp_path / "nowhere" / "answers.db", **TARGET)


def test_a_damaged_journal_is_said_not_returned(path):
    model = MLP([5, 4, 1]).double()
    X = torch.arange(20).reshape(4, 5).double()
    with serving.running(model) as url:
        with HttpOracle(url, journal=path) as oracle:
            oracle.value(X)
        with sqlite3.connect(path) as db:
            db.execute("UPDATE responses SET answers = zeroblob(64)")  # twice as wide as it was
        with HttpOracle(url, journal=path) as oracle, pytest.raises(errors.JournalMismatch, match="damaged"):
            oracle.value(X)
        with sqlite3.connect(path) as db:
            db.execute("UPDATE responses SET answers = zeroblob(30)")
        with HttpOracle(url, journal=path) as oracle, pytest.raises(errors.JournalMismatch, match="damaged"):
            oracle.value(X)
        with sqlite3.connect(path) as db:
            db.execute("DROP TABLE responses")
            db.execute("CREATE TABLE responses (id INTEGER PRIMARY KEY)")
        with HttpOracle(url, journal=path) as oracle, pytest.raises(errors.JournalUnusable, match="cannot be read"):
            oracle.value(X)


def test_one_process_sees_what_another_appends(path):
    ours, theirs = Journal(path, **TARGET), Journal(path, **TARGET)
    keys = keys_of("value", np.arange(6.0).reshape(3, 2))
    assert ours.find(keys) == {}
    theirs.write(keys[:2], np.array([[1.0], [2.0]]))
    assert ours.find(keys) == {keys[0]: np.float64(1).tobytes(), keys[1]: np.float64(2).tobytes()}
    ours.write(keys[1:], np.array([[7.0], [3.0]]))  # asked by both: the first answer stands
    assert theirs.find(keys)[keys[1]] == np.float64(2).tobytes()
    assert len(ours) == len(theirs) == 3
    ours.close()
    theirs.close()


def test_many_threads_write_and_read_at_once(path):
    journal = Journal(path, **TARGET)
    problems = []

    def work(worker):
        rows = np.random.default_rng(worker).standard_normal((40, 3))
        for start in range(0, 40, 4):
            keys = keys_of("value", rows[start : start + 4])
            journal.write(keys, rows[start : start + 4])
            found = journal.find(keys)
            problems.extend(
                k for k, row in zip(keys, rows[start : start + 4], strict=True) if found[k] != row.tobytes()
            )

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert len(journal) == 240
    journal.close()


def test_what_is_written_is_on_disk_before_write_returns(path):
    journal = Journal(path, **TARGET)
    (key,) = keys_of("value", np.ones((1, 2)))
    journal.write([key], np.ones((1, 1)))
    with sqlite3.connect(path) as other:  # another connection, while ours is still open
        assert other.execute("SELECT count(*) FROM responses").fetchone() == (1,)
    assert journal._db.execute("PRAGMA synchronous").fetchone() == (2,)
    journal.close()


def test_keys_tell_kinds_formats_and_the_sign_of_zero_apart():
    row = np.zeros((1, 4))
    keys = [keys_of("value", row), keys_of("gradient", row), keys_of("value", -row), keys_of("value", row.astype("f4"))]
    assert len({key for (key,) in keys}) == 4
    assert keys_of("value", row) == keys_of("value", np.asfortranarray(row))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.floats(), min_size=2, max_size=2), min_size=1, max_size=30))
def test_rows_share_a_key_exactly_when_their_bytes_are_equal(rows):
    array = np.array(rows)
    keys = keys_of("value", array)
    assert len(set(keys)) == len({row.tobytes() for row in array})


@pytest.mark.parametrize("place", [0.02, 0.3, 0.6, 0.9])
def test_a_flipped_bit_in_an_answer_is_never_an_answer(path, place):
    """SQLite has no checksums of its own: a changed number would be read as the model's."""
    keys = keys_of("value", np.arange(64.0).reshape(32, 2))
    answers = np.arange(32.0)[:, None]
    journal = Journal(path, **TARGET)
    journal.write(keys, answers)
    journal.close()
    with sqlite3.connect(path) as db:
        blob = bytearray(db.execute("SELECT answers FROM responses").fetchone()[0])
        blob[int(place * len(blob))] ^= 1
        db.execute("UPDATE responses SET answers = ?", (bytes(blob),))
    journal = Journal(path, **TARGET)
    with pytest.raises(errors.JournalMismatch, match="damaged"):
        journal.find(keys)
    journal.close()

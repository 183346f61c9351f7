"""SIGKILL in the middle of a journalled run loses no answer: what was recorded is never asked again.

Real processes: ``divulge serve`` with a model that writes down every row it is asked, and a client that is killed at
several moments and started again with the same journal.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager

import numpy as np
import pytest

from divulge.oracles.remote.journal import KEY, keys_of

ROWS, WIDTH, BATCH, CONCURRENCY = 3000, 8, 10, 3
KILL_AFTER = (400, 1100, 2000)  # rows asked in total when the client is killed

MODEL = """
import time
import torch

class Counting(torch.nn.Module):
    input_shape = (8,)

    def forward(self, X):
        with open({log!r}, "a") as log:
            log.write("".join(f"{{int(number)}}\\n" for number in X[:, 0]))
        time.sleep(0.002)
        return X.sum(dim=1, keepdim=True).double()

def model():
    return Counting().double()
"""

# reads an address and forks a client for it, so that the imports are paid once
CLIENT = """
import json, os, sys
import numpy as np
import torch
from divulge.oracles.remote.http import HttpOracle

def run(url, journal, out):
    torch.set_num_threads(1)
    rows = np.load(sys.argv[1])
    with HttpOracle(url, journal=journal, batch_size={batch}, concurrency={concurrency}) as oracle:
        values = torch.cat([oracle.value(part) for part in np.array_split(rows, 5)])
        with open(out, "w") as file:
            json.dump({{"values": values[:, 0].tolist(), "ledger": oracle.ledger.snapshot().as_dict(),
                        "from_journal": oracle.from_journal}}, file)

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        run(*json.loads(line))
        os._exit(0)
    print(child, flush=True)
    os.waitpid(child, 0)
    print("gone", flush=True)
"""


@contextmanager
def process(*command):
    started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


def asked(log) -> Counter:
    return Counter(map(int, log.read_text().split())) if log.exists() else Counter()


def recorded(journal, rows) -> set[int]:
    number_of = {key: number for number, key in enumerate(keys_of("value", rows), start=1)}
    with sqlite3.connect(journal) as db:
        blobs = [keys for (keys,) in db.execute("SELECT keys FROM responses")]
    return {number_of[keys[i : i + KEY]] for keys in blobs for i in range(0, len(keys), KEY)}


@pytest.mark.slow
def test_every_recorded_row_is_asked_exactly_once_over_all_runs(tmp_path):
    log, journal, out = tmp_path / "asked.txt", tmp_path / "answers.db", tmp_path / "out.json"
    (tmp_path / "counting.py").write_text(MODEL.format(log=str(log)))
    rows = np.random.default_rng(0).standard_normal((ROWS, WIDTH))
    rows[:, 0] = np.arange(1, ROWS + 1)
    np.save(tmp_path / "rows.npy", rows)
    serve = "from divulge.cli import main; main()"
    client = CLIENT.format(batch=BATCH, concurrency=CONCURRENCY)
    with (
        process(
            sys.executable, "-c", serve, "serve", f"{tmp_path / 'counting.py'}:model", "--port", "0", "--json"
        ) as server,
        process(sys.executable, "-c", client, str(tmp_path / "rows.npy")) as clients,
    ):
        url = json.loads(server.stdout.readline())["url"]
        log.unlink(missing_ok=True)  # what the server asked its own model when it opened it

        def start() -> int:
            clients.stdin.write(json.dumps([url, str(journal), str(out)]) + "\n")
            clients.stdin.flush()
            return int(clients.stdout.readline())

        safe: dict[int, int] = {}  # rows that were on disk at a kill -> how often they had been asked by then
        for kills, limit in enumerate(KILL_AFTER, start=1):
            child = start()
            deadline = time.monotonic() + 60
            while asked(log).total() < limit:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            os.kill(child, signal.SIGKILL)
            assert clients.stdout.readline() == "gone\n"
            time.sleep(0.2)  # what was under way at the server ends
            assert not out.exists()
            counts = asked(log)
            on_disk = recorded(journal, rows)
            assert counts.total() - len(on_disk) <= kills * CONCURRENCY * BATCH  # no more than was under way
            assert all(counts[number] == times for number, times in safe.items())
            safe |= {number: counts[number] for number in on_disk}
        start()
        assert clients.stdout.readline() == "gone\n"

    counts, result = asked(log), json.loads(out.read_text())
    np.testing.assert_allclose(result["values"], rows.sum(axis=1), rtol=1e-12)
    assert sorted(counts) == list(range(1, ROWS + 1))
    assert all(counts[number] == times for number, times in safe.items())  # recorded: never asked again
    again = [number for number, times in counts.items() if times > 1]
    assert len(again) <= len(KILL_AFTER) * CONCURRENCY * BATCH  # only what was under way at a kill
    assert counts.total() - ROWS == sum(counts[number] - 1 for number in again)
    # the resumed run took from the journal all that was there, asked the rest, and reports what the whole cost
    assert result["from_journal"] == len(safe)
    assert (result["ledger"]["value"], result["ledger"]["total"]) == (ROWS, ROWS)

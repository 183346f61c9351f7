"""Clients killed at random moments: no answer that a client had is asked again, and the end is that of a whole run.

A child process asks a server for batches through a journal, writes the number of each batch that it has seen to a pipe,
and is killed after a random time. The next child goes on with the same journal. The server counts every row.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import torch

from divulge.models import MLP
from divulge.oracles.remote.http import HttpOracle
from experiments.reliability.processes import served

BATCH, BATCHES, CONCURRENCY = 8, 400, 2


def run(kills: int = 1000, seed: int = 0, longest: float = 0.3) -> dict[str, Any]:
    """So many kills, over as many whole runs as that takes."""
    draw = random.Random(seed)
    torch.set_num_threads(1)
    done = {"kills": 0, "runs": 0, "lost": 0, "asked_again": 0, "most_asked_again_for_a_kill": 0.0, "wrong_ends": 0}
    with served(MLP([6, 4, 1]).double()) as (url, _), tempfile.TemporaryDirectory() as temporary:
        while done["kills"] < kills:
            journal = Path(temporary) / f"{done['runs']}.db"
            X = torch.randn(
                BATCH * BATCHES, 6, generator=torch.Generator().manual_seed(done["runs"]), dtype=torch.float64
            )
            before, killed = _asked(url), _one_run(url, journal, X, draw, kills - done["kills"], longest, done)
            again = _asked(url) - before - len(X)
            done["asked_again"] += again
            done["kills"] += killed
            done["runs"] += 1
            if killed:
                most = max(done["most_asked_again_for_a_kill"], again / killed)
                done["most_asked_again_for_a_kill"] = most
    return {**done, "rows_under_way_at_most": BATCH * CONCURRENCY}


def _asked(url: str) -> int:
    return int(httpx.get(f"{url}/stats", trust_env=False, timeout=60).json()["total"])


def _one_run(
    url: str, journal: Path, X: torch.Tensor, draw: random.Random, kills: int, longest: float, done: dict[str, Any]
) -> int:
    """Children until one ends by itself; how many were killed."""
    seen: set[int] = set()
    killed = 0
    while True:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            _child(url, journal, X, writer)
        os.close(writer)
        if killed < kills:
            time.sleep(draw.uniform(0, longest))
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        said = b""
        while part := os.read(reader, 65536):
            said += part
        os.close(reader)
        _, status = os.waitpid(child, 0)
        now = {int(word) for word in said.split(b"\n")[:-1]}
        # a batch that an earlier child had seen comes from the journal: it is said again without a request
        done["lost"] += sum(-number in now for number in seen)
        seen |= {number for number in now if number > 0}
        if os.WIFEXITED(status):
            done["wrong_ends"] += os.WEXITSTATUS(status) != 0 or len(seen) != BATCHES
            return killed
        killed += 1


def _child(url: str, journal: Path, X: torch.Tensor, writer: int) -> None:
    """Ask every batch; say its number when its answer is there, and minus its number if it was not in the journal."""
    code = 1
    try:
        with HttpOracle(url, journal=journal, batch_size=BATCH // 2, concurrency=CONCURRENCY, timeout=60) as oracle:
            for number, rows in enumerate(X.split(BATCH), start=1):
                before = oracle.from_journal
                oracle.value(rows)
                if oracle.from_journal - before < BATCH:
                    os.write(writer, b"%d\n" % -number)
                os.write(writer, b"%d\n" % number)
        code = 0
    finally:
        os._exit(code)

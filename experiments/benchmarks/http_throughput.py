"""100,000 rows over real HTTP against ``divulge serve`` in a process of its own: rows a second, and where time goes.

The load is shaped like an extraction: a 64-32-1 float64 network asked for values in batches, one question after the
other, as a search along lines does. "Outside the network" is the share of wall-clock time in which no request was out:
what divulge itself adds. JSON is measured beside the binary extension, since not every server offers it.

    python -m experiments http_throughput
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import torch

from divulge.models import MLP, save
from divulge.oracles.remote.http import HttpOracle
from divulge.oracles.remote.protocols import open_inference
from experiments.plan import Plan

ROWS = 100_000
JSON_ROWS = 20_000
LOADS = [  # name, rows a question, gradients, journal, binary
    ("values, one question of 100,000 rows", ROWS, False, False, True),
    ("values, questions of 1,000 rows", 1_000, False, False, True),
    ("values, questions of 256 rows", 256, False, False, True),
    ("values, questions of 1,000 rows, journal", 1_000, False, True, True),
    ("values again, all from the journal", 1_000, False, True, True),
    ("gradients, questions of 1,000 rows", 1_000, True, False, True),
    ("values, questions of 1,000 rows, JSON", 1_000, False, False, False),
]


@contextmanager
def served(folder: Path) -> Iterator[str]:
    program = "from divulge.cli import main; main()"
    command = [sys.executable, "-c", program, "serve", str(folder), "--port", "0", "--gradients", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()


def measure(oracle: HttpOracle, rows: torch.Tensor, question: int, gradients: bool) -> dict[str, float]:
    ask = oracle.gradient if gradients else oracle.value
    before, waiting, start = oracle.ledger.requests, oracle.network_seconds, time.perf_counter()
    for batch in rows.split(question):
        ask(batch)
    seconds = time.perf_counter() - start
    return {
        "rows": len(rows),
        "seconds": seconds,
        "rows_per_second": len(rows) / seconds,
        "requests": oracle.ledger.requests - before,
        "share_outside_network": 1 - (oracle.network_seconds - waiting) / seconds,
    }


def bare(oracle: HttpOracle, rows: torch.Tensor, question: int) -> dict[str, float]:
    """The floor: httpx alone posts the same bytes and throws the answers away."""
    bodies = [open_inference._request(batch.numpy(), oracle._signature, ["value"]) for batch in rows.split(question)]
    with httpx.Client(trust_env=False) as client:
        start = time.perf_counter()
        for body, headers in bodies:
            client.post(f"{oracle.url}/infer", content=body, headers=headers).raise_for_status()
        seconds = time.perf_counter() - start
    return {
        "rows": len(rows),
        "seconds": seconds,
        "rows_per_second": len(rows) / seconds,
        "requests": len(bodies),
        "share_outside_network": 0.0,
    }


def run(plan: Plan) -> dict[str, Any]:
    """Every load against one server, then httpx alone."""
    torch.set_num_threads(1)
    rows = torch.randn(ROWS, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with tempfile.TemporaryDirectory() as temporary:
        folder = save(MLP([64, 32, 1]).double(), Path(temporary) / "model")
        with served(folder) as url:

            def loaded(question: int, gradients: bool, journal: bool, binary: bool) -> dict[str, float]:
                record = Path(temporary) / "answers.db" if journal else None
                with HttpOracle(url, access="gradient", journal=record) as oracle:
                    if not binary:
                        oracle._signature = replace(oracle._signature, binary=False)
                    return measure(oracle, rows if binary else rows[:JSON_ROWS], question, gradients)

            def alone() -> dict[str, float]:
                with HttpOracle(url) as oracle:
                    return bare(oracle, rows, 1_000)

            parts: dict[str, Callable[[], Any]] = {name: partial(loaded, *load) for name, *load in LOADS}
            return plan.measure("http_throughput", {**parts, "httpx alone, the same bodies of 1,000 rows": alone})

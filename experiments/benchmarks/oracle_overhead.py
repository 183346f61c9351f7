"""What the counter costs: 1,000,000 rows in batches through an oracle, against calling the module directly.

The two take turns batch by batch on one thread, each on rows that the other has not just brought into the cache, and
what is summed is the processor's time, so that whatever else the machine does falls on both alike or on neither. The
figure is the median over the rounds of the ratio of the two sums.
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import Any

import torch

import divulge
from divulge.models import MLP
from experiments.plan import Plan

ROWS = 1_000_000
ROUNDS = 11
BATCHES = (1024, 4096, 8192, 16384, 65536)


def measure(batch_size: int, *, rows: int = ROWS, rounds: int = ROUNDS) -> dict[str, float]:
    """Seconds for all rows either way, and the oracle's extra share, for one batch size."""
    module = MLP([64, 32, 1]).eval()
    oracle = divulge.oracle(module, budget=rows * (rounds + 1))
    batches = torch.randn(rows, 64, generator=torch.Generator().manual_seed(0)).split(batch_size)
    others = batches[len(batches) // 2 :] + batches[: len(batches) // 2]
    pairs = []
    with torch.no_grad():
        for _ in range(rounds + 1):
            direct = asked = 0.0
            for one, other in zip(batches, others, strict=True):
                start = time.thread_time()
                module(one)
                between = time.thread_time()
                oracle.value(other)
                asked += time.thread_time() - between
                direct += between - start
            pairs.append((direct, asked))
    assert oracle.ledger.value == rows * (rounds + 1)
    pairs = pairs[1:]  # the first round warms up
    return {
        "batch": batch_size,
        "direct_seconds": statistics.median(direct for direct, _ in pairs),
        "oracle_seconds": statistics.median(asked for _, asked in pairs),
        "extra_percent": 100 * (statistics.median(asked / direct for direct, asked in pairs) - 1),
    }


def run(plan: Plan) -> dict[str, Any]:
    """One row a batch size."""
    torch.set_num_threads(1)
    return plan.measure("oracle_overhead", {f"batches of {size}": partial(measure, size) for size in BATCHES})

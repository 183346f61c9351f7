"""What the counter costs: 1,000,000 rows in batches through an oracle, against calling the module directly.

Both sides answer the same batches in turn, so that what else the machine does falls on both alike; the figure is the
median over the rounds of the ratio of their times.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import divulge
from divulge.models import MLP

ROWS = 1_000_000
ROUNDS = 15


def _seconds(ask: Callable[[Tensor], object], batches: tuple[Tensor, ...]) -> float:
    start = time.perf_counter()
    for batch in batches:
        ask(batch)
    return time.perf_counter() - start


def measure(batch_size: int, *, rows: int = ROWS, rounds: int = ROUNDS) -> dict[str, float]:
    """Seconds for all rows either way, and the oracle's extra share, for one batch size."""
    generator = torch.Generator().manual_seed(0)
    module = MLP([64, 32, 1]).eval()
    oracle = divulge.oracle(module, budget=rows * (rounds + 1))
    batches = torch.randn(rows, 64, generator=generator).split(batch_size)
    with torch.no_grad():
        _seconds(module, batches)
        _seconds(oracle.value, batches)
        pairs = [(_seconds(module, batches), _seconds(oracle.value, batches)) for _ in range(rounds)]
    assert oracle.ledger.value == rows * (rounds + 1)
    return {
        "batch": batch_size,
        "direct_seconds": statistics.median(direct for direct, _ in pairs),
        "oracle_seconds": statistics.median(asked for _, asked in pairs),
        "extra_percent": 100 * (statistics.median(asked / direct for direct, asked in pairs) - 1),
    }


def main() -> None:
    torch.set_num_threads(1)
    results = [measure(batch_size) for batch_size in (1024, 4096, 8192, 16384)]
    print(f"{ROWS:,} rows through a 64-32-1 network, median of {ROUNDS} rounds, one thread")
    print("batch    direct s   oracle s   extra")
    for row in results:
        print(
            f"{row['batch']:>5}   {row['direct_seconds']:>9.3f}  {row['oracle_seconds']:>9.3f}  "
            f"{row['extra_percent']:>+6.1f} %"
        )
    out = Path("results")
    out.mkdir(exist_ok=True)
    (out / "oracle_overhead.json").write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()

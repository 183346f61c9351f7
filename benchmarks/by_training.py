"""Learning a copy: single rows of ``divulge reproduce milli``, and what a matching step costs.

    python -m benchmarks.by_training '2-layer, gradients' --queries 30,100 --seeds 0,1,2
    python -m benchmarks.by_training --rows              # what rows there are
    python -m benchmarks.by_training                     # a matching step against a plain training step

Each copy is printed and added to results/milli/points.jsonl, where ``divulge reproduce milli`` finds it again.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import divulge
from divulge import models
from divulge.extraction.answers import understand
from divulge.extraction.matching_loss import normalised
from divulge.extraction.students import logits_of
from divulge.reproduce import milli

OUT = Path("results/milli")
SMALL, LARGE = (1, 28, 28), (3, 32, 32)
COSTS: tuple[tuple[str, dict[str, Any], tuple[int, ...], int | None, int], ...] = (
    ("two-conv", {}, SMALL, 1, 20),
    ("one-hidden", {}, SMALL, 1, 20),
    ("one-hidden", {}, SMALL, None, 20),
    ("two-conv", {}, LARGE, 1, 20),
    ("vgg11", {"width": 1 / 16}, LARGE, 1, 20),
    ("resnet18", {"width": 1 / 16}, LARGE, 1, 20),
    ("vgg11", {}, LARGE, 1, 4),
    ("resnet18", {}, LARGE, 1, 4),
)
"""Network, its options, its pictures, combinations of the outputs matched a step (None: every one), rows a step."""
SECONDS = 2.0
"""How long each is measured for, at least three times."""


def step_cost(
    name: str, options: dict[str, Any], shape: tuple[int, ...], combinations: int | None, rows: int
) -> tuple[float, float]:
    """Processor seconds of one matching step and of one plain training step, both with the update of the weights; the
    median of several that take turns."""
    model, *students = (models.build(name, shape=shape, outputs=10, seed=seed, **options).eval() for seed in (0, 1, 2))
    X = torch.rand(rows, math.prod(shape), generator=torch.Generator().manual_seed(0))
    values, gradients = divulge.oracle(model, access="gradient").gradient(X)
    answers = understand(X, values, gradients, outputs="logits")
    loss = normalised(answers, gradients=1.0, values=0.1, combinations=combinations, sharpness=3.0)
    batch, generator, wanted = answers.to(torch.float32, "cpu"), torch.Generator().manual_seed(0), values.argmax(dim=1)
    first, second = map(logits_of, students)
    updates = [torch.optim.Adam(student.parameters(), lr=1e-3) for student in students]

    def timed(of: Callable[[], Tensor], update: torch.optim.Optimizer) -> float:
        began = time.process_time()
        update.zero_grad(set_to_none=True)
        of().backward()  # type: ignore[no-untyped-call]
        update.step()
        return time.process_time() - began

    times: list[tuple[float, float]] = []
    while len(times) < 3 or sum(map(sum, times)) < SECONDS:
        matching = timed(lambda: loss(first, batch, generator), updates[0])
        times.append((matching, timed(lambda: functional.cross_entropy(second(X), wanted), updates[1])))
    return statistics.median(matching for matching, _ in times), statistics.median(plain for _, plain in times)


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("row", nargs="?", choices=list(milli.ROWS), metavar="ROW")
    parser.add_argument("--queries", help="those of the row by default")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--rows", action="store_true", help="print the rows' names")
    chosen = parser.parse_args(arguments)
    if chosen.rows:
        print("\n".join(milli.ROWS))
        return
    if chosen.row is None:
        for name, options, shape, combinations, rows in COSTS:
            matching, plain = step_cost(name, options, shape, combinations, rows)
            which = "every output" if combinations is None else "one combination of the outputs"
            times = f"matching {1e3 * matching:.1f} ms, plain {1e3 * plain:.1f} ms, {matching / plain:.1f} times"
            print(f"{name} {options or ''} on {rows} x {shape}, {which}: {times}", flush=True)
        return
    row = milli.ROWS[chosen.row]
    for q in [int(q) for q in chosen.queries.split(",")] if chosen.queries else row.queries:
        for seed in map(int, chosen.seeds.split(",")):
            point = milli.measure(row, q, seed)
            milli.add(OUT, point)
            print(json.dumps(point), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

"""Learning a copy: single rows of ``divulge reproduce milli``, and what a matching step costs.

    python -m experiments by_training --only '2-layer, gradients, 30 queries' --seeds 3
    python -m experiments by_training                     # a matching step against a plain training step

Each copy is printed and added to results/milli/points.jsonl, where ``divulge reproduce milli`` finds it again.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import divulge
from divulge import models
from divulge.extraction.students.answers import logit_answers
from divulge.extraction.students.matching_loss import normalised
from divulge.extraction.students.student import logits_of
from experiments.papers import milli
from experiments.plan import Plan

OUT = Path("results/milli")
SMALL, LARGE = (1, 28, 28), (3, 32, 32)
COSTS: tuple[tuple[str, dict[str, Any], tuple[int, ...], int | None, int], ...] = (
    ("two-conv", {}, SMALL, 1, 20),
    ("one-hidden", {}, SMALL, 1, 20),
    ("one-hidden", {}, SMALL, None, 20),
    ("two-conv", {}, LARGE, 1, 20),
    ("vgg11", {"width": 1 / 16}, LARGE, 1, 20),
    ("resnet18", {"width": 1 / 16}, LARGE, 1, 20),
    ("vgg11", {"width": 1 / 4}, LARGE, 1, 20),
    ("resnet18", {"width": 1 / 4}, LARGE, 1, 20),
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
    answers = logit_answers(X, values, gradients, outputs="logits")
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


def run(plan: Plan) -> dict[str, Any]:
    """What a matching step costs, and every row of Milli et al. 2019 that was asked for by name.

    Without ``--only`` the steps alone are timed: the rows take hours.
    """
    parts: dict[str, Callable[[], Any]] = {
        f"step of {name} {options or ''} on {rows} x {shape}, {combinations or 'every'} outputs": partial(
            _step, name, options, shape, combinations, rows
        )
        for name, options, shape, combinations, rows in COSTS
    }
    if plan.only:
        parts |= {
            f"{row.name}, {queries} queries, seed {seed}": partial(_point, row, queries, seed)
            for row in milli.ROWS.values()
            for queries in row.queries
            for seed in plan.seeds_of(1)
        }
    return plan.measure("by_training", parts)


def _step(name: str, options: dict[str, Any], shape: tuple[int, ...], combinations: int | None, rows: int) -> Any:
    matching, plain = step_cost(name, options, shape, combinations, rows)
    return {"matching_ms": 1e3 * matching, "plain_ms": 1e3 * plain, "times": matching / plain}


def _point(row: milli.Row, queries: int, seed: int) -> dict[str, Any]:
    point = milli.measure(row, queries, seed)
    milli.add(OUT, point)
    return point

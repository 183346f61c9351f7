"""Is `exact` ever wrong? 1,175 extractions from gradients and 200 from values: ordinary, degenerate, trained and hiding
narrow bumps. Functions of other kinds: ``python -m experiments reliability --only functions``.

A bump is a tent that is zero outside a slab: three parallel neurons that cancel. *Tall* ones have height one, so their
weights grow as the slab narrows; *low* ones have weights like the other neurons, and a height of an eighth of the
slab's width. A copy of a network is wrong if it is off by more than 1e-9 standard deviations (1e-6 from values, which
know steep slopes less well) on 2,000 Gaussian points or on 200 points inside the slab. ``python -m experiments
extraction_honesty`` takes a few minutes on one core.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import divulge
from divulge.extraction import Extraction, from_gradients, from_values
from divulge.models import ReluNetwork
from experiments.benchmarks.extraction_gradients import SUCCESS, error, network, normal, trained, with_bump
from experiments.plan import Plan

SHAPES = ((20, 16, 1), (64, 64, 1), (30, 60, 1), (100, 32, 3))  # inputs, hidden units, outputs
FIRST = 400_000
"""Networks and searches are seeded from here on: no setting was chosen on them."""
TALL = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
LOW = (1.0, 0.3, 0.1, 0.03, 0.01)
EACH = 50
Case = tuple[nn.Module, Tensor | None]
Attack = Callable[[nn.Module, int], Extraction]


def plain(seed: int) -> Case:
    inputs, width, outputs = SHAPES[seed % len(SHAPES)]
    return network(inputs, width, seed, outputs=outputs), None


def degenerate(seed: int) -> Case:
    """A 20-16 network with four more neurons: duplicates, antipodes, nearly the same, tiny, dead or far out."""
    g = torch.Generator().manual_seed(seed)
    base = network(20, 16, seed)
    A, b, W = base.A[:4], base.b[:4], normal(g, 1, 4)
    more = (
        (A, b, W),
        (-2 * A, -2 * b, W),
        (A + 1e-6 * normal(g, 4, 20), b, W),
        (normal(g, 4, 20), normal(g, 4), 1e-6 * W),
        (normal(g, 4, 20), torch.full((4,), -1e9, dtype=torch.float64), W),
        (normal(g, 4, 20), 30 * normal(g, 4), W),
    )[seed % 6]
    return ReluNetwork(*(torch.cat(pair, dim=-1 if pair[0].shape[0] == 1 else 0) for pair in zip(
        (base.A, base.b, base.W), more, strict=True))), None  # fmt: skip


def digits(seed: int) -> Case:
    return trained([32, 64, 128][seed % 3], seed), None


def tall(width: float) -> Callable[[int], Case]:
    return lambda seed: with_bump(network(20, 16, seed), width, seed)


def low(width: float) -> Callable[[int], Case]:
    return lambda seed: with_bump(network(20, 16, seed), width, seed, height=width / 8)


def with_five_outputs(width: float) -> Callable[[int], Case]:
    return lambda seed: with_bump(network(64, 32, seed, outputs=5), width, seed)


def by_gradients(model: nn.Module, seed: int) -> Extraction:
    return from_gradients(divulge.oracle(model, access="gradient"), seed=seed)


def by_values(model: nn.Module, seed: int) -> Extraction:
    return from_values(divulge.oracle(model), seed=seed)


def cases() -> Iterator[tuple[str, float | None, int, Callable[[int], Case]]]:
    yield "ordinary", None, 250, plain
    yield "degenerate", None, 120, degenerate
    yield "trained on digits", None, 30, digits
    for width in TALL:
        yield "tall bump", width, EACH, tall(width)
    for width in LOW:
        yield "low bump", width, EACH, low(width)
    for width in TALL:
        yield "bump, 64-32-5", width, EACH // 2, with_five_outputs(width)


def fewer_cases() -> Iterator[tuple[str, float | None, int, Callable[[int], Case]]]:
    yield "ordinary", None, 50, plain
    yield "degenerate", None, 30, degenerate
    for width in TALL[1:]:
        yield "tall bump", width, 20, tall(width)


def judge(
    attack: Attack, allowed: float, name: str, width: float | None, runs: int, make: Callable[[int], Case]
) -> dict[str, Any]:
    right = wrong = wider = 0
    gaps, values = [], []
    for seed in range(FIRST, FIRST + runs):
        model, aimed = make(seed)
        stolen = attack(model, seed)
        off = error(model, stolen, aimed) > allowed
        gaps.append(stolen.smallest_gap or 0.0)
        values.append(stolen.ledger.value)
        right += stolen.exact and not off
        wrong += stolen.exact and off
        wider += stolen.exact and off and (width is None or width >= gaps[-1])
    return {
        "attack": attack.__name__, "network": name, "width": width, "runs": runs, "exact_and_right": right,
        "exact_and_wrong": wrong,
        "wrong_and_wider_than_stated": wider, "not_exact": runs - right - wrong,
        "stated_gap": statistics.median(gaps), "values": statistics.median(values),
    }  # fmt: skip


def run(plan: Plan) -> dict[str, Any]:
    """Every kind of network through both attacks."""
    torch.set_num_threads(1)
    networks = {
        f"{attack.__name__}, {name}{'' if width is None else f' {width:g}'}": partial(
            judge, attack, allowed, name, width, plan.seeds or runs, make
        )
        for attack, allowed, chosen in ((by_gradients, SUCCESS, cases()), (by_values, 1e-6, fewer_cases()))
        for name, width, runs, make in chosen
    }  # fmt: skip
    return plan.measure("extraction_honesty", networks)

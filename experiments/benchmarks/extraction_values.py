"""Extraction from values: rows asked over the number of parameters, error and time, beside the printed cost.

The printed Algorithm 1-MQ takes a gradient by d + 1 values at each step of some 40 bisections a neuron. It is measured
on networks without biases, as it foresees none, from two neurons up to where its step leaves no digits. Beside random
float64 networks: float32 and rounded answers, a first layer of low rank, several outputs, networks trained on digits
until their neurons condense to few directions, and a linear model, which one gradient gives away.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits

import divulge
from divulge.extraction import Extraction, from_values, match_neurons
from divulge.extraction.printed.milli_values import step_of
from divulge.models import ReluNetwork
from divulge.oracles import Oracle
from divulge.oracles.guards import Rounded
from experiments.plan import Plan

FRESH = 1000
FIRST = 9_000
"""Networks and searches are seeded from here on: no setting was chosen on them."""
SUCCESS = 1e-9
PRINTED = ((8, 2), (8, 4), (16, 4), (20, 8), (32, 8), (64, 16))
"""Inputs and neurons of the networks that the printed algorithm is tried on, ``NETWORKS`` of each."""
NETWORKS = 20
Make = Callable[[int], tuple[ReluNetwork, Oracle]]


def network(inputs: int, width: int, seed: int, *, outputs: int = 1, rank: int | None = None) -> ReluNetwork:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    A = normal(width, inputs) / inputs**0.5
    if rank is not None:
        A = normal(width, rank) @ normal(rank, inputs) / (rank * inputs) ** 0.5
    return ReluNetwork(A, 0.5 * normal(width), normal(outputs, width) / width**0.5)


def trained(width: int, seed: int, *, start: float = 0.002, samples: int = 50) -> ReluNetwork:
    """Odd against even digits by gradient descent from small weights to a wide margin."""
    X, y = load_digits(return_X_y=True)
    chosen = np.random.default_rng(seed).permutation(len(X))[:samples]
    rows = torch.tensor(X[chosen] / 16.0)
    rows = torch.cat([rows - rows.mean(dim=0), torch.ones(samples, 1, dtype=torch.float64)], dim=1)
    sign = torch.tensor(2.0 * (y[chosen] % 2) - 1)
    g = torch.Generator().manual_seed(seed)
    W = torch.randn(width, rows.shape[1], generator=g, dtype=torch.float64) * start / 8
    v = torch.randn(width, generator=g, dtype=torch.float64).sign() * W.norm(dim=1)
    for _ in range(3000):
        z = rows @ W.T
        margin = sign * (z.relu() @ v)
        if margin.min() > 12:
            break
        pull = torch.softmax(-margin, dim=0) * sign
        on = (z > 0).to(torch.float64)
        W, v = W + 0.05 * (on * v * pull[:, None]).T @ rows, v + 0.05 * z.relu().T @ pull
    return ReluNetwork(W[:, :-1], W[:, -1], v[None])


def random(inputs: int, width: int, *, single: bool = False, digits: int | None = None, **options: Any) -> Make:
    """Random networks behind an oracle that answers in float64, in float32, or to so many decimals."""

    def make(seed: int) -> tuple[ReluNetwork, Oracle]:
        model = network(inputs, width, seed, **options)
        oracle = divulge.oracle(network(inputs, width, seed, **options).float() if single else model)
        return model, oracle if digits is None else Rounded(oracle, digits)

    return make


def condensed(seed: int) -> tuple[ReluNetwork, Oracle]:
    model = trained(64, seed)
    return model, divulge.oracle(model)


def cases() -> Iterator[tuple[str, int, float, Make]]:
    """What, how many networks, the error that counts as success, and how they are made."""
    yield "64-16-1", 40, SUCCESS, random(64, 16)
    yield "64-64-1", 40, SUCCESS, random(64, 64)
    yield "100-32-1", 40, SUCCESS, random(100, 32)
    yield "784-128-1", 3, SUCCESS, random(784, 128)
    yield "64-64-3", 10, SUCCESS, random(64, 64, outputs=3)
    yield "784-100-1 of rank 20", 2, 2 * SUCCESS, random(784, 100, rank=20)
    yield "64-16-1 in float32", 10, 1e-5, random(64, 16, single=True)
    yield "20-8-1 to six decimals", 8, 1e-5, random(20, 8, digits=6)
    yield "64-64-1 trained on digits", 7, 10 * SUCCESS, condensed


def error(model: ReluNetwork, stolen: Extraction, seed: int) -> float:
    """Worst difference on fresh Gaussian points over the output's standard deviation there."""
    g = torch.Generator().manual_seed(seed + 1)
    X = torch.randn(FRESH, model.A.shape[1], generator=g, dtype=torch.float64)
    with torch.no_grad():
        truth = model(X)
        return float((truth - stolen.model(X)).abs().max() / truth.std(dim=0).max())


def measure(count: int, allowed: float, make: Make) -> dict[str, Any]:
    runs = []
    for seed in range(FIRST, FIRST + count):
        model, oracle = make(seed)
        started = time.process_time()
        stolen = from_values(oracle, seed=seed)
        seconds = time.process_time() - started
        units, inputs = model.A.shape
        parameters = (units + 1) * (inputs + 1)
        missed = units - match_neurons(stolen.model, model).found(0.01)
        runs.append({
            "seed": seed, "exact": stolen.exact, "width": stolen.width, "queries": stolen.queries, "seconds": seconds,
            "ratio": stolen.queries / parameters, "error": error(model, stolen, seed), "missed": missed,
        })  # fmt: skip
    ratios, errors, busy = ([run[key] for run in runs] for key in ("ratio", "error", "seconds"))
    good = sum(e <= allowed for e in errors)
    return {
        "networks": count, "within": f"{good} at {allowed:g}", "exact": sum(run["exact"] for run in runs),
        "with_every_neuron": sum(not run["missed"] for run in runs), "values_per_parameter": statistics.mean(ratios),
        "worst": max(ratios), "rows": statistics.mean(run["queries"] for run in runs),
        "median_error": statistics.median(errors), "worst_error": max(errors), "seconds": statistics.mean(busy),
        "runs": runs,
    }  # fmt: skip


def printed(inputs: int, width: int, count: int) -> dict[str, Any]:
    """Algorithm 1-MQ as printed on networks without biases, the width given."""
    found, errors, rows = 0, [], []
    for seed in range(FIRST, FIRST + count):
        biased = network(inputs, width, seed)
        model = ReluNetwork(biased.A, torch.zeros(width, dtype=torch.float64), biased.W)
        stolen = from_values(divulge.oracle(model), method="paper", width=width, seed=seed)
        rows.append(stolen.queries / (width * (inputs + 1)))
        if stolen.width == width:
            found += 1
            errors.append(error(model, stolen, seed))
    return {
        "networks": count, "every_neuron": found, "values_per_parameter": statistics.mean(rows),
        "median_error": statistics.median(errors) if errors else None, "worst_error": max(errors, default=None),
        "step": step_of(width, 0.1),
    }  # fmt: skip


def linear(inputs: int, count: int) -> dict[str, Any]:
    """A linear model from one gradient and from values."""
    runs = []
    for seed in range(FIRST, FIRST + count):
        draw = torch.Generator().manual_seed(seed)
        model = torch.nn.Linear(inputs, 1).double().requires_grad_(False)
        model.weight.copy_(torch.randn(1, inputs, generator=draw, dtype=torch.float64) / inputs**0.5)
        one = divulge.extraction.softmax_regression(divulge.oracle(model, access="gradient"), seed=seed)
        many = from_values(divulge.oracle(model), seed=seed)
        runs.append((one.ledger.gradient, many.queries, one.exact, many.exact))
    gradients, values, *exact = zip(*runs, strict=True)
    return {
        "networks": count, "gradients": max(gradients), "values": statistics.mean(values),
        "exact_from_gradients": sum(exact[0]), "exact_from_values": sum(exact[1]),
    }  # fmt: skip


def run(plan: Plan) -> dict[str, Any]:
    """Every kind of network, one after the other."""
    torch.set_num_threads(1)
    ours = {name: partial(measure, plan.seeds or count, allowed, make) for name, count, allowed, make in cases()}
    paper = {f"as printed, {d}-{h}-1": partial(printed, d, h, plan.seeds or NETWORKS) for d, h in PRINTED}
    one = {"linear, 784 inputs": partial(linear, 784, plan.seeds or 5)}
    return plan.measure("extraction_values", {**ours, **paper, **one})

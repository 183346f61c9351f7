"""Any depth: how many networks are copied exactly, at what cost, and whether a claim is ever false.

``python -m experiments extraction_depth``; weights are N(0, 1 / fan-in) and biases N(0, 0.3^2), with fresh seeds, or
trained on the digits of scikit-learn, and none is left out. Every claim is checked on 200,000 points that are not in
the ledger, half of them five times as far out. The part "not ReLU layers" holds functions that must not be claimed:
a maximum over pieces, a skip connection, leaky units, and networks deeper than ``layers=``.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import divulge
from divulge.extraction import Extraction, from_gradients, from_values
from divulge.models import MLP
from experiments.plan import Plan

POINTS = 200_000
FALSE = 1e-7
"""Errors above this share of the output's standard deviation make a claim false."""
GRADIENTS = (
    "20-16-16-1",
    "10-15-15-1",
    "20-30-20-1",
    "64-32-32-32-1",
    "784-64-32-16-10",
    "40-20-10-10-10-1",
    "64-16-16-16-16-16-16-16-16-1",
)
VALUES = ("20-16-16-1", "80-40-20-1")
TRAINED = ("64-32-16-10", "64-32-32-16-10")
NETWORKS, FIRST_SEED = 20, 70_000
"""Networks of each row; their seeds were not used while settings were chosen."""


def network(widths: list[int], seed: int) -> MLP:
    """A random network in float64."""
    generator = torch.Generator().manual_seed(seed)
    model = MLP(widths).double()
    with torch.no_grad():
        for layer in model:
            if isinstance(layer, nn.Linear):
                layer.weight.normal_(std=layer.in_features**-0.5, generator=generator)
                layer.bias.normal_(std=0.3, generator=generator)
    return model


def trained(widths: list[int], seed: int) -> MLP:
    """A network trained on digits, in float64."""
    X, y = divulge.datasets.load("digits").train
    recipe = divulge.Recipe(widths=widths, activation="relu", loss="cross-entropy", seed=seed, epochs=30)
    model: Any = recipe.train(X, y)
    return model.double()


def worst_error(model: nn.Module, copy: nn.Module, inputs: int) -> float:
    """Worst error on fresh points over the output's standard deviation; far ones in proportion to their distance."""
    generator, worst, scale = torch.Generator().manual_seed(99), 0.0, 0.0
    for distance in (1.0, 5.0):
        for _ in range(POINTS // 20_000):
            X = distance * torch.randn(10_000, inputs, generator=generator, dtype=torch.float64)
            with torch.no_grad():
                truth = model(X)
                scale = scale or float(truth.std(dim=0).max())
                worst = max(worst, float((truth - copy(X)).abs().max()) / distance)
    return worst / scale


def measure(
    widths: list[int], networks: int, access: str, make: Callable[[list[int], int], MLP]
) -> dict[str, object]:  # fmt: skip
    """One row of the table."""
    found: list[Extraction] = []
    errors, seconds, false = [], [], 0
    for seed in range(networks):
        model = make(widths, FIRST_SEED + seed)
        oracle = divulge.oracle(model, access="gradient" if access == "gradient" else "value")
        began = time.process_time()
        stolen = (from_gradients if access == "gradient" else from_values)(oracle, seed=FIRST_SEED + seed)
        seconds.append(time.process_time() - began)
        error = worst_error(model, stolen.model, widths[0])
        false += stolen.exact and error > FALSE
        found.append(stolen)
        errors += [error] if stolen.exact else []
    exact = [stolen for stolen in found if stolen.exact]
    return {
        "widths": widths, "access": access, "networks": networks, "exact": len(exact), "false": false,
        "median_gradients": statistics.median(stolen.cost.gradient for stolen in found),
        "median_values": statistics.median(stolen.cost.value for stolen in found),
        "most_rows": max(stolen.cost.total for stolen in found),
        "median_verification": statistics.median(stolen.verification.total for stolen in exact) if exact else None,
        "worst_error": max(errors, default=None), "cpu_seconds": statistics.median(seconds),
        "not_exact": [stolen.reason for stolen in found if not stolen.exact],
    }  # fmt: skip


class Skip(nn.Module):
    """x + relu(W x) inside a network."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = x + torch.relu(self.layer(x))
        return total


class PairMaximum(nn.Module):
    """The larger of each two neighbouring inputs."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.maximum(x[:, ::2], x[:, 1::2])


def others(kind: str, seed: int) -> tuple[nn.Module, int]:
    """A function that is no ReLU network of at most ``layers`` hidden layers, and that number."""
    torch.manual_seed(50_000 + seed)
    linear = nn.Linear
    if kind == "maximum":
        model = nn.Sequential(linear(10, 8), PairMaximum(), linear(4, 6), nn.ReLU(), linear(6, 1))
    elif kind == "skip":
        model = nn.Sequential(linear(10, 8), nn.ReLU(), Skip(8), linear(8, 6), nn.ReLU(), linear(6, 1))
    elif kind == "leaky":
        model = nn.Sequential(linear(10, 6), nn.LeakyReLU(), linear(6, 6), nn.LeakyReLU(), linear(6, 1))
    else:
        model = nn.Sequential(linear(10, 6), nn.ReLU(), linear(6, 6), nn.ReLU(), linear(6, 6), nn.ReLU(), linear(6, 1))
        return model.double(), 2
    return model.double(), 8


def must_not_claim(networks: int) -> dict[str, object]:
    """Functions of other kinds: exact copies are welcome where they agree everywhere, false claims are counted."""
    exact, false, total = 0, 0, 0
    for kind in ("maximum", "skip", "leaky", "deeper"):
        for seed in range(networks):
            model, layers = others(kind, seed)
            stolen = from_gradients(divulge.oracle(model, access="gradient", budget=60_000), seed=seed, layers=layers)
            total, exact = total + 1, exact + stolen.exact
            false += stolen.exact and worst_error(model, stolen.model, 10) > FALSE
    return {"functions": total, "exact": exact, "false": false}


def run(plan: Plan) -> dict[str, Any]:
    """All rows of the table, and the functions that must not be claimed."""
    torch.set_num_threads(1)
    rows = [(name, "gradient", network) for name in GRADIENTS]
    rows += [(name, "value", network) for name in VALUES]
    rows += [(name, "gradient", trained) for name in TRAINED]
    parts: dict[str, Callable[[], dict[str, object]]] = {
        f"{name}, {access}s{', digits' if make is trained else ''}": partial(
            measure, [int(part) for part in name.split("-")], plan.seeds or NETWORKS, access, make
        )
        for name, access, make in rows
    }
    parts["not ReLU layers"] = partial(must_not_claim, plan.seeds or 10)
    return plan.measure("extraction_depth", parts)

"""Extraction from gradients: its cost beside the printed algorithm, and how often it succeeds.

``python -m experiments extraction_gradients`` runs everything (a few minutes on one core); every network is random with
a fresh seed or trained on digits, and none is left out. Whether it ever lies: ``extraction_honesty``.
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import divulge
from divulge.extraction import Extraction, from_gradients
from divulge.models import MLP, ReluNetwork
from experiments.plan import Plan

SUCCESS = 1e-9
Row = dict[str, Any]


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def network(inputs: int, width: int, seed: int, *, outputs: int = 1, bias: float = 0.5) -> ReluNetwork:
    g = torch.Generator().manual_seed(seed)
    return ReluNetwork(
        normal(g, width, inputs) / inputs**0.5, bias * normal(g, width), normal(g, outputs, width) / width**0.5
    )


def trained(width: int, seed: int) -> nn.Module:
    X, y = load_digits(return_X_y=True)
    rows, labels = torch.tensor(X, dtype=torch.float32) / 16, torch.tensor(y)
    torch.manual_seed(seed)
    model = MLP([64, width, 10])
    optimiser = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(150):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(rows), labels).backward()
        optimiser.step()
    return model.double()


def with_bump(model: ReluNetwork, width: float, seed: int, *, height: float = 1.0) -> tuple[ReluNetwork, Tensor]:
    """The network plus a tent that is zero outside a slab of the given width, and 200 points inside the slab."""
    g = torch.Generator().manual_seed(seed)
    a = normal(g, 1, model.A.shape[1])
    a = a / a.norm()
    b = 0.5 * normal(g, 1)
    offsets = b - torch.tensor([0, 0.5, 1], dtype=torch.float64) * width
    tent = torch.tensor([[1.0, -2.0, 1.0]], dtype=torch.float64) * 2 * height / width
    X = normal(g, 200, model.A.shape[1])
    X = X + (width / 2 - X @ a[0] - b)[:, None] * a
    if len(model.W) > 1:
        tent = nn.functional.normalize(normal(g, len(model.W), 1), dim=0) @ tent
    bumped = ReluNetwork(
        torch.cat([model.A, a.repeat(3, 1)]), torch.cat([model.b, offsets]), torch.cat([model.W, tent], dim=1)
    )
    return bumped, X


def error(model: nn.Module, stolen: Extraction, aimed: Tensor | None = None) -> float:
    """Worst difference on 2,000 Gaussian points and on the aimed ones, over the outputs' standard deviation."""
    g = torch.Generator().manual_seed(12345)
    X = normal(g, 2000, stolen.model.input_shape[0])  # type: ignore[index, union-attr]
    with torch.no_grad():
        scale = model(X).std(dim=0).max()
        points = X if aimed is None else torch.cat([X, aimed])
        return float((model(points) - stolen.model(points)).abs().max() / scale)


def extract(model: nn.Module, seed: int, **options: Any) -> tuple[Extraction, float]:
    oracle = divulge.oracle(model, access="gradient")
    busy = time.process_time()
    stolen = from_gradients(oracle, seed=seed, **options)
    return stolen, time.process_time() - busy


COSTS = (
    (784, 32, 1, "default", 20), (784, 128, 1, "default", 20), (784, 1024, 1, "default", 3),
    (3072, 1024, 1, "default", 1), (784, 128, 10, "default", 20), (784, 200, 10, "default", 5),
    (784, 1024, 10, "default", 1), (20, 100, 1, "default", 20),
    (784, 32, 1, "paper", 2), (784, 128, 1, "paper", 1),
)  # fmt: skip
"""Inputs, width, outputs, method and how many networks."""


def cost(inputs: int, width: int, outputs: int, method: str, count: int) -> Row:
    """Gradients a neuron, values, seconds and error of random networks of one shape."""
    runs = []
    for seed in range(count):
        model = network(inputs, width, seed, outputs=outputs, bias=0.5 if method == "default" else 0.0)
        options = {} if method == "default" else {"method": "paper", "width": width}
        stolen, seconds = extract(model, seed, **options)
        runs.append((stolen.ledger.gradient / width, stolen.ledger.value, seconds, error(model, stolen), stolen.exact))
    per_neuron, values, seconds, errors, exact = zip(*runs, strict=True)
    return {
        "networks": count, "exact": sum(exact), "gradients_per_neuron": statistics.mean(per_neuron),
        "worst": max(per_neuron), "target": 2.9 + 16 / width, "values": statistics.mean(values),
        "cpu_seconds": statistics.mean(seconds), "error": max(errors),
    }  # fmt: skip


def success(random: int = 200, digits: int = 20) -> Row:
    """How many random networks and networks trained on digits come out right."""
    shapes = [(20, 16), (64, 64), (100, 32), (30, 60), (784, 32)]
    errors = []
    for seed in range(random):
        model: nn.Module = network(*shapes[seed % len(shapes)], 10_000 + seed)
        errors.append(error(model, extract(model, seed)[0]))
    trained_errors = []
    for seed in range(digits):
        model = trained([32, 64, 128, 256][seed % 4], seed)
        trained_errors.append(error(model, extract(model, seed)[0]))
    return {
        "random": sum(e <= SUCCESS for e in errors), "of_random": len(errors), "worst_random": max(errors),
        "trained": sum(e <= SUCCESS for e in trained_errors), "of_trained": len(trained_errors),
        "worst_trained": max(trained_errors),
    }  # fmt: skip


def run(plan: Plan) -> dict[str, Any]:
    """The cost of each shape, then how often random and trained networks come out right."""
    torch.set_num_threads(1)
    parts = {
        f"cost, {inputs}-{width}-{outputs}, {method}": partial(
            cost, inputs, width, outputs, method, plan.seeds or count
        )
        for inputs, width, outputs, method, count in COSTS
    }
    counts = {} if plan.seeds is None else {"random": plan.seeds, "digits": plan.seeds}
    return plan.measure("extraction_gradients", {**parts, "success": partial(success, **counts)})

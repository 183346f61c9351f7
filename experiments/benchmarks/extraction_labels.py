"""Extraction from hard labels: labels a parameter, neurons found, agreement and time, on random and trained networks.

Random networks have a bias that makes both classes, or all logits, equally frequent on N(0, I). The digits network is
trained on scikit-learn's digits, standardised. ``equivalent`` is what the attack claims; ``all_neurons`` compares the
hyperplanes with the true ones.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from sklearn.datasets import load_digits

import divulge
from divulge.extraction import LabelCopy, from_labels
from divulge.models import MLP
from experiments.plan import Plan

FIRST = 7_000
"""Networks and searches are seeded from here on: no setting was chosen on them."""
NETWORKS = 20
FOUND = 1e-6
"""Distance of two hyperplanes, as unit rows (w, b), that are one."""
Make = Callable[[int], MLP]


def random_network(widths: list[int], seed: int) -> MLP:
    """A network of Gaussian weights with balanced outputs, in float64."""
    generator = torch.Generator().manual_seed(seed)
    model = MLP(widths).double().requires_grad_(False)
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator) / layer.in_features**0.5)
            layer.bias.copy_(0.3 * torch.randn(layer.bias.shape, generator=generator))
    rows = torch.randn(4000, widths[0], generator=generator).double()
    model[-1].bias.sub_(model(rows).median(dim=0).values)
    return model


def digits_network(width: int, seed: int) -> MLP:
    """A network trained on digits, in float64."""
    X, y = load_digits(return_X_y=True)
    X = (X - X.mean(axis=0)) / (X.std(axis=0) + 1e-9)
    recipe = divulge.Recipe(widths=[64, width, 10], learning_rate=0.1, epochs=60, seed=seed)
    model: MLP = recipe.train(torch.from_numpy(X).float(), torch.from_numpy(y)).double().requires_grad_(False)
    return model


def all_neurons(stolen: LabelCopy, model: MLP) -> bool:
    """Whether every true neuron is in the copy, and none besides."""
    if stolen.width != model[0].out_features:
        return False
    layers = ((stolen.model.A.detach(), stolen.model.b.detach()), (model[0].weight, model[0].bias))
    rows = [torch.nn.functional.normalize(torch.cat([w, b[:, None]], dim=1), dim=1) for w, b in layers]
    return float(torch.cdist(rows[1], torch.cat([rows[0], -rows[0]])).min(dim=1).values.max()) < FOUND


def measure(count: int, make: Make) -> dict[str, Any]:
    """The attack on so many fresh networks."""
    runs = []
    for seed in range(FIRST, FIRST + count):
        model = make(seed)
        stolen = from_labels(divulge.oracle(model, access="label"), seed=seed)
        parameters = sum(p.numel() for p in model.parameters())
        runs.append({
            "equivalent": stolen.equivalent, "all_neurons": all_neurons(stolen, model), "agreement": stolen.agreement,
            "labels": stolen.queries, "per_parameter": stolen.queries / parameters, "requests": stolen.requests,
            "seconds": stolen.seconds, "reason": stolen.reason,
        })  # fmt: skip
    ratios = [run["per_parameter"] for run in runs]
    return {
        "networks": count, "equivalent": sum(run["equivalent"] for run in runs),
        "all_neurons": sum(run["all_neurons"] for run in runs), "labels_per_parameter": statistics.median(ratios),
        "least": min(ratios), "most": max(ratios), "requests": statistics.median(run["requests"] for run in runs),
        "seconds": statistics.median(run["seconds"] for run in runs), "runs": runs,
    }  # fmt: skip


def cases() -> Iterator[tuple[str, Make]]:
    """The networks of the table."""
    for widths in ([10, 8, 1], [20, 16, 1], [64, 32, 1], [100, 32, 1], [20, 40, 1], [20, 16, 3], [64, 32, 10]):
        yield "-".join(map(str, widths)), partial(random_network, widths)
    yield "digits 64-32-10", partial(digits_network, 32)


def run(plan: Plan) -> dict[str, Any]:
    """Every kind of network, one after the other."""
    torch.set_num_threads(1)
    parts = {name: partial(measure, plan.seeds or NETWORKS, make) for name, make in cases()}
    return plan.measure("extraction_labels", parts)

"""Extraction from hard labels: labels a parameter, neurons found, agreement and time, on random and trained networks.

Random networks have a bias that makes both classes, or all logits, equally frequent on N(0, I). The digits network is
trained on scikit-learn's digits, standardised; the MNIST networks on pixels in [0, 1]. ``equivalent`` is what the
attack claims; ``differ`` counts rows of N(0, I), and for MNIST test digits, that the copy decides otherwise;
``all_neurons`` compares the hyperplanes of the first hidden layer with the true ones. 2048-4-1 and 32-2-2-1 are the
cases of Chen et al. 2024. ``honesty`` attacks networks of many kinds and counts copies that are called equivalent and
decide otherwise.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from sklearn.datasets import load_digits
from sklearn.tree import DecisionTreeClassifier

import divulge
from divulge.core.errors import BudgetExhausted
from divulge.extraction import LabelCopy, from_labels
from divulge.models import MLP
from divulge.oracles.base import Oracle
from experiments.plan import Plan

FIRST = 130_000
"""Networks and searches are seeded from here on: no setting was chosen on them."""
NETWORKS = 20
BUDGET = 60_000
"""Labels for each network of ``honesty``."""
FALSE = 5e-4
"""A copy is not equivalent if it decides otherwise on more than this share of fresh rows."""
FOUND, FOUND_ROUNDED = 1e-6, 1e-3
"""Distance of two hyperplanes, as unit rows (w, b), that are one; in networks that compute in float32."""
Make = Callable[[int], MLP]


def random_network(widths: list[int], seed: int, activation: str = "relu") -> MLP:
    """A network of Gaussian weights with balanced outputs, in float64."""
    generator = torch.Generator().manual_seed(seed)
    model = MLP(widths, activation=activation).double().requires_grad_(False)
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator) / layer.in_features**0.5)
            layer.bias.copy_(0.3 * torch.randn(layer.bias.shape, generator=generator))
    rows = torch.randn(4000, widths[0], generator=generator).double()
    model[-1].bias.sub_(model(rows).median(dim=0).values)
    return model


def digits_network(width: int, seed: int, outputs: int = 10) -> MLP:
    """A network trained on digits, ten classes or even against odd, in float64."""
    X, y = load_digits(return_X_y=True)
    X = (X - X.mean(axis=0)) / (X.std(axis=0) + 1e-9)
    loss = "cross-entropy" if outputs > 1 else "logistic"
    recipe = divulge.Recipe(widths=[64, width, outputs], loss=loss, learning_rate=0.1, epochs=60, seed=seed)
    labels = torch.from_numpy(y if outputs > 1 else y % 2)
    model: MLP = recipe.train(torch.from_numpy(X).float(), labels).double().requires_grad_(False)
    return model


def rounded(make: Make, seed: int) -> MLP:
    """The same network, which computes in float32."""
    return make(seed).float()


def all_neurons(stolen: LabelCopy, model: MLP) -> bool:
    """Whether every true neuron is in the copy, and none besides."""
    if stolen.widths != [layer.out_features for layer in model if isinstance(layer, torch.nn.Linear)][:-1]:
        return False
    copy = stolen.model
    found = (copy[0].weight, copy[0].bias) if isinstance(copy, MLP) else (copy.A.detach(), copy.b.detach())
    layers = (found, (model[0].weight, model[0].bias))
    rows = [torch.nn.functional.normalize(torch.cat([w, b[:, None]], dim=1), dim=1) for w, b in layers]
    near = FOUND if model[0].weight.dtype == torch.float64 else FOUND_ROUNDED
    away = torch.cdist(rows[1].double(), torch.cat([rows[0], -rows[0]]).double())
    return float(away.min(dim=1).values.max()) < near


def mnist_network(outputs: int, seed: int) -> MLP:
    """A network of 32 neurons trained on MNIST for three epochs, ten classes or even against odd, in float64."""
    X, y = divulge.datasets.load("mnist").train
    y = torch.as_tensor(y) if outputs > 1 else torch.as_tensor(y) % 2
    recipe = divulge.Recipe(
        widths=[784, 32, outputs], loss="cross-entropy" if outputs > 1 else "logistic", optimiser="adam",
        learning_rate=1e-3, epochs=3, batch_size=128, seed=seed,
    )  # fmt: skip
    model: MLP = recipe.train(X, y).double().requires_grad_(False)
    return model


def test_rows(model: MLP, seed: int) -> dict[str, torch.Tensor]:
    """Rows that no attack saw: Gaussian ones, and the test digits for a network of 28 by 28 pixels."""
    inputs = model[0].in_features
    generator = torch.Generator().manual_seed(seed)
    rows = {"gaussian": torch.randn(20_000, inputs, generator=generator, dtype=torch.float64)}
    if inputs == 784:
        rows["test_digits"] = torch.as_tensor(divulge.datasets.load("mnist").test[0]).double()
    return rows


def differing(stolen: LabelCopy, model: torch.nn.Module, X: torch.Tensor) -> int:
    """Rows on which copy and target decide differently."""
    copy, target = (divulge.oracle(m, access="label").label(X) for m in (stolen.model, model))
    return int((copy != target).sum())


def measure(count: int, make: Make, first: int = 0) -> dict[str, Any]:
    """The attack on so many fresh networks."""
    runs = []
    for seed in range(FIRST + first, FIRST + first + count):
        model = make(seed)
        began = time.process_time()
        stolen = from_labels(divulge.oracle(model, access="label"), seed=seed)
        seconds = time.process_time() - began
        parameters = sum(p.numel() for p in model.parameters())
        runs.append({
            "equivalent": stolen.equivalent, "all_neurons": all_neurons(stolen, model), "agreement": stolen.agreement,
            "labels": stolen.queries, "per_parameter": stolen.queries / parameters, "requests": stolen.requests,
            "seconds": seconds, "reason": stolen.reason,
        })  # fmt: skip
        runs[-1] |= {f"differs_on_{what}": differing(stolen, model, X) for what, X in test_rows(model, seed).items()}
        print(f"   {seed}: {runs[-1]}", flush=True)
    ratios = [run["per_parameter"] for run in runs]
    return {
        "networks": count, "equivalent": sum(run["equivalent"] for run in runs),
        "all_neurons": sum(run["all_neurons"] for run in runs), "labels_per_parameter": statistics.median(ratios),
        "least": min(ratios), "most": max(ratios), "requests": statistics.median(run["requests"] for run in runs),
        "seconds": statistics.median(run["seconds"] for run in runs),
        "differ": sum(value for run in runs for key, value in run.items() if key.startswith("differs_on")),
        "runs": runs,
    }  # fmt: skip


class Function(torch.nn.Module):
    """A random network with another function in place of its ReLU, or with a skip connection."""

    def __init__(self, kind: str, seed: int) -> None:
        super().__init__()
        self.kind = kind
        self.layers = random_network([6, 8, 1], seed)
        self.skip = random_network([6, 1], seed + 1)

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        z = self.layers[0](X)
        if self.kind == "max":
            return (z[:, :4].amax(dim=1) - z[:, 4:].amax(dim=1))[:, None]
        if self.kind == "clipped":
            return self.layers[-1](z.clamp(0, 1))
        if self.kind == "leaky":
            return self.layers[-1](torch.nn.functional.leaky_relu(z, 0.1))
        hidden = z.abs() if self.kind == "abs" else z.relu()
        return self.layers[-1](hidden) + (self.skip(X) if self.kind == "skip" else 0)


def parallel(seed: int) -> MLP:
    """Two neurons that are a ten-thousandth apart."""
    model = random_network([6, 5, 1], seed)
    model[0].weight[1] = model[0].weight[0] + 1e-4 * model[0].weight[1]
    model[0].bias[1] = model[0].bias[0] + 1e-4 * model[0].bias[1]
    return model


def shifted(layer: int, by: float, seed: int) -> MLP:
    """A network with one bias moved: a neuron far out, or one class that is rare."""
    model = random_network([6, 5, 1], seed)
    model[layer].bias[0] += by
    return model


def tree(seed: int) -> DecisionTreeClassifier:
    """A tree on the labels of a network."""
    X = torch.randn(1000, 6, generator=torch.Generator().manual_seed(seed))
    labels = (random_network([6, 5, 1], seed)(X.double())[:, 0] > 0).int()
    return DecisionTreeClassifier(max_depth=6, random_state=0).fit(X.numpy(), labels.numpy())


def flipping(seed: int) -> Oracle:
    """One label of a hundred is wrong at random."""
    model, generator = random_network([6, 4, 1], seed), torch.Generator().manual_seed(seed)

    def values(X: Any) -> Any:
        out = model(torch.as_tensor(X))
        return torch.where(torch.rand(out.shape, generator=generator) < 0.01, -out, out).numpy()

    return divulge.oracle(values, access="label", input_shape=[6], budget=BUDGET)


KINDS: dict[str, Callable[[int], Any]] = {
    "three hidden layers": lambda seed: random_network([8, 6, 5, 4, 1], seed),
    "two hidden layers, three classes": lambda seed: random_network([8, 6, 5, 3], seed),
    "two hidden layers": lambda seed: random_network([6, 5, 3, 1], seed),
    "one hidden layer": lambda seed: random_network([6, 5, 1], seed),
    "float32": lambda seed: random_network([6, 5, 2], seed).float(),
    "smooth": lambda seed: random_network([6, 5, 1], seed, activation="tanh"),
    "nearly parallel neurons": parallel,
    "a neuron far out": partial(shifted, 0, 4.0),
    "nearly constant": partial(shifted, -1, 1.5),
    "inputs in a box": lambda seed: random_network([6, 5, 1], seed),
    **{kind: partial(Function, kind) for kind in ("max", "clipped", "leaky", "abs", "skip")},
    "tree": tree,
    "flipped labels": lambda seed: random_network([6, 4, 1], seed),
}


def honesty(count: int, first: int = 0) -> dict[str, Any]:
    """So many targets of each of several kinds, with a budget: copies that are called equivalent and are not."""
    false, claimed = [], 0
    for seed in range(FIRST + first, FIRST + first + count):
        for kind, make in KINDS.items():
            model = make(seed)
            flips = kind == "flipped labels"
            oracle = flipping(seed) if flips else divulge.oracle(model, access="label", budget=BUDGET)
            bounds = (-1.5, 1.5) if kind == "inputs in a box" else None
            try:
                stolen = from_labels(oracle, seed=seed, bounds=bounds, scale=1.0)
            except BudgetExhausted as error:
                stolen = error.partial
            told = stolen.reason
            if stolen.equivalent:
                claimed += 1
                differ = difference(stolen, divulge.oracle(model, access="label"), bounds, seed)
                told = f"differs on {differ:.2g} of 20,000 rows"
                if differ > FALSE:
                    false.append({"kind": kind, "seed": seed, "differ": differ})
            print(f"   {kind} {seed}: {stolen.equivalent}, {stolen.queries} labels, {told}", flush=True)
    return {"networks": count * len(KINDS), "called_equivalent": claimed, "false": len(false), "which": false}


def difference(stolen: LabelCopy, oracle: Oracle, bounds: tuple[float, float] | None, seed: int) -> float:
    """Share of 20,000 rows of N(0, I), moved into the bounds, on which copy and target decide differently."""
    X = torch.randn(20_000, oracle.input_dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    X = X if bounds is None else X.clamp(*bounds)
    return float((oracle.label(X) != divulge.oracle(stolen.model, access="label").label(X)).double().mean())


def cases() -> Iterator[tuple[str, Make]]:
    """The networks of the table."""
    for widths in (
        [10, 8, 1], [20, 16, 1], [64, 32, 1], [100, 32, 1], [20, 40, 1], [20, 16, 3], [64, 32, 10], [20, 10, 6, 1],
        [2048, 4, 1], [32, 2, 2, 1], [12, 6, 4, 1], [30, 16, 6, 3, 1], [20, 8, 6, 4, 1],
    ):  # fmt: skip
        yield "-".join(map(str, widths)), partial(random_network, widths)
    yield "digits 64-32-10", partial(digits_network, 32)
    for widths in ([20, 16, 1], [20, 16, 3]):
        yield f"float32 {'-'.join(map(str, widths))}", partial(rounded, partial(random_network, widths))
    yield "float32 digits 64-8-1", partial(rounded, partial(digits_network, 8, outputs=1))
    yield "MNIST 784-32-1", partial(mnist_network, 1)
    yield "MNIST 784-32-10", partial(mnist_network, 10)


def run(plan: Plan) -> dict[str, Any]:
    """Every kind of network, one after the other."""
    torch.set_num_threads(1)
    parts = {name: partial(measure, plan.seeds or NETWORKS, make, plan.seed) for name, make in cases()}
    parts["honesty"] = partial(honesty, plan.seeds or NETWORKS, plan.seed)
    return plan.measure("extraction_labels", parts)

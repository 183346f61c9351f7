"""Training digits out of the weights of networks that 20 MNIST digits were learnt by: usual targets and unusual ones.

``python -m experiments reconstruction`` measures 784-128-1 targets trained to their margin: digits found at
correlation 0.9 counted one-to-one, with the training mean known and inferred, beside unseen digits and broken
weights; and each target that Haim et al. 2022 leave out or only touch on (appendix C): deeper, not homogeneous,
several classes, other losses and optimisers, convolutions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from divulge import Recipe, datasets, reconstruction
from divulge.core.errors import DivulgeError
from divulge.reconstruction import Settings, baselines
from divulge.training import margin
from experiments.plan import Plan

DIGITS, WIDTH, UNSEEN, ALIKE = 20, 128, 200, 0.9


@dataclass(frozen=True)
class Digits:
    """A set of training digits (centred), their parity and class, digits never seen, and the mean."""

    X: Tensor
    odd: Tensor
    y: Tensor
    unseen: Tensor
    mean: Tensor


def digits(seed: int) -> Digits:
    mnist = datasets.load("mnist")
    rows = mnist.subset(DIGITS, seed=seed).train
    X, mean = rows.X.double(), rows.X.double().mean(dim=0)
    order = torch.randperm(len(mnist.test.X), generator=torch.Generator().manual_seed(seed))
    return Digits(X - mean, rows.y % 2, rows.y, mnist.test.X[order[:UNSEEN]].double() - mean, mean)


def judged(found: reconstruction.Reconstruction, data: Digits) -> dict[str, Any]:
    match = found.match(data.X, data.unseen, mean=data.mean, threshold=ALIKE)
    assert match.control is not None
    return {
        "rank": found.rank, "samples": len(found.samples), "found": match.found(), "p_value": match.p_value,
        "unseen_above": int((match.control.correlation > ALIKE).sum()), "seconds": found.seconds,
    }  # fmt: skip


# -- sets -------------------------------------------------------------------------------------------------------------
FIRST, START = 300, 4e-3
"""The first set, and the scale of the initial first layer."""


def measure(seed: int, start: float) -> dict[str, Any]:
    """One fresh set of digits."""
    data = digits(seed)
    began = time.perf_counter()
    network = margin.network([784, WIDTH, 1], first_scale=start, balanced=True, seed=seed)
    model = margin.to_margin(network, data.X, data.odd, extra_epochs=2000).model
    row: dict[str, Any] = {"seed": seed, "start": start, "train_seconds": time.perf_counter() - began}
    known = reconstruction.from_weights(model, mean=data.mean, seed=seed)
    inferred = reconstruction.from_weights(model, seed=seed)
    broken = reconstruction.from_weights(baselines.broken(model, seed=seed), mean=data.mean, n=known.rank, seed=seed)
    return row | judged(known, data) | {
        "inferred": judged(inferred, data)["found"], "broken": judged(broken, data)["found"],
    }  # fmt: skip


# -- beyond the paper -------------------------------------------------------------------------------------------------

FREE = Settings(margin=0.0)  # margins need not be equal without a margin to maximise


def _to_margin(widths: list[int], *, bias: Any = "first", classes: bool = False, start: float = 1e-4) -> Any:
    def train(data: Digits) -> nn.Module:
        network = margin.network(widths, first_scale=start, bias=bias)
        return margin.to_margin(network, data.X, data.y if classes else data.odd, extra_epochs=500).model

    return train


def _by_recipe(**changes: Any) -> Any:
    def train(data: Digits) -> nn.Module:
        options: dict[str, Any] = {"loss": "logistic", "learning_rate": 0.1, "epochs": 5000, "initial_scale": 4e-3}
        recipe = Recipe(widths=[784, WIDTH, 1], bias="first", precision="float64", **{**options, **changes})
        return recipe.train(data.X, 2.0 * data.odd.double() - 1)

    return train


def _convolution(data: Digits) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 16, 5, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 144, 1, bias=False))
    model.input_shape = (1, 28, 28)  # type: ignore[assignment]
    recipe = Recipe(widths=[784, 1], loss="logistic", learning_rate=0.05, epochs=2000)
    return recipe.train(data.X, data.odd, start=model)


BEYOND: dict[str, tuple[Callable[[Digits], nn.Module], dict[str, Any]]] = {
    "784-128-1, to its margin": (_to_margin([784, WIDTH, 1], start=4e-3), {}),
    "784-200-200-1": (_to_margin([784, 200, 200, 1]), {}),
    "784-200-200-200-1": (_to_margin([784, 200, 200, 200, 1]), {}),
    "784-200-200-1, biases everywhere": (_to_margin([784, 200, 200, 1], bias="all"), {}),
    "784-128-10, ten classes": (_to_margin([784, WIDTH, 10], start=4e-3, classes=True), {}),
    "mini-batches of 5, 5,000 epochs": (_by_recipe(batch_size=5), {}),
    "full batch, 5,000 epochs": (_by_recipe(), {}),
    "torch's own start, 5,000 epochs, n told": (_by_recipe(initial_scale=None), {"n": DIGITS}),
    "weight decay 1e-3": (_by_recipe(weight_decay=1e-3), {"settings": FREE}),
    "square loss, weight decay 1e-3": (_by_recipe(loss="square", weight_decay=1e-3), {"settings": FREE}),
    "convolution first, printed method, 30 s": (
        _convolution, {"method": "paper", "n": DIGITS, "seconds": 30.0},
    ),
}  # fmt: skip


def beyond(name: str, seed: int) -> dict[str, Any]:
    """One unusual target, attacked with the mean known."""
    train, options = BEYOND[name]
    data = digits(seed)
    began = time.perf_counter()
    model = train(data)
    row: dict[str, Any] = {"target": name, "seed": seed, "train_seconds": time.perf_counter() - began}
    try:
        return row | judged(reconstruction.from_weights(model, mean=data.mean, seed=seed, **options), data)
    except DivulgeError as error:
        return row | {"rank": 0, "samples": 0, "found": 0, "p_value": 1.0, "unseen_above": 0, "seconds": 0.0,
                      "why": str(error)}  # fmt: skip


# -- tables -----------------------------------------------------------------------------------------------------------


def run(plan: Plan) -> dict[str, Any]:
    """784-128-1 networks on 20 digits, then a network of each unusual kind."""
    first = plan.seed or FIRST
    sets = range(first, first + (plan.seeds or 3))
    return plan.measure("reconstruction", {
        **{f"784-128-1, set {seed}": partial(measure, seed, START) for seed in sets},
        **{f"{name}, set {seed}": partial(beyond, name, seed) for name in BEYOND for seed in sets},
    })  # fmt: skip

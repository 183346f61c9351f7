"""What private training costs over plain training, batched over many models; and how long a page of bounds takes."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor

from divulge.protection import Schedule, bound_curves
from divulge.training import Privacy, Recipe, shaped
from divulge.training.private import accounting, trainer
from experiments.plan import Plan

MODELS, KNOWN, EPOCHS, REPEATS = 32, 300, 10, 5
PICTURES = 100
PERCEPTRON = Recipe(widths=[784, 10, 10], activation="elu", learning_rate=0.2, momentum=0.9, epochs=100)
CONVOLUTIONAL = Recipe(architecture="balle-cnn", learning_rate=0.01, momentum=0.9, epochs=25)


def run(plan: Plan) -> dict[str, Any]:
    """Private training beside plain, beside Opacus, and the time of a page of bounds."""
    (X, y), pictures = _random(KNOWN + MODELS, 784), _random(PICTURES, 3072)
    known, own = (X[:KNOWN], y[:KNOWN]), (X[KNOWN:], y[KNOWN:])
    several, single = (dataclasses.replace(recipe, epochs=EPOCHS) for recipe in (PERCEPTRON, CONVOLUTIONAL))
    seeds = list(range(MODELS))
    return plan.measure("protection", {
        f"{MODELS} models 784-10-10, {KNOWN} shared records, {EPOCHS} full-batch steps": lambda: _overhead(
            several, lambda recipe: trainer.train_many(recipe, *known, *own, seeds)
        ),
        f"the CIFAR-10 network on {PICTURES} pictures, {EPOCHS} full-batch steps": lambda: _overhead(
            single, lambda recipe: recipe.train(*pictures)
        ),
        "largest difference to Opacus, 784-10-10": lambda: _apart_from_opacus(PERCEPTRON, *known, clip=1.0),
        "largest difference to Opacus, balle-cnn": lambda: _apart_from_opacus(CONVOLUTIONAL, *pictures, clip=10.0),
        "page of bounds, 100 values of epsilon": _page_of_bounds,
    })  # fmt: skip


def _page_of_bounds() -> dict[str, float]:
    accounting.noise_for(1.0, delta=1e-5, steps=100)  # the accountant's own import
    started, spent = time.perf_counter(), time.process_time()
    bound_curves(math.log(1e-3), schedule=Schedule(100), delta=1e-5, points=100)
    return {"seconds": time.perf_counter() - started, "processor_seconds": time.process_time() - spent}


def _random(rows: int, width: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(rows, width, generator=generator), torch.randint(0, 10, (rows,), generator=generator)


def _private(recipe: Recipe, clip: float) -> Recipe:
    return dataclasses.replace(recipe, privacy=Privacy(noise_multiplier=1.0, clip=clip, noise_seed=3))


def _overhead(plain: Recipe, train: Callable[[Recipe], Any]) -> dict[str, float]:
    """Median seconds of plain and private training, and the median of their ratios."""
    seconds: dict[str, list[float]] = {"plain": [], "private": []}
    for _ in range(REPEATS):  # interleaved, so that a busy machine slows both
        for name, recipe in (("plain", plain), ("private", _private(plain, 1.0))):
            started = time.perf_counter()
            train(recipe)
            seconds[name].append(time.perf_counter() - started)
    ratios = [a / b for a, b in zip(seconds["private"], seconds["plain"], strict=True)]
    return {**{name: median(times) for name, times in seconds.items()}, "ratio": median(ratios)}


def _apart_from_opacus(plain: Recipe, X: Tensor, y: Tensor, *, clip: float) -> float:
    """The largest difference in a weight after training with the same clipping and the same noise."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    recipe = _private(plain, clip)
    ours, theirs = recipe.train(X, y), recipe.initial_model()
    wrapped, rows = GradSampleModule(theirs), shaped(X, theirs)
    optimiser = DPOptimizer(
        recipe.optimiser_for(theirs), noise_multiplier=1.0, max_grad_norm=clip, expected_batch_size=len(X),
        generator=torch.Generator().manual_seed(3),
    )  # fmt: skip
    for _ in range(recipe.epochs):
        optimiser.zero_grad()
        recipe.loss_of(wrapped(rows.clone().requires_grad_()), y).backward()
        optimiser.step()
    return max(float((a - b).detach().abs().max()) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))

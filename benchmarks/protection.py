"""What private training costs over plain training, batched over many models; and how long a page of bounds takes."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from divulge.protection import Schedule, accounting, page, private_training
from divulge.training import Privacy, Recipe

MODELS, KNOWN, EPOCHS, REPEATS = 32, 300, 10, 5


def main() -> None:
    """Print the table and write results/protection.json."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(KNOWN + MODELS, 784, generator=generator)
    y = torch.randint(0, 10, (KNOWN + MODELS,), generator=generator)
    plain = Recipe(widths=[784, 10, 10], activation="elu", epochs=EPOCHS, momentum=0.9)
    private = dataclasses.replace(plain, privacy=Privacy(noise_multiplier=1.0, clip=1.0, noise_seed=0))
    seconds: dict[str, list[float]] = {"plain": [], "private": []}
    for _ in range(REPEATS):  # interleaved, so that a busy machine slows both
        for name, recipe in (("plain", plain), ("private", private)):
            started = time.perf_counter()
            private_training.train_many(recipe, X[:KNOWN], y[:KNOWN], X[KNOWN:], y[KNOWN:], list(range(MODELS)))
            seconds[name].append(time.perf_counter() - started)
    apart = _apart_from_opacus(X[:KNOWN], y[:KNOWN])
    accounting.noise_for(1.0, delta=1e-5, steps=100)  # the accountant's own import
    started, spent = time.perf_counter(), time.process_time()
    page(math.log(1e-3), schedule=Schedule(100), delta=1e-5, points=100)
    grid, spent = time.perf_counter() - started, time.process_time() - spent
    ratio = median(a / b for a, b in zip(seconds["private"], seconds["plain"], strict=True))
    print(f"{MODELS} models 784-10-10, {KNOWN} shared records, {EPOCHS} full-batch steps")
    rate = MODELS / median(seconds["private"]) * EPOCHS / 100
    print(f"plain    {median(seconds['plain']):.2f} s")
    print(f"private  {median(seconds['private']):.2f} s   ratio {ratio:.2f}   (wanted: at most 2)")
    print(f"private models of 100 steps a second: {rate:.0f}")
    print(f"the paper's training of 784-10-10 (100 steps), largest difference to Opacus: {apart:.1e}   (wanted: 1e-5)")
    print(f"page of bounds, 100 values of epsilon: {grid:.2f} s, {spent:.2f} s of processor   (wanted: under 1)")
    result: dict[str, Any] = {"seconds": seconds, "ratio": ratio, "grid_seconds": grid, "grid_processor": spent}
    result["apart_from_opacus"] = apart
    Path("results").mkdir(exist_ok=True)
    Path("results/protection.json").write_text(json.dumps(result, indent=2))


def _apart_from_opacus(X: Tensor, y: Tensor) -> float:
    """The largest difference in a weight after the paper's training with the same clipping and the same noise."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    recipe = Recipe(
        widths=[784, 10, 10], activation="elu", learning_rate=0.2, momentum=0.9, epochs=100,
        privacy=Privacy(noise_multiplier=1.0, clip=1.0, noise_seed=3),
    )  # fmt: skip
    ours, theirs = recipe.train(X, y), recipe.initial_model()
    wrapped = GradSampleModule(theirs)
    optimiser = DPOptimizer(
        recipe.optimiser_for(theirs), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=len(X),
        generator=torch.Generator().manual_seed(3),
    )  # fmt: skip
    for _ in range(recipe.epochs):
        optimiser.zero_grad()
        recipe.loss_of(wrapped(X.clone().requires_grad_()), y).backward()
        optimiser.step()
    return max(float((a - b).detach().abs().max()) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


if __name__ == "__main__":
    main()

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
    print(f"page of bounds, 100 values of epsilon: {grid:.2f} s, {spent:.2f} s of processor   (wanted: under 1)")
    result: dict[str, Any] = {"seconds": seconds, "ratio": ratio, "grid_seconds": grid, "grid_processor": spent}
    Path("results").mkdir(exist_ok=True)
    Path("results/protection.json").write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()

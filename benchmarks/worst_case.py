"""Worst-case learning: error and queries on random networks, clusters and bumps, and bumps found against the grid.

Chen 2021 promises a polynomial; its algorithm as printed (``method="paper"``) is run beside ours on the smallest size.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import torch

import divulge
from divulge.extraction import Approximation, worst_case
from divulge.models import ReluNetwork

SIZES = ((10, 20), (20, 50), (50, 100))  # inputs, hidden units
KINDS = (("random", 0.0), ("clusters", 1e-2), ("clusters", 1e-4), ("clusters", 1e-6), ("bumps", 0.3))
SEEDS = range(20, 23)
FRESH = 4000


def network(kind: str, inputs: int, width: int, seed: int, size: float) -> ReluNetwork:
    """Random neurons; neurons within ``size`` of few centres; or tents of width ``size`` that vanish elsewhere."""
    rng = np.random.default_rng(seed)
    s = rng.choice([-1.0, 1.0], size=width)
    if kind == "bumps":
        n = width // 3
        a = rng.normal(size=(n, inputs))
        a /= np.linalg.norm(a, axis=1, keepdims=True)
        o = rng.normal(size=n)
        W, b = np.concatenate([a, a, 2 * a]), np.concatenate([-o, -o - size, -2 * o - size])
        s = np.concatenate([np.ones(2 * n), -np.ones(n)])
    else:
        centres = width if kind == "random" else width // 5
        owner = np.arange(width) if kind == "random" else rng.integers(centres, size=width)
        facing = rng.choice([-1.0, 1.0], size=width)
        W = (rng.normal(size=(centres, inputs))[owner] + size * rng.normal(size=(width, inputs))) / np.sqrt(inputs)
        b = 0.5 * rng.normal(size=centres)[owner] + size * rng.normal(size=width)
        W, b = W * facing[:, None], b * facing
    return ReluNetwork(*(torch.from_numpy(part) for part in (W, b, s[None])))


def relative_error(stolen: Approximation, target: ReluNetwork, inputs: int) -> float:
    """Squared error over variance on inputs that no attack saw."""
    X = torch.randn(FRESH, inputs, generator=torch.Generator().manual_seed(77), dtype=torch.float64)
    with torch.no_grad():
        truth = target(X)
        return float(((stolen.model(X) - truth) ** 2).mean() / truth.var())


def measure(kind: str, size: float, inputs: int, units: int, seed: int, **options: object) -> dict[str, object]:
    target = network(kind, inputs, units, seed, size)
    started = time.perf_counter()
    stolen = worst_case(divulge.oracle(target, access="value"), seed=seed, **options)
    return {
        "kind": kind,
        "size": size,
        "inputs": inputs,
        "width": units,
        "seed": seed,
        "method": stolen.method,
        "error": relative_error(stolen, target, inputs),
        "neurons": stolen.width,
        "queries": stolen.queries,
        "seconds": time.perf_counter() - started,
        "grid": stolen.facts["grid"],
    }


def show(row: dict[str, object]) -> None:
    per = float(str(row["queries"])) / (int(str(row["inputs"])) * int(str(row["width"])))
    print(
        f"{row['kind']:9} {row['size']:7} ({row['inputs']}, {row['width']}) {row['method']:10} "
        f"error {row['error']:.1e} neurons {row['neurons']:4} queries {per:5.1f} k d  {row['seconds']:.1f} s",
        flush=True,
    )


def main() -> None:
    """Print the tables and write results/worst_case.json."""
    rows = []
    for kind, size in KINDS:
        for inputs, width in SIZES:
            for seed in SEEDS:
                rows.append(measure(kind, size, inputs, width, seed))
                show(rows[-1])
    for seed in SEEDS:
        rows.append(measure("random", 0.0, 10, 20, seed, method="paper", width=20, grid=60))
        show(rows[-1])
    print("\nbumps of a width that a grid of so many samples finds (of 5 networks, error below 1e-3)")
    for size in (0.3, 0.1, 0.03, 0.01):
        for grid in (64, 256, 1024, 4096):
            tried = [measure("bumps", size, 10, 18, seed, grid=grid, epsilon=0.9) for seed in range(20, 25)]
            rows += tried
            print(f"width {size:5} grid {grid:5}: {sum(float(str(r['error'])) < 1e-3 for r in tried)}/5", flush=True)
    Path("results").mkdir(exist_ok=True)
    Path("results/worst_case.json").write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()

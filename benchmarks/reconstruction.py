"""Training digits out of the weights: 784-128-1 networks trained to their margin on 20 MNIST digits, fresh sets.

``python -m benchmarks.reconstruction [--sets 3] [--first 10] [--steps 600]`` prints a row a set: digits found at
correlation 0.9 counted one-to-one, with the training mean known and inferred, beside unseen digits and broken weights.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from divulge import datasets, reconstruction
from divulge.reconstruction import Settings, baselines, margin

DIGITS, WIDTH, UNSEEN, ALIKE = 20, 128, 200, 0.9


def measure(seed: int, settings: Settings) -> dict[str, Any]:
    """One fresh set of digits."""
    mnist = datasets.load("mnist")
    data = mnist.binary().subset(DIGITS, seed=seed)
    X, y, mean = data.train.X.double(), data.train.y, data.train.X.double().mean(dim=0)
    order = torch.randperm(len(mnist.test.X), generator=torch.Generator().manual_seed(seed))
    unseen = mnist.test.X[order[:UNSEEN]].double() - mean
    started = time.perf_counter()
    start = margin.network([784, WIDTH, 1], first_scale=2e-3, balanced=True, seed=seed)
    model = margin.to_margin(start, X - mean, y, extra_epochs=2000).model
    row: dict[str, Any] = {"seed": seed, "train_seconds": time.perf_counter() - started}
    found = reconstruction.from_weights(model, mean=mean, seed=seed, settings=settings)
    match = found.match(X - mean, unseen, threshold=ALIKE)
    assert match.control is not None
    blind = reconstruction.from_weights(model, seed=seed, settings=settings)
    broken = reconstruction.from_weights(
        baselines.broken(model, seed=seed), mean=mean, n=found.rank, seed=seed, settings=settings
    )
    return row | {
        "rank": found.rank, "samples": len(found.samples), "found": match.found(), "precision": match.precision(),
        "blind": blind.match(X - mean, unseen, mean=mean, threshold=ALIKE).found(),
        "broken": broken.match(X - mean, unseen, threshold=ALIKE).found(),
        "unseen_above": int((match.control.correlation > ALIKE).sum()), "p_value": match.p_value,
        "seconds": found.seconds,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=3)
    parser.add_argument("--first", type=int, default=10)
    parser.add_argument("--steps", type=int, default=600)
    chosen, _ = parser.parse_known_args()
    settings = Settings(steps=chosen.steps)
    rows = []
    print("| set | rank | samples | found | mean inferred | broken weights | unseen above 0.9 | precision | p | s |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for seed in range(chosen.first, chosen.first + chosen.sets):
        row = measure(seed, settings)
        rows.append(row)
        shown = [
            seed, row["rank"], row["samples"], f"{row['found']}/{DIGITS}", row["blind"], row["broken"],
            f"{row['unseen_above']}/{UNSEEN}", f"{row['precision']:.2f}", f"{row['p_value']:.1e}",
            f"{row['seconds']:.1f}",
        ]  # fmt: skip
        print("| " + " | ".join(str(cell) for cell in shown) + " |", flush=True)
    folder = Path("results")
    folder.mkdir(exist_ok=True)
    (folder / "reconstruction.json").write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()

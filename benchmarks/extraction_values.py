"""Extraction from values: rows asked over the number of parameters, error and time, beside the printed cost.

The printed Algorithm 1-MQ takes a gradient by d + 1 values at each step of about 40 bisections a neuron, so its cost on
the same scale is about 40; ours is measured.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch

import divulge
from divulge.models import ReluNetwork

SIZES = ((64, 64, 10), (100, 32, 10), (784, 128, 3))  # inputs, hidden units, networks
FRESH = 1000


def network(inputs: int, width: int, seed: int) -> ReluNetwork:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return ReluNetwork(normal(width, inputs) / inputs**0.5, 0.5 * normal(width), normal(1, width) / width**0.5)


def main() -> None:
    """Print the table and write results/extraction_values.json."""
    rows = []
    print("inputs  units  exact  rows / ((h+1)(d+1))  worst error / spread  seconds")
    for inputs, width, networks in SIZES:
        for seed in range(networks):
            target = network(inputs, width, seed)
            started = time.perf_counter()
            copy = divulge.extraction.from_values(divulge.oracle(target), seed=seed)
            seconds = time.perf_counter() - started
            error = copy.check(divulge.oracle(target), FRESH, seed=seed + 1) / copy.scale
            ratio = copy.queries / ((width + 1) * (inputs + 1))
            found = {"inputs": inputs, "units": width, "seed": seed, "exact": copy.exact, "width": copy.width}
            rows.append({**found, "ratio": ratio, "error": error, "seconds": seconds})
            print(f"{inputs:6d} {width:6d}  {copy.exact!s:5}  {ratio:19.3f}  {error:20.1e}  {seconds:7.2f}", flush=True)
    Path("results").mkdir(exist_ok=True)
    Path("results/extraction_values.json").write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()

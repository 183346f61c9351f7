"""Two hidden layers from gradients: how many networks are certified, at what cost, and whether a certificate ever lies.

``python -m benchmarks extraction_deep``; networks are drawn with torch's default initialisation, or Gaussian weights
and biases, with fresh seeds, and none is left out.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import torch
from torch import nn

import divulge
from divulge.extraction import deep_from_gradients
from divulge.models import MLP


def network(widths: list[int], seed: int, *, gaussian: bool) -> MLP:
    torch.manual_seed(seed)
    model = MLP(widths).double()
    if gaussian:
        for layer in model:
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=layer.in_features**-0.5)
                nn.init.normal_(layer.bias, std=0.5)
    return model


def measure(widths: list[int], networks: int, *, gaussian: bool) -> dict[str, object]:
    certified, false, queries, seconds = 0, 0, [], []
    for seed in range(networks):
        model = network(widths, 30_000 + seed, gaussian=gaussian)
        stolen = deep_from_gradients(divulge.oracle(model, access="gradient"), seed=seed)
        X = torch.randn(10_000, widths[0], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        with torch.no_grad():
            error = float((model(X) - stolen.model(X)).abs().max() / model(X).std(dim=0).max())
        certified += stolen.exact
        false += stolen.exact and error > 1e-9
        queries.append(stolen.ledger.gradient)
        seconds.append(stolen.seconds)
    row: dict[str, object] = {
        "widths": widths, "weights": "gaussian" if gaussian else "torch default", "networks": networks,
        "certified": certified, "false": false, "median_gradients": statistics.median(queries),
        "most_gradients": max(queries), "seconds": statistics.mean(seconds),
    }  # fmt: skip
    print("  " + "  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    return row


def main() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    networks = 50
    rows = [
        measure(widths, networks, gaussian=gaussian)
        for widths in ([20, 16, 16, 1], [50, 16, 16, 1], [50, 32, 32, 1], [20, 16, 16, 5])
        for gaussian in (False, True)
    ]
    torch.set_num_threads(threads)
    Path("results").mkdir(exist_ok=True)
    Path("results/extraction_deep.json").write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()

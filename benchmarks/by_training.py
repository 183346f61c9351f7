"""Learning a copy on MNIST, as Milli et al. 2019 (section 4) set it up: accuracy and agreement against queries.

The target learns from 50,000 training pictures, queries are drawn from the other 10,000, and the 10,000 test pictures
judge the copy. Each line printed is one copy, and is added to results/by_training/points.jsonl; the target is trained
once and kept beside them.

    python -m benchmarks.by_training --model one-hidden --queries 10,30,100 --seeds 2
    python -m benchmarks.by_training --model two-conv --queries 10,30 --seeds 1 --ways 'gradients|k-means'
    python -m benchmarks.by_training --steps-only        # a matching step against a plain training step
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import divulge
from divulge import models
from divulge.extraction import by_training
from divulge.extraction.answers import understand
from divulge.extraction.matching_loss import normalised
from divulge.extraction.students import logits_of
from divulge.oracles.guards import Smoothed

OUT = Path("results/by_training")
WAYS: dict[str, dict[str, Any]] = {
    "gradients": {},
    "gradients, as printed": {"method": "paper"},
    "values": {"match": "values"},
    "values, as printed": {"match": "values", "method": "paper"},
    "k-means": {"choose": "k-means"},
    "active": {"choose": "active"},
    "k-means + self-training": {"choose": "k-means", "unlabelled": True},
    "self-training": {"unlabelled": True},
    "ensemble of 5": {"ensemble": 5},
    "predicted class": {"classes": "predicted"},
    "probabilities": {"output": "probabilities"},
    "gaussian": {"inputs": "gaussian"},
    "smoothgrad": {"smoothed": 1.0},
    "smoothgrad x1000": {"smoothed": 1000.0},
}


def parts() -> tuple[divulge.datasets.Rows, Tensor, divulge.datasets.Rows]:
    """The target's 50,000 pictures, the 10,000 to query with, and the test pictures."""
    data = divulge.datasets.load("mnist")
    order = torch.randperm(len(data.train.X), generator=torch.Generator().manual_seed(0))
    own, other = order[:50_000], order[50_000:]
    return divulge.datasets.Rows(data.train.X[own], data.train.y[own]), data.train.X[other], data.test


def target(name: str, rows: divulge.datasets.Rows, epochs: float) -> nn.Module:
    """The trained target, from the last run if there was one."""
    folder = OUT / name
    if (folder / "model.json").exists():
        return models.load(folder).eval()
    model = models.build(name, shape=(1, 28, 28), outputs=10, seed=0)
    answer, generator = logits_of(model), torch.Generator().manual_seed(0)
    optimiser = torch.optim.Adam(model.parameters())
    steps = int(epochs * len(rows.X) / 64)
    order = torch.cat([torch.randperm(len(rows.X), generator=generator) for _ in range(math.ceil(epochs))])
    for step in range(steps):
        pick = order[64 * step : 64 * step + 64]
        optimiser.param_groups[0]["lr"] = 1.5e-3 * 0.5 * (1 + math.cos(math.pi * step / steps))
        loss = functional.cross_entropy(answer(rows.X[pick]), rows.y[pick])
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    models.save(model.eval(), folder)
    return model


def labels(model: nn.Module, X: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([logits_of(model)(part).argmax(dim=1) for part in torch.split(X, 500)])


def one(model: nn.Module, student: str, way: str, q: int, seed: int, pool: Tensor, steps: int | None) -> Any:
    options = dict(WAYS[way])
    oracle: Any = divulge.oracle(model, access="gradient", output=options.pop("output", None))
    if "smoothed" in options:
        oracle = Smoothed(oracle, options.pop("smoothed") * float(pool.std()), samples=10, seed=seed)
    if options.get("unlabelled"):
        options["unlabelled"] = pool
    return by_training(oracle, student, options.pop("inputs", pool), queries=q, seed=seed, steps=steps, **options)


def step_cost(name: str, rows: int = 20, repeats: int = 15) -> tuple[float, float]:
    """Seconds of one matching step and of one plain training step, the median of several."""
    model, student = (models.build(name, shape=(1, 28, 28), outputs=10, seed=seed) for seed in (0, 1))
    X = torch.rand(rows, 784, generator=torch.Generator().manual_seed(0))
    values, gradients = divulge.oracle(model, access="gradient").gradient(X)
    answers = understand(X, values.double(), gradients.double(), outputs="logits")
    one = 1 if name == "two-conv" else None
    loss = normalised(answers, gradients=1.0, values=0.1, combinations=one, sharpness=3.0)
    batch, generator, answer = answers.to(torch.float32, "cpu"), torch.Generator().manual_seed(0), logits_of(student)
    wanted = values.argmax(dim=1)

    def timed(of: Any) -> float:
        times = []
        for _ in range(repeats):
            student.zero_grad()
            began = time.perf_counter()
            of().backward()
            times.append(time.perf_counter() - began)
        return statistics.median(times)

    return (
        timed(lambda: loss(answer, batch, generator)),
        timed(lambda: functional.cross_entropy(answer(X), wanted)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", default="one-hidden")
    parser.add_argument("--student", default=None, help="the target's own architecture by default")
    parser.add_argument("--queries", default="10,30,100")
    parser.add_argument(
        "--ways", default="gradients|values|values, as printed", help="separated by |: " + " | ".join(WAYS)
    )
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--epochs", type=float, default=6)
    parser.add_argument("--steps-only", action="store_true")
    chosen = parser.parse_args()
    if chosen.steps_only:
        for name in ("one-hidden", "two-conv"):
            matching, plain = step_cost(name)
            print(f"{name}: matching {1e3 * matching:.1f} ms, plain {1e3 * plain:.1f} ms, {matching / plain:.1f} times")
        return
    OUT.mkdir(parents=True, exist_ok=True)
    own, pool, test = parts()
    model = target(chosen.model, own, chosen.epochs)
    said = labels(model, test.X)
    print(f"target {chosen.model}: {100 * float((said == test.y).float().mean()):.2f} %", flush=True)
    student = chosen.student or chosen.model
    lines: list[dict[str, Any]] = []
    for q in map(int, chosen.queries.split(",")):
        for way in chosen.ways.split("|"):
            for seed in range(chosen.seeds):
                copy = one(model, student, way.strip(), q, seed, pool, chosen.steps)
                got = labels(copy.model, test.X)
                lines.append({
                    "model": chosen.model, "student": student, "way": way.strip(), "queries": q, "seed": seed,
                    "accuracy": 100 * float((got == test.y).float().mean()),
                    "agreement": 100 * float((got == said).float().mean()), "seconds": copy.seconds,
                    "steps": copy.facts["steps"],
                })  # fmt: skip
                print(json.dumps(lines[-1]), flush=True)
    with (OUT / "points.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


if __name__ == "__main__":
    main()

"""The targets of Milli et al. 2019, trained once and kept: one recipe a network, the same weights for every experiment.

    python -m experiments.papers.targets                    # trains the three of the results, or says where they are
    python -m experiments.papers.targets mnist/two-conv

Splits as in the paper: the target learns from 50,000 of MNIST's training pictures (40,000 of CIFAR-10's), the copy
queries 10,000 others, and 10,000 test pictures judge. Targets are kept beside the data sets, in
~/.cache/divulge/targets, with the accuracy they reached; one whose recipe has changed is trained anew.
"""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from divulge import datasets, models
from divulge.core.errors import InvalidInput
from divulge.core.progress import report
from divulge.core.storage import replacing, write_json
from divulge.datasets.image_sets import data_root

BATCH = 64
KEEP_EVERY = 200
"""Steps after which an unfinished training is kept, to go on from there."""


@dataclass(frozen=True)
class Made:
    """How a target is trained: AdamW along half a cosine, batches of 64."""

    data: str
    architecture: str
    epochs: float
    learning_rate: float = 2e-3
    weight_decay: float = 0.0
    flips: bool = False
    """Whether every other picture is mirrored, left to right."""
    options: dict[str, Any] = field(default_factory=dict)


EXAMPLE = {"filters": [10, 20], "dense": 50, "padding": 0}
"""The two-conv of PyTorch's own MNIST example: 21,840 weights."""
TARGETS = {
    "digits/softmax": Made("digits", "softmax", 40, 1e-2),
    "digits/one-hidden": Made("digits", "one-hidden", 60, 5e-3, options={"width": 32}),
    "digits/two-conv": Made("digits", "two-conv", 30, 5e-3, options={"filters": [8, 8], "dense": 32}),
    "mnist/softmax": Made("mnist", "softmax", 3),
    "mnist/one-hidden": Made("mnist", "one-hidden", 20, weight_decay=0.05),
    "mnist/two-conv": Made("mnist", "two-conv", 3),
    "mnist/two-conv-small": Made("mnist", "two-conv", 3, options={"filters": [8, 16], "dense": 32}),
    "mnist/two-conv-half": Made("mnist", "two-conv", 3, options={"filters": [16, 32], "dense": 64}),
    "mnist/two-conv-example": Made("mnist", "two-conv", 3, options=EXAMPLE),
    "mnist/two-conv-tiny": Made("mnist", "two-conv", 3, options={"filters": [4, 8], "dense": 16}),
    "cifar10/two-conv-example": Made("cifar10", "two-conv", 8, weight_decay=0.05, flips=True, options=EXAMPLE),
    "cifar10/two-conv": Made("cifar10", "two-conv", 8, weight_decay=0.05, flips=True),
    "cifar10/two-conv-small": Made(
        "cifar10", "two-conv", 8, weight_decay=0.05, flips=True, options={"filters": [8, 16], "dense": 32}
    ),
    "cifar10/vgg11": Made("cifar10", "vgg11", 5, flips=True, options={"width": 1 / 16}),
    "cifar10/resnet18": Made("cifar10", "resnet18", 2, flips=True, options={"width": 1 / 16}),
    "cifar10/vgg11-quarter": Made("cifar10", "vgg11", 8, flips=True, options={"width": 1 / 4}),
    "cifar10/resnet18-quarter": Made("cifar10", "resnet18", 8, flips=True, options={"width": 1 / 4}),
}
"""By name; VGG-11 and ResNet-18 at a sixteenth and a quarter of their width."""
USUAL = ("mnist/one-hidden", "mnist/two-conv", "cifar10/two-conv")


def parts(data: datasets.Dataset) -> tuple[datasets.Rows, datasets.Rows]:
    """The target's own rows, and those that a copy may ask about."""
    n = len(data.train.X)
    aside = 10_000 if n >= 50_000 else n // 3
    own, other = datasets.split(data.train, n - aside, aside, seed=0)
    return own, other


def target(name: str) -> nn.Module:
    """The trained target, from disk if it was trained before."""
    if name not in TARGETS:
        raise InvalidInput(f"There is no target {name!r}; choose one of {', '.join(TARGETS)}.")
    made, folder = TARGETS[name], _folder(name)
    about = folder / "made.json"
    if about.exists() and Made(**json.loads(about.read_text())["made"]) == made:
        return models.load(folder)
    data = datasets.load(made.data)
    began = time.perf_counter()
    model = _trained(made, data, folder / "unfinished.pt")
    models.save(model, folder)
    (folder / "unfinished.pt").unlink(missing_ok=True)
    right = float((labels(model, data.test.X) == data.test.y).double().mean())
    facts = {"made": asdict(made), "accuracy": right, "seconds": time.perf_counter() - began}
    write_json(about, facts)
    return model


def _folder(name: str) -> Path:
    return data_root().parent / "targets" / name.replace("/", "-")


def labels(model: nn.Module, X: Tensor) -> Tensor:
    """What the model says of each row."""
    shape = getattr(model, "input_shape", X.shape[1:])
    dtype = next(model.parameters()).dtype
    with torch.no_grad():
        return torch.cat([model(part.to(dtype).reshape(-1, *shape)).argmax(dim=1) for part in torch.split(X, 500)])


def _trained(made: Made, data: datasets.Dataset, unfinished: Path) -> nn.Module:
    """Train, from where an earlier run was stopped if ``unfinished`` holds one of the same recipe."""
    rows, _ = parts(data)
    model = models.build(made.architecture, shape=data.shape, outputs=len(data.classes), seed=0, **made.options)
    generator = torch.Generator().manual_seed(1)
    optimiser = torch.optim.AdamW(model.parameters(), weight_decay=made.weight_decay)
    passes = [torch.randperm(len(rows.X), generator=generator) for _ in range(math.ceil(made.epochs))]
    batches = torch.split(torch.cat(passes)[: int(made.epochs * len(rows.X))], BATCH)
    shape = getattr(model, "input_shape", data.shape)
    first = 0
    if unfinished.exists() and (kept := torch.load(unfinished, weights_only=True))["made"] == asdict(made):
        first = kept["steps"]
        model.load_state_dict(kept["model"])
        optimiser.load_state_dict(kept["optimiser"])
        generator.set_state(kept["generator"])
    model.train()
    for step in range(first, len(batches)):
        pick = batches[step]
        optimiser.param_groups[0]["lr"] = made.learning_rate * 0.5 * (1 + math.cos(math.pi * step / len(batches)))
        X = rows.X[pick].reshape(-1, *shape)
        if made.flips:
            mirrored = torch.rand(len(X), generator=generator) < 0.5
            X[mirrored] = X[mirrored].flip(-1)
        loss = functional.cross_entropy(model(X), rows.y[pick])
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        if (step + 1) % KEEP_EVERY == 0:
            kept = {"made": asdict(made), "steps": step + 1, "model": model.state_dict(),
                    "optimiser": optimiser.state_dict(), "generator": generator.get_state()}  # fmt: skip
            with replacing(unfinished) as part:
                torch.save(kept, part)
        if step % 100 == 0 or step + 1 == len(batches):
            report(f"training {made.data}/{made.architecture}", step + 1, len(batches))
    return model.eval()


def main(names: list[str]) -> None:
    for name in names or USUAL:
        target(name)
        facts = json.loads((_folder(name) / "made.json").read_text())
        print(f"{name}: {100 * facts['accuracy']:.2f} % of the test labels, trained in {facts['seconds']:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])

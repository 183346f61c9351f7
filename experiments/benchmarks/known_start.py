"""Training pictures out of the difference of two checkpoints: networks, extractors, and what stops it.

python -m experiments known_start --seed 400 --seeds 2
python -m experiments known_start --seed 400 --only "MNIST, 100"   # one part
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from divulge import datasets, models, reconstruction
from divulge.core.errors import DivulgeError
from divulge.reconstruction.matching import correlation
from divulge.training import Privacy, Recipe
from experiments.plan import Plan

RATE, MOMENTUM, STEPS = 0.1, 0.9, 100
UNSEEN = 500
HIGH = 0.9


@dataclass(frozen=True)
class Setting:
    """One row of the table: the data, the network, its training, and what is done to the released weights."""

    data: str
    n: int
    widths: tuple[int, ...] = (1000, 10)
    centred: bool = True
    """CIFAR-10 in [-1, 1]; otherwise inputs are in [0, 1]."""
    extractor: str = ""
    recipe: dict[str, Any] = field(default_factory=dict)
    release: Callable[[Tensor], Tensor] | None = None


def eight_bits(W: Tensor) -> Tensor:
    """Rounded to 8 bits, symmetric, one scale for each tensor."""
    step = W.abs().max() / 127
    return (W / step).round() * step


def rounded(kind: torch.dtype, W: Tensor) -> Tensor:
    return W.to(kind).to(W.dtype)


SETTINGS = {
    "CIFAR-10, 50": Setting("cifar10", 50),
    "CIFAR-10, 50, 1000-1000-10": Setting("cifar10", 50, (1000, 1000, 10)),
    "CIFAR-10, 50, batches of 16": Setting(
        "cifar10", 50, recipe={"batch_size": 16, "learning_rate": 0.02, "epochs": 25}
    ),
    "CIFAR-10, 50, weight decay 5e-4": Setting("cifar10", 50, recipe={"weight_decay": 5e-4}),
    "CIFAR-10, 100": Setting("cifar10", 100),
    "CIFAR-10, 40, in [0, 1]": Setting("cifar10", 40, centred=False),
    "Fashion-MNIST, 30": Setting("fashion-mnist", 30),
    "MNIST, 50": Setting("mnist", 50),
    "MNIST, 100": Setting("mnist", 100),
    "frozen convolution, CIFAR-10, 20": Setting("cifar10", 20, extractor="conv"),
    "frozen convolution and max-pool, CIFAR-10, 20": Setting("cifar10", 20, extractor="pool"),
    "float16": Setting("cifar10", 50, release=partial(rounded, torch.float16)),
    "bfloat16": Setting("cifar10", 50, release=partial(rounded, torch.bfloat16)),
    "8 bits": Setting("cifar10", 50, release=eight_bits),
    "400 steps": Setting("cifar10", 50, recipe={"epochs": 400}),
    "one step": Setting("cifar10", 50, recipe={"epochs": 1, "momentum": 0.0}),
    "Adam": Setting("cifar10", 50, recipe={"optimiser": "adam", "learning_rate": 1e-3}),
    "DP-SGD, noise 0.01": Setting("cifar10", 50, recipe={"privacy": Privacy(noise_multiplier=0.01, noise_seed=0)}),
    "DP-SGD, noise 1": Setting("cifar10", 50, recipe={"privacy": Privacy(noise_multiplier=1.0, noise_seed=0)}),
}  # fmt: skip


def private(setting: Setting, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """The private pictures and their labels, and unseen ones."""
    rows = datasets.load(setting.data).train
    order = torch.randperm(len(rows.X), generator=torch.Generator().manual_seed(seed))[: setting.n + UNSEEN]
    X, y = rows.X[order].float().flatten(1), rows.y[order].long()
    X = X / 255 if float(X.max()) > 1.5 else X
    if setting.data == "cifar10" and setting.centred:
        X = 2 * X - 1
    return X[: setting.n], y[: setting.n], X[setting.n :]


def convolutional(kind: str, shape: tuple[int, ...], seed: int) -> nn.Module:
    """An extractor in front of two dense layers."""
    front: list[nn.Module] = [nn.Conv2d(shape[0], 16 if kind == "conv" else 32, 3, padding=1), nn.ReLU()]
    front += [nn.MaxPool2d(2)] if kind == "pool" else []
    width = nn.Sequential(*front, nn.Flatten())(torch.zeros(1, *shape)).shape[1]
    model = nn.Sequential(*front, nn.Flatten(), nn.Linear(width, 500), nn.ReLU(), nn.Linear(500, 10))
    return models.initialise(model, seed=seed)


def dense_only(start: nn.Module, X: Tensor, y: Tensor, steps: int = 60, rate: float = 0.02) -> nn.Module:
    """The model after training all layers but the first."""
    model = copy.deepcopy(start)
    descent = torch.optim.SGD(
        [parameter for name, parameter in model.named_parameters() if not name.startswith("0.")], lr=rate, momentum=0.9
    )
    for _ in range(steps):
        descent.zero_grad()
        nn.functional.cross_entropy(model(X), y).backward()
        descent.step()
    return model


def trained(setting: Setting, seed: int) -> tuple[nn.Module, nn.Module, tuple[Tensor, Tensor, Tensor], float]:
    """The start, the released model, the data and the seconds of the training."""
    data = private(setting, seed)
    X, y = data[:2]
    began = time.perf_counter()
    if setting.extractor:
        shape = (3, 32, 32)
        start = convolutional(setting.extractor, shape, seed)
        return start, dense_only(start, X.reshape(-1, *shape), y), data, time.perf_counter() - began
    usual = {"learning_rate": RATE, "momentum": MOMENTUM, "epochs": STEPS, "seed": seed}
    recipe = Recipe(widths=[X.shape[1], *setting.widths], **{**usual, **setting.recipe})
    model = recipe.train(X, y)
    if setting.release is not None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(setting.release(parameter))
    return recipe.initial_model(), model, data, time.perf_counter() - began


def attacked(name: str, seed: int) -> dict[str, Any]:
    """One network: how many pictures came back, and how many certificates are right."""
    setting = SETTINGS[name]
    start, model, (X, y, unseen), training = trained(setting, seed)
    with torch.no_grad():
        shaped = X.reshape(-1, 3, 32, 32) if setting.extractor else X
        fits = float((model(shaped).argmax(dim=1) == y).double().mean())
    row: dict[str, Any] = {"what": name, "seed": seed, "n": setting.n, "fits": fits, "training_seconds": training}
    low = -1.0 if setting.data == "cifar10" and setting.centred else 0.0
    shape = (3, 32, 32) if setting.data == "cifar10" else (1, 28, 28)
    try:
        found = reconstruction.from_weights(model, start=start, seed=seed, value_range=(low, 1.0), shape=shape)
    except DivulgeError as error:
        return {**row, "refused": str(error)}
    judged = found.match(X, unseen=unseen, mean=torch.zeros(X.shape[1]))
    likeness = correlation(found.samples, X).max(dim=1).values
    assert found.certified is not None
    assert judged.ssim is not None
    assert judged.control is not None
    error = (judged.rebuilt - judged.truth).square().mean(dim=1).sqrt() / (1.0 - low)
    return {
        **row, "rank": found.rank, "found": judged.found(HIGH), "ssim_above_0.9": int((judged.ssim > HIGH).sum()),
        "certified": int(found.certified.sum()), "certified_right": int((likeness[found.certified] > HIGH).sum()),
        "unseen_above_0.9": int((judged.control.correlation > HIGH).sum()), "median_rms": float(error.median()),
        "labels_right": int((found.labels == y[correlation(found.samples, X).argmax(dim=1)]).sum()),
        "seconds": found.seconds,
    }  # fmt: skip


def run(plan: Plan) -> dict[str, Any]:
    """Every setting on fresh networks."""
    seeds = plan.seeds_of(2)
    return plan.measure(
        "known_start", {name: partial(lambda named: [attacked(named, s) for s in seeds], name) for name in SETTINGS}
    )

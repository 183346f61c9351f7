"""Training pictures out of the difference of two checkpoints: networks, extractors, and what stops it.

python -m experiments known_start --seed 400 --seeds 2
python -m experiments known_start --seed 400 --only "MNIST, 100"   # one part
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from divulge import datasets, models, reconstruction
from divulge.core.errors import DivulgeError
from divulge.reconstruction.matching import correlation
from divulge.training import Privacy, Recipe
from divulge.training.private.accounting import privacy_spent
from experiments.plan import Plan

RATE, MOMENTUM, STEPS = 0.1, 0.9, 100
UNSEEN = 500
PRINTED = 3_000
"""Iterations of the printed scheme: a thirtieth of what the paper takes."""
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
    """One of ``FRONTS``, in front of two dense layers."""
    trained_front: bool = False
    """Whether the extractor is trained too."""
    other_classes: bool = False
    """Fine-tuned on classes 5 to 9, from a network that 5,000 pictures of classes 0 to 4 trained."""
    told: bool = False
    """Whether the attack is told n: the spectrum shows none."""
    seconds: float | None = None
    """The time of the attack, in wall-clock seconds; None for its default."""
    recipe: dict[str, Any] = field(default_factory=dict)
    release: Callable[[Tensor], Tensor] | None = None


def eight_bits(W: Tensor) -> Tensor:
    """Rounded to 8 bits, symmetric, one scale for each tensor."""
    step = W.abs().max() / 127
    return (W / step).round() * step


def rounded(kind: torch.dtype, W: Tensor) -> Tensor:
    return W.to(kind).to(W.dtype)


ADAM = {"optimiser": "adam", "learning_rate": 1e-3}
SETTINGS = {
    "CIFAR-10, 50": Setting("cifar10", 50),
    "CIFAR-10, 50, 1000-1000-10": Setting("cifar10", 50, (1000, 1000, 10)),
    "CIFAR-10, 50, batches of 16": Setting(
        "cifar10", 50, recipe={"batch_size": 16, "learning_rate": 0.02, "epochs": 25}
    ),
    "CIFAR-10, 50, weight decay 5e-4": Setting("cifar10", 50, recipe={"weight_decay": 5e-4}),
    "CIFAR-10, 100": Setting("cifar10", 100),
    "CIFAR-10, 200": Setting("cifar10", 200),
    "CIFAR-10, 500": Setting("cifar10", 500, seconds=600.0),
    "other classes, CIFAR-10, 50": Setting("cifar10", 50, other_classes=True, recipe={"learning_rate": 0.02}),
    "CIFAR-10, 40, in [0, 1]": Setting("cifar10", 40, centred=False),
    "Fashion-MNIST, 30": Setting("fashion-mnist", 30),
    "MNIST, 50": Setting("mnist", 50),
    "MNIST, 100": Setting("mnist", 100),
    "frozen convolution, CIFAR-10, 20": Setting("cifar10", 20, extractor="conv"),
    "frozen convolution, CIFAR-10, 50": Setting("cifar10", 50, extractor="conv"),
    "frozen convolution and max-pool, CIFAR-10, 20": Setting("cifar10", 20, extractor="pool"),
    "two frozen convolutions, CIFAR-10, 20": Setting("cifar10", 20, extractor="two"),
    "trained convolution, CIFAR-10, 20": Setting("cifar10", 20, extractor="conv", trained_front=True),
    "trained convolution, CIFAR-10, 20, n told": Setting(
        "cifar10", 20, extractor="conv", trained_front=True, told=True
    ),
    "float16": Setting("cifar10", 50, release=partial(rounded, torch.float16)),
    "bfloat16": Setting("cifar10", 50, release=partial(rounded, torch.bfloat16)),
    "8 bits": Setting("cifar10", 50, release=eight_bits),
    "400 steps": Setting("cifar10", 50, recipe={"epochs": 400}),
    "one step": Setting("cifar10", 50, recipe={"epochs": 1, "momentum": 0.0}),
    "Adam": Setting("cifar10", 50, recipe=ADAM),
    **{f"Adam, {n}, n told": Setting("cifar10", n, told=True, recipe=ADAM) for n in (1, 2, 5, 20)},
    **{f"one step of Adam, {n}": Setting("cifar10", n, recipe={**ADAM, "epochs": 1}) for n in (5, 20, 50)},
    "one step of AdamW, 20": Setting(
        "cifar10", 20, recipe={"optimiser": "adamw", "learning_rate": 3e-4, "weight_decay": 0.01, "epochs": 1}
    ),
    "one step of Adam, MNIST, 20": Setting("mnist", 20, recipe={**ADAM, "epochs": 1}),
    **{
        f"DP-SGD, noise {noise:g}": Setting(
            "cifar10", 50, recipe={"privacy": Privacy(noise_multiplier=noise, noise_seed=0)}
        )
        for noise in (0.01, 1.0, 5.0, 20.0)
    },
}  # fmt: skip


Data = tuple[Tensor, Tensor, Tensor, Tensor]
"""The private pictures and their labels, and unseen ones with theirs."""


def private(setting: Setting, seed: int) -> Data:
    """The pictures of one network."""
    rows = datasets.load(setting.data).train
    kept = (rows.y >= 5).nonzero()[:, 0] if setting.other_classes else torch.arange(len(rows.X))
    order = kept[torch.randperm(len(kept), generator=torch.Generator().manual_seed(seed))[: setting.n + UNSEEN]]
    X, y = rows.X[order].float().flatten(1), rows.y[order].long()
    X = X / 255 if float(X.max()) > 1.5 else X
    if setting.data == "cifar10" and setting.centred:
        X = 2 * X - 1
    return X[: setting.n], y[: setting.n], X[setting.n :], y[setting.n :]


FRONTS: dict[str, Callable[[int], list[nn.Module]]] = {
    "conv": lambda colours: [nn.Conv2d(colours, 16, 3, padding=1), nn.ReLU()],
    "pool": lambda colours: [nn.Conv2d(colours, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)],
    "two": lambda colours: [
        nn.Conv2d(colours, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
    ],
}  # fmt: skip


def convolutional(kind: str, shape: tuple[int, ...], seed: int) -> tuple[nn.Module, int]:
    """An extractor in front of two dense layers, and the number of the extractor's modules."""
    front = FRONTS[kind](shape[0])
    width = nn.Sequential(*front, nn.Flatten())(torch.zeros(1, *shape)).shape[1]
    model = nn.Sequential(*front, nn.Flatten(), nn.Linear(width, 500), nn.ReLU(), nn.Linear(500, 10))
    return models.initialise(model, seed=seed), len(front)


def descended(
    start: nn.Module, X: Tensor, y: Tensor, *, first: int = 0, steps: int = 60, rate: float = 0.02
) -> nn.Module:  # fmt: skip
    """The model after steps of gradient descent on all modules from ``first`` on."""
    model = copy.deepcopy(start)
    moved = [parameter for name, parameter in model.named_parameters() if int(name.split(".")[0]) >= first]
    descent = torch.optim.SGD(moved, lr=rate, momentum=MOMENTUM)
    for _ in range(steps):
        descent.zero_grad()
        nn.functional.cross_entropy(model(X), y).backward()
        descent.step()
    return model


@cache
def pretrained(seed: int, count: int = 5000, steps: int = 250, batch: int = 64) -> nn.Module:
    """A network of 3072-1000-10 that pictures of classes 0 to 4 trained."""
    rows = datasets.load("cifar10").train
    known = (rows.y < 5).nonzero()[:, 0]
    draw = torch.Generator().manual_seed(seed)
    model: nn.Module = Recipe(widths=[3072, 1000, 10], seed=seed).initial_model()
    picked = known[torch.randperm(len(known), generator=draw)[:count]]
    X, y = 2 * rows.X[picked].float().flatten(1) / float(rows.X.max()) - 1, rows.y[picked].long()
    descent = torch.optim.SGD(model.parameters(), lr=0.01, momentum=MOMENTUM)
    for _ in range(steps):
        chosen = torch.randint(count, (batch,), generator=draw)
        descent.zero_grad()
        nn.functional.cross_entropy(model(X[chosen].to(next(model.parameters()))), y[chosen]).backward()
        descent.step()
    return model


def _rate(setting: Setting) -> dict[str, float]:
    return {"rate": setting.recipe.get("learning_rate", RATE)}


def trained(setting: Setting, seed: int) -> tuple[nn.Module, nn.Module, Data, float]:
    """The start, the released model, the data and the seconds of the training."""
    data = private(setting, seed)
    X, y = data[:2]
    began = time.perf_counter()
    if setting.extractor:
        shape = (3, 32, 32)
        start, modules = convolutional(setting.extractor, shape, seed)
        first = 0 if setting.trained_front else modules
        return start, descended(start, X.reshape(-1, *shape), y, first=first), data, time.perf_counter() - began
    if setting.other_classes:
        start = pretrained(seed)
        X = X.to(next(start.parameters()))
        return start, descended(start, X, y, steps=STEPS, **_rate(setting)), data, time.perf_counter() - began
    usual = {"learning_rate": RATE, "momentum": MOMENTUM, "epochs": STEPS, "seed": seed}
    recipe = Recipe(widths=[X.shape[1], *setting.widths], **{**usual, **setting.recipe})
    model = recipe.train(X, y)
    if setting.release is not None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(setting.release(parameter))
    return recipe.initial_model(), model, data, time.perf_counter() - began


def accuracy(model: nn.Module, X: Tensor, y: Tensor, setting: Setting) -> float:
    with torch.no_grad():
        shaped = X.reshape(-1, 3, 32, 32) if setting.extractor else X
        return float((model(shaped.to(next(model.parameters()))).argmax(dim=1) == y).double().mean())


def printed(name: str, seed: int) -> dict[str, Any]:
    """The same network by the scheme of Haim et al. 2022 as printed, which does not take the start; n is told."""
    setting = SETTINGS[name]
    _, model, (X, _, unseen, _), _ = trained(setting, seed)
    found = reconstruction.from_weights(
        model, method="paper", n=setting.n, settings=reconstruction.PaperSettings(iterations=PRINTED), seed=seed
    )
    judged = found.match(X, unseen=unseen, mean=torch.zeros(X.shape[1]))
    assert judged.control is not None
    return {
        "what": name, "seed": seed, "n": setting.n, "found": judged.found(HIGH), "iterations": PRINTED,
        "unseen_above_0.9": int((judged.control.correlation > HIGH).sum()), "seconds": found.seconds,
    }  # fmt: skip


def epsilon(setting: Setting) -> dict[str, float]:
    """The epsilon of a private training at its delta, if its noise were drawn without a seed."""
    privacy = setting.recipe.get("privacy")
    if privacy is None:
        return {}
    spent = privacy_spent(noise_multiplier=privacy.noise_multiplier, steps=STEPS, delta=privacy.delta)
    return {"epsilon": spent.epsilon}


def attacked(name: str, seed: int) -> dict[str, Any]:
    """One network: how many pictures came back, and how many certificates are right."""
    setting = SETTINGS[name]
    start, model, (X, y, unseen, others), training = trained(setting, seed)
    row: dict[str, Any] = {
        "what": name, "seed": seed, "n": setting.n, "fits": accuracy(model, X, y, setting),
        "accuracy": accuracy(model, unseen, others, setting), "training_seconds": training, **epsilon(setting),
    }  # fmt: skip
    began = time.process_time()
    low = -1.0 if setting.data == "cifar10" and setting.centred else 0.0
    shape = (3, 32, 32) if setting.data == "cifar10" else (1, 28, 28)
    try:
        found = reconstruction.from_weights(
            model, start=start, seed=seed, n=setting.n if setting.told else None, value_range=(low, 1.0), shape=shape,
            seconds=setting.seconds,
        )  # fmt: skip
    except DivulgeError as error:
        return {**row, "refused": str(error)}
    processor = time.process_time() - began
    judged = found.match(X, unseen=unseen, mean=torch.zeros(X.shape[1]))
    likeness = correlation(found.samples, X).max(dim=1).values
    assert found.certified is not None
    assert judged.ssim is not None
    assert judged.control is not None
    unlikely = torch.quantile(judged.control.correlation, 0.99)
    error = (judged.rebuilt - judged.truth).square().mean(dim=1).sqrt() / (1.0 - low)
    return {
        **row, "rank": found.rank, "found": judged.found(HIGH), "ssim_above_0.9": int((judged.ssim > HIGH).sum()),
        "above_99_of_100_unseen": int((judged.correlation > unlikely).sum()), "threshold": float(unlikely),
        "certified": int(found.certified.sum()), "certified_right": int((likeness[found.certified] > HIGH).sum()),
        "unseen_above_0.9": int((judged.control.correlation > HIGH).sum()), "median_rms": float(error.median()),
        "labels_right": int((found.labels == y[correlation(found.samples, X).argmax(dim=1)]).sum()),
        "seconds": found.seconds, "processor_seconds": processor,
    }  # fmt: skip


LEVELS = (3, 11, 7, 4, 9, 12, 5, 8, 6, 10, 3, 12, 4, 7, 11, 5, 9, 8, 6, 10, 12, 4, 3, 7)
RICH = tuple(round(4 + 26 * place / 23) for place in range(24))
WIDE = tuple(round(20 + 10 * place / 23) for place in range(24))
WHOLE = 8
TABLES = {
    **{f"table of 24 categories and 8 whole numbers, {n} rows": (n, LEVELS) for n in (20, 50, 60, 75, 100)},
    "table of 48 categories and 8 whole numbers, 200 rows": (200, 2 * LEVELS),
    "table of 24 categories of 4 to 30 levels and 8 whole numbers, 150 rows": (150, RICH),
    "table of 24 categories of 20 to 30 levels and 8 whole numbers, 200 rows": (200, WIDE),
}


def table(n: int, seed: int, columns: tuple[int, ...] = LEVELS) -> tuple[Tensor, Tensor]:
    """Rows of one-hot categories with unequal shares and of whole numbers up to 100, as shares, and four classes."""
    draw = torch.Generator().manual_seed(seed)
    blocks = []
    for levels in columns:
        shares = torch.randn(levels, generator=draw).softmax(dim=0)
        blocks.append(nn.functional.one_hot(torch.multinomial(shares, n, replacement=True, generator=draw), levels))
    numbers = torch.randint(101, (n, WHOLE), generator=draw) / 100
    X = torch.cat([*blocks, numbers], dim=1).float()
    return X, (X[:, : columns[0]].argmax(dim=1) + 2 * (numbers[:, -1] > 0.5)) % 4


def categories(X: Tensor, columns: tuple[int, ...]) -> Tensor:
    """The category of each categorical column of rows X [m, d], [m, c]."""
    return torch.stack([block.argmax(dim=1) for block in X[:, : sum(columns)].split(columns, dim=1)], dim=1)


def table_attacked(n: int, columns: tuple[int, ...], seed: int) -> dict[str, Any]:
    """One network that was trained on a table: rows with every category right, and rows to the last number."""
    X, y = table(n, seed, columns)
    recipe = Recipe(widths=[X.shape[1], 600, 4], learning_rate=RATE, momentum=MOMENTUM, epochs=60, seed=seed)
    row: dict[str, Any] = {"seed": seed, "n": n, "columns": X.shape[1]}
    try:
        found = reconstruction.from_weights(recipe.train(X, y), start=recipe, seed=seed)
    except DivulgeError as error:
        return {**row, "refused": str(error)}
    nearest = torch.cdist(found.samples, X.double()).min(dim=1)
    right = (categories(found.samples, columns) == categories(X, columns)[nearest.indices]).all(dim=1)
    whole = right & ((found.samples - X[nearest.indices]).abs().amax(dim=1) < 0.005)
    assert found.certified is not None
    return {
        **row, "rank": found.rank, "every_category_right": len(nearest.indices[right].unique()),
        "every_number_right": len(nearest.indices[whole].unique()), "certified": int(found.certified.sum()),
        "certified_right": int((found.certified & right).sum()), "seconds": found.seconds,
    }  # fmt: skip


def run(plan: Plan) -> dict[str, Any]:
    """Every setting on fresh networks."""
    seeds = plan.seeds_of(2)
    pictures = {name: partial(lambda named: [attacked(named, s) for s in seeds], name) for name in SETTINGS}
    tables = {name: partial(lambda n, of: [table_attacked(n, of, s) for s in seeds], *t) for name, t in TABLES.items()}
    paper = {"as printed, CIFAR-10, 50": lambda: [printed("CIFAR-10, 50", s) for s in seeds[:1]]}
    return plan.measure("known_start", {**pictures, **tables, **paper})

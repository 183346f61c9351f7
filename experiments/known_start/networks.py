"""The networks of the known_start benchmark: their data, their training and what is done to the released weights."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from divulge import datasets, models
from divulge.training import Privacy, Recipe
from divulge.training.private.accounting import privacy_spent

RATE, MOMENTUM, STEPS = 0.1, 0.9, 100
UNSEEN = 500


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
    adapter: int = 0
    """The rank of an adapter (LoRA) beside the first of two frozen dense layers, which alone is trained."""
    control: str = ""
    """What the attack is given instead of the difference of the training: "another start", "shuffled difference"."""
    networks: int = 5


def eight_bits(W: Tensor) -> Tensor:
    """Rounded to 8 bits, symmetric, one scale for each tensor."""
    step = W.abs().max() / 127
    return (W / step).round() * step


def rounded(kind: torch.dtype, W: Tensor) -> Tensor:
    return W.to(kind).to(W.dtype)


ADAM = {"optimiser": "adam", "learning_rate": 1e-3}
CONVOLUTION = Setting("cifar10", 20, extractor="conv")
SETTINGS = {
    "CIFAR-10, 50": Setting("cifar10", 50),
    "CIFAR-10, 50, 1000-1000-10": Setting("cifar10", 50, (1000, 1000, 10)),
    "CIFAR-10, 50, batches of 16": Setting(
        "cifar10", 50, networks=3, recipe={"batch_size": 16, "learning_rate": 0.02, "epochs": 25}
    ),
    "CIFAR-10, 50, weight decay 5e-4": Setting("cifar10", 50, recipe={"weight_decay": 5e-4}),
    "CIFAR-10, 100": Setting("cifar10", 100),
    "MNIST, 50": Setting("mnist", 50),
    "MNIST, 100": Setting("mnist", 100),
    "CIFAR-10, 40, in [0, 1]": Setting("cifar10", 40, centred=False),
    "Fashion-MNIST, 30": Setting("fashion-mnist", 30),
    "other classes, CIFAR-10, 50": Setting("cifar10", 50, other_classes=True, recipe={"learning_rate": 0.02}),
    "frozen convolution, CIFAR-10, 20": CONVOLUTION,
    "frozen convolution, CIFAR-10, 50": replace(CONVOLUTION, n=50, networks=3),
    "frozen convolution and max-pool, CIFAR-10, 20": replace(CONVOLUTION, extractor="pool"),
    "two frozen convolutions, CIFAR-10, 20": replace(CONVOLUTION, extractor="two"),
    "trained convolution, CIFAR-10, 20": replace(CONVOLUTION, trained_front=True, networks=3),
    "float16": Setting("cifar10", 50, release=partial(rounded, torch.float16)),
    "bfloat16": Setting("cifar10", 50, release=partial(rounded, torch.bfloat16)),
    "8 bits": Setting("cifar10", 50, release=eight_bits),
    "400 steps": Setting("cifar10", 50, networks=3, recipe={"epochs": 400}),
    "one step": Setting("cifar10", 50, recipe={"epochs": 1, "momentum": 0.0}),
    "Adam": Setting("cifar10", 50, networks=2, recipe=ADAM),
    **{f"Adam, {n}, n told": Setting("cifar10", n, networks=3, told=True, recipe=ADAM) for n in (1, 2, 5, 20)},
    **{f"one step of Adam, {n}": Setting("cifar10", n, recipe={**ADAM, "epochs": 1}) for n in (5, 20, 50)},
    "one step of AdamW, 20": Setting(
        "cifar10", 20, recipe={"optimiser": "adamw", "learning_rate": 3e-4, "weight_decay": 0.01, "epochs": 1}
    ),
    "one step of Adam, MNIST, 20": Setting("mnist", 20, recipe={**ADAM, "epochs": 1}),
    **{
        f"DP-SGD, noise {noise:g}": Setting(
            "cifar10", 50, networks=2, recipe={"privacy": Privacy(noise_multiplier=noise, noise_seed=0)}
        )
        for noise in (0.01, 1.0, 5.0, 20.0)
    },
    "adapter of rank 64, CIFAR-10, 20": Setting("cifar10", 20, adapter=64),
    **{
        f"{control}{', n told' if told else ''}": Setting(
            "cifar10", 50, control=control, told=told, networks=2, seconds=30.0
        )
        for control in ("another start", "shuffled difference") for told in (False, True)
    },
    "CIFAR-10, 200": Setting("cifar10", 200, networks=2, seconds=3600.0),
    "CIFAR-10, 500": Setting("cifar10", 500, networks=2, seconds=3600.0),
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


class Adapted(nn.Module):
    """Dense layers of 1000 units and 10 outputs, with an adapter beside the first one."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.base, self.head = nn.Linear(width, 1000), nn.Linear(1000, 10)
        self.down, self.up = nn.Linear(width, rank, bias=False), nn.Linear(rank, 1000, bias=False)

    def forward(self, X: Tensor) -> Tensor:
        answer: Tensor = self.head(torch.relu(self.base(X) + self.up(self.down(X))))
        return answer


def adapted(X: Tensor, y: Tensor, rank: int, seed: int) -> tuple[nn.Module, nn.Module]:
    """A network whose adapter begins at zero, as LoRA does, and the same after training the adapter alone."""
    start = models.initialise(Adapted(X.shape[1], rank), seed=seed)
    nn.init.zeros_(start.up.weight)
    model = copy.deepcopy(start)
    descent = torch.optim.SGD([*model.down.parameters(), *model.up.parameters()], lr=RATE, momentum=MOMENTUM)
    for _ in range(STEPS):
        descent.zero_grad()
        nn.functional.cross_entropy(model(X), y).backward()
        descent.step()
    return start, model


def without_span(start: nn.Module, model: nn.Module, kind: str, seed: int) -> tuple[nn.Module, nn.Module]:
    """A control: the model beside a start of another seed, or with its changes at other places of each tensor."""
    if kind == "another start":
        return models.initialise(copy.deepcopy(start), seed=seed + 1_000_000), model
    moved, draw = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for before, after in zip(start.parameters(), moved.parameters(), strict=True):
            change = (after - before).flatten()[torch.randperm(after.numel(), generator=draw)]
            after.copy_(before + change.reshape(after.shape))
    return start, moved


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
    if setting.adapter:
        return *adapted(X, y, setting.adapter, seed), data, time.perf_counter() - began
    usual = {"learning_rate": RATE, "momentum": MOMENTUM, "epochs": STEPS, "seed": seed}
    recipe = Recipe(widths=[X.shape[1], *setting.widths], **{**usual, **setting.recipe})
    model = recipe.train(X, y)
    if setting.release is not None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(setting.release(parameter))
    start = recipe.initial_model()
    if setting.control:
        start, model = without_span(start, model, setting.control, seed)
    return start, model, data, time.perf_counter() - began


def accuracy(model: nn.Module, X: Tensor, y: Tensor, setting: Setting) -> float:
    with torch.no_grad():
        shaped = X.reshape(-1, 3, 32, 32) if setting.extractor else X
        return float((model(shaped.to(next(model.parameters()))).argmax(dim=1) == y).double().mean())


def epsilon(setting: Setting) -> dict[str, float]:
    """The epsilon of a private training at its delta, if its noise were drawn without a seed."""
    privacy = setting.recipe.get("privacy")
    if privacy is None:
        return {}
    spent = privacy_spent(noise_multiplier=privacy.noise_multiplier, steps=STEPS, delta=privacy.delta)
    return {"epsilon": spent.epsilon}

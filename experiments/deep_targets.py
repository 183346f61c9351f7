"""Targets with several hidden layers: random and trained networks, convolutions, residual blocks, other functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import divulge
from divulge.models import MLP

BATCH = 32
"""Rows of a training step: with all of them at once 30 steps leave a network of digits at 14 % accuracy."""
KINDS = ("relu", "maximum", "absolute", "skip", "leaky")


def network(widths: list[int], seed: int) -> MLP:
    """A random network in float64."""
    generator = torch.Generator().manual_seed(seed)
    model = MLP(widths).double()
    with torch.no_grad():
        for layer in model:
            if isinstance(layer, nn.Linear):
                layer.weight.normal_(std=layer.in_features**-0.5, generator=generator)
                layer.bias.normal_(std=0.3, generator=generator)
    return model


def trained(widths: list[int], seed: int, data: str = "digits", epochs: int = 30) -> MLP:
    """A network trained on digits or MNIST, in float64."""
    X, y = divulge.datasets.load(data).train
    recipe = divulge.Recipe(
        widths=widths, activation="relu", loss="cross-entropy", seed=seed, epochs=epochs, batch_size=BATCH
    )
    model: Any = recipe.train(X, y)
    return model.double()


class Skip(nn.Module):
    """x + relu(W x) inside a network."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = x + torch.relu(self.layer(x))
        return total


class PairMaximum(nn.Module):
    """The larger of each input and its neighbour."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.maximum(x, x.roll(1, dims=1))


class Absolute(nn.Module):
    """|x|."""

    def forward(self, x: Tensor) -> Tensor:
        return x.abs()


def function(seed: int) -> tuple[nn.Module, int]:
    """A small function of depth 1 to 6 with units of one kind, and its number of inputs."""
    generator = torch.Generator().manual_seed(50_000 + seed)
    torch.manual_seed(50_000 + seed)
    kind, depth = KINDS[seed % len(KINDS)], 1 + seed % 6
    inputs, *widths = torch.randint(3, 10, (depth + 1,), generator=generator).tolist()
    parts: list[nn.Module] = []
    before = inputs
    for place, width in enumerate(widths):
        parts.append(nn.Linear(before, width))
        odd = place == depth // 2
        units = {"maximum": PairMaximum(), "absolute": Absolute(), "leaky": nn.LeakyReLU()}.get(kind) if odd else None
        parts.append(units or nn.ReLU())
        parts += [Skip(width)] if odd and kind == "skip" else []
        before = width
    return nn.Sequential(*parts, nn.Linear(before, 1)).double(), inputs


class Residual(nn.Module):
    """x + V relu(W x) inside a network, with a ReLU on the sum or without."""

    def __init__(self, width: int, inner: int, *, relu: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.relu = nn.Linear(width, inner), nn.Linear(inner, width), relu

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = x + self.second(torch.relu(self.first(x)))
        return torch.relu(total) if self.relu else total


class Picture(nn.Module):
    """Rows of 64 as pictures of 8 by 8."""

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(len(x), 1, 8, 8)


STRUCTURES: dict[str, tuple[int, Callable[[], list[nn.Module]]]] = {
    "residual block, output": (20, lambda: [
        nn.Linear(20, 16), nn.ReLU(), Residual(16, 8), nn.Linear(16, 1),
    ]),
    "residual block, 8 dense": (20, lambda: [
        nn.Linear(20, 16), nn.ReLU(), Residual(16, 8), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1),
    ]),
    "residual block with a ReLU on the sum": (20, lambda: [
        nn.Linear(20, 16), nn.ReLU(), Residual(16, 8, relu=True), nn.Linear(16, 1),
    ]),
    "average pooling of 16 units, 8 dense": (20, lambda: [
        nn.Linear(20, 16), nn.ReLU(), nn.Unflatten(1, (1, 16)), nn.AvgPool1d(2), nn.Flatten(), nn.Linear(8, 8),
        nn.ReLU(), nn.Linear(8, 1),
    ]),
    "maximum pooling of 16 units, 8 dense": (20, lambda: [
        nn.Linear(20, 16), nn.ReLU(), nn.Unflatten(1, (1, 16)), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(8, 8),
        nn.ReLU(), nn.Linear(8, 1),
    ]),
    "3 filters at stride 2, average pooling, 10 dense": (64, lambda: [
        Picture(), nn.Conv2d(1, 3, 3, stride=2), nn.ReLU(), nn.AvgPool2d(2, 1), nn.Flatten(), nn.Linear(12, 10),
        nn.ReLU(), nn.Linear(10, 3),
    ]),
    "two convolutions, 36 and 16 units, 16 dense": (64, lambda: [
        Picture(), nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Conv2d(4, 4, 2), nn.ReLU(), nn.Flatten(),
        nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 10),
    ]),
    "2 filters, 72 units on 64 inputs, 10 dense": (64, lambda: [
        Picture(), nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 10), nn.ReLU(), nn.Linear(10, 3),
    ]),
    "4 filters, 144 units on 64 inputs, 16 dense": (64, lambda: [
        Picture(), nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 16), nn.ReLU(), nn.Linear(16, 10),
    ]),
}  # fmt: skip
"""Inputs and parts of networks with shared weights or connections that skip a layer, with torch's initial weights."""


def structure(name: str, seed: int) -> tuple[nn.Module, int]:
    """One of ``STRUCTURES``, and its number of inputs."""
    inputs, parts = STRUCTURES[name]
    torch.manual_seed(seed)
    return nn.Sequential(*parts()).double(), inputs

"""The networks of Haim et al. 2022: which pictures they are trained on, from which start, how, and what they reach.

d-1000-1000-1 unless said, trained on MNIST (odd or even) or CIFAR-10 (animals or vehicles), half of each class, the
training mean subtracted. The first layer starts at N(0, 1e-4) and training goes to the margin by ``margin.to_margin``;
appendix C.3 has torch's own start everywhere, 10,000 epochs of plain descent, and mini-batches.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from divulge import datasets, models
from divulge.core.progress import report
from divulge.training import margin

UNSEEN = 500
"""Test pictures that serve as a control."""
PLAIN_RATE = 0.01
"""The paper's learning rate."""
BATCH_RATE = 0.05
"""Of mini-batches, whose rate the paper does not state: with this one 500 pictures are fitted in 2,000 epochs."""


@dataclass(frozen=True)
class Case:
    """A target and how hard it is attacked."""

    data: str
    n: int
    seconds: float | None = None
    hidden: tuple[int, ...] = (1000, 1000)
    bias: Any = "first"
    standard: bool = False
    """Torch's own start in the first layer too (appendix C.3.1)."""
    epochs: int = 0
    """So many epochs of plain descent at the paper's rate (appendix C.3.2); by default to the margin."""
    batch: int = 0
    """Rows of a mini-batch of plain descent (appendix C.3.3); all by default."""

    @property
    def name(self) -> str:
        kind = "" if self.bias == "first" else ", biases everywhere"
        kind += ", standard start" if self.standard else ""
        kind += f", batches of {self.batch}" if self.batch else ", plain descent" if self.epochs else ""
        return f"{self.data}, n = {self.n}, {'-'.join(map(str, self.hidden))}{kind}"


@dataclass(frozen=True)
class Target:
    """A trained network and what it was trained on (centred), and pictures that it never saw."""

    model: nn.Module
    X: Tensor
    y: Tensor
    unseen: Tensor
    mean: Tensor
    epochs: int
    seconds: float
    reached: dict[str, float]
    """Loss on the training pictures, and loss and accuracy on all test pictures (tables 1 and 2)."""


def target(case: Case, seed: int) -> Target:
    """The network of a case, trained on the pictures that ``seed`` chooses."""
    data = datasets.load(case.data).binary()
    chosen = data.subset(case.n // 2, seed=seed, per_class=True)
    X, mean = chosen.train.X.double(), chosen.train.X.double().mean(dim=0)
    X, y = X - mean, chosen.train.y
    widths = [X.shape[1], *case.hidden, 1]
    start: nn.Module = margin.network(widths, bias=case.bias, seed=seed, dtype=torch.float32)
    if case.standard:
        start = models.initialise(models.MLP(widths, bias=case.bias), seed=seed)
    began = time.perf_counter()
    if case.epochs:
        model, epochs = descended(start, X.float(), y, case.epochs, batch=case.batch, seed=seed), case.epochs
    else:
        trained = margin.to_margin(start, X, y)
        model, epochs = trained.model, trained.epochs
    seconds = time.perf_counter() - began
    others = torch.randperm(len(data.test.X), generator=torch.Generator().manual_seed(seed))[:UNSEEN]
    test = data.test.X.double() - mean
    train_loss, _ = loss_and_accuracy(model, X, y)
    test_loss, accuracy = loss_and_accuracy(model, test, data.test.y)
    reached = {"train_loss": train_loss, "test_loss": test_loss, "test_accuracy": accuracy}
    return Target(model, X, y, test[others], mean, epochs, seconds, reached)


def descended(model: nn.Module, X: Tensor, y: Tensor, epochs: int, *, batch: int = 0, seed: int = 0) -> nn.Module:
    """The model after so many epochs of plain gradient descent on the logistic loss."""
    parameters, signs = list(model.parameters()), (2 * y - 1).to(X)
    generator, rate = torch.Generator().manual_seed(seed), BATCH_RATE if batch else PLAIN_RATE
    for epoch in range(epochs):
        order = torch.randperm(len(X), generator=generator) if batch else torch.arange(len(X))
        for rows in torch.split(order, batch or len(X)):
            loss = nn.functional.softplus(-signs[rows] * model(X[rows])[:, 0]).mean()
            with torch.no_grad():
                for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                    parameter.sub_(gradient, alpha=rate)
        if epoch % 100 == 0:
            report("plain gradient descent", epoch, epochs, loss=f"{float(loss.detach()):.1e}")
    return model.eval()


def loss_and_accuracy(model: nn.Module, X: Tensor, y: Tensor) -> tuple[float, float]:
    """Mean logistic loss and share of labels right."""
    with torch.no_grad():
        margins = (2 * y - 1) * torch.cat([model(part.float())[:, 0] for part in torch.split(X, 2000)]).double()
    return float(nn.functional.softplus(-margins).mean()), float((margins > 0).double().mean())

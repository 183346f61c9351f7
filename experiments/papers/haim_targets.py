"""The networks of Haim et al. 2022: which pictures they are trained on, from which start, how, and what they reach.

d-1000-1000-1 unless said, trained on MNIST (odd or even) or CIFAR-10 (animals or vehicles), half of each class, the
training mean subtracted. The first layer starts at N(0, 1e-4) and training goes to the margin by ``margin.to_margin``;
appendix C.3 has torch's own start everywhere, 10,000 epochs of plain descent, and mini-batches.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from divulge import datasets, models
from divulge.core.progress import report
from divulge.models.weight_matrices import read
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
    classes: int = 2
    decay: float = 0.0
    """Weight decay of plain descent: half of it times the squared norm of all parameters is added to the loss."""
    square: bool = False
    """Squared error against -1 and 1, a regression, instead of the logistic loss."""

    @property
    def name(self) -> str:
        kind = "" if self.bias == "first" else ", biases everywhere"
        kind += ", standard start" if self.standard else ""
        kind += f", {self.classes} classes" if self.classes > 2 else ""
        kind += ", squared error" if self.square else ""
        kind += f", weight decay {self.decay:g}" if self.decay else ""
        plain = bool(self.epochs) and not self.decay
        kind += f", batches of {self.batch}" if self.batch else ", plain descent" if plain else ""
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
    data = datasets.load(case.data)
    data = data.binary() if case.classes == 2 else data
    chosen = data.subset(case.n // case.classes, seed=seed, per_class=True)
    X, mean = chosen.train.X.double(), chosen.train.X.double().mean(dim=0)
    X, y = X - mean, chosen.train.y
    widths = [X.shape[1], *case.hidden, 1 if case.classes == 2 else case.classes]
    start: nn.Module = margin.network(widths, bias=case.bias, seed=seed, dtype=torch.float32)
    if case.standard:
        start = models.initialise(models.MLP(widths, bias=case.bias), seed=seed)
    began = time.perf_counter()
    if case.epochs:
        model, epochs = descended(start, X, y, case, seed=seed), case.epochs
    else:
        trained = margin.to_margin(start, X, y)
        model, epochs = trained.model, trained.epochs
    seconds = time.perf_counter() - began
    others = torch.randperm(len(data.test.X), generator=torch.Generator().manual_seed(seed))[:UNSEEN]
    test = data.test.X.double() - mean
    train_loss, _ = loss_and_accuracy(model, X, y, square=case.square)
    test_loss, accuracy = loss_and_accuracy(model, test, data.test.y, square=case.square)
    reached = {"train_loss": train_loss, "test_loss": test_loss, "test_accuracy": accuracy}
    return Target(model, X, y, test[others], mean, epochs, seconds, reached)


def descended(model: nn.Module, X: Tensor, y: Tensor, case: Case, *, seed: int = 0) -> nn.Module:
    """The model after the case's epochs of gradient descent on its loss, in mini-batches if it has some.

    Descent moves the first layer in the span of the inputs only, so that it is computed there. Outside of the span
    weight decay shrinks the initial weights.
    """
    start = read(model)
    Q, R = torch.linalg.qr(X.double().T)
    inside = start.weights[0] @ Q
    inner = replace(start, weights=(inside, *start.weights[1:])).module().float()
    X, parameters, signs = R.T.float(), list(inner.parameters()), (2 * y - 1).float()
    generator, rate = torch.Generator().manual_seed(seed), BATCH_RATE if case.batch or case.decay else PLAIN_RATE
    steps = 0
    for epoch in range(case.epochs):
        order = torch.randperm(len(X), generator=generator) if case.batch else torch.arange(len(X))
        for rows in torch.split(order, case.batch or len(X)):
            loss = losses(inner(X[rows])[:, 0], signs[rows], square=case.square).mean()
            with torch.no_grad():
                for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                    parameter.mul_(1 - rate * case.decay).sub_(gradient, alpha=rate)
            steps += 1
        if epoch % 100 == 0:
            report("plain gradient descent", epoch, case.epochs, loss=f"{float(loss.detach()):.1e}")
    trained = read(inner)
    outside = (start.weights[0] - inside @ Q.T) * (1 - rate * case.decay) ** steps
    return replace(trained, weights=(outside + trained.weights[0] @ Q.T, *trained.weights[1:])).module().float()


def losses(outputs: Tensor, signs: Tensor, *, square: bool = False) -> Tensor:
    """The loss of each row, for labels -1 and 1."""
    return (outputs - signs).square() if square else nn.functional.softplus(-signs * outputs)


def loss_and_accuracy(model: nn.Module, X: Tensor, y: Tensor, *, square: bool = False) -> tuple[float, float]:
    """Mean loss and share of labels right."""
    with torch.no_grad():
        out = torch.cat([model(part.float()) for part in torch.split(X, 2000)]).double()
    if out.shape[1] > 1:
        return float(nn.functional.cross_entropy(out, y.long())), float((out.argmax(dim=1) == y).double().mean())
    signs = (2 * y - 1).double()
    return float(losses(out[:, 0], signs, square=square).mean()), float((signs * out[:, 0] > 0).double().mean())

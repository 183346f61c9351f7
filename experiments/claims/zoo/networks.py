"""Networks as people write them in torch: functional layers, BatchNorm, attention, LSTM, residual sums, TorchScript."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.claims import tables
from experiments.claims.subject import Array, Kind, Subject, Table


class SmoothConvnet(nn.Module):
    """Convolution, BatchNorm, SiLU."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.avg_pool2d(functional.silu(self.norm(self.conv(x.view(-1, 1, 8, 8)))), 2)
        return self.head(x.flatten(1))


class BentConvnet(nn.Module):
    """The same with a functional ReLU and a maximum."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.norm(self.conv(x.view(-1, 1, 8, 8)))), 2)
        return self.head(x.flatten(1))


class Recurrent(nn.Module):
    """An LSTM over the rows of a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cells(x.view(-1, 8, 8))[0][:, -1])


class Attentive(nn.Module):
    """Self-attention over the rows of a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(64, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(-1, 8, 8)
        return self.head((x + self.attention(x, x, x, need_weights=False)[0]).flatten(1))


class Residual(nn.Module):
    """Linear layers and a ReLU, added to their input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(width, 16), nn.Linear(16, width), nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.second(functional.relu(self.first(x))))


class Functional(nn.Module):
    """One hidden layer whose ReLU is only in the forward pass; one output."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(width, 12), nn.Linear(12, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(functional.relu(self.hidden(x)))


class Squared(nn.Module):
    """Two linear layers with a square between them that no layer shows."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(width, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(x).square())


def train(model: nn.Module, table: Table, *, steps: int = 150) -> nn.Module:
    """Full-batch Adam on cross-entropy, the logistic loss or squared errors."""
    X = torch.tensor(np.asarray(table.training.X), dtype=torch.float32)
    y = torch.tensor(table.training.y)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(steps):
        optimiser.zero_grad()
        out = model(X)
        if out.shape[1] > 1:
            loss = functional.cross_entropy(out, y)
        elif y.is_floating_point():
            loss = functional.mse_loss(out[:, 0], y.float())
        else:
            loss = functional.binary_cross_entropy_with_logits(out[:, 0], y.float())
        loss.backward()
        optimiser.step()
    return model.eval()


def subject(model: nn.Module, table: Table, kind: Kind, *, width: int | None = None, **options: Any) -> Subject:
    """A network in evaluation mode, called by itself."""
    dtype = next(model.parameters()).dtype

    def answers(X: Array) -> Array:
        with torch.no_grad():
            out: Array = model(torch.tensor(np.asarray(X), dtype=dtype)).double().numpy()
        return out

    def decide(X: Array) -> Array:
        out = answers(X)
        return out.argmax(axis=1) if out.shape[1] > 1 else (out[:, 0] > 0).astype(int)

    quantity = np.issubdtype(table.training.y.dtype, np.floating)
    return Subject(model, table, None if quantity else decide, lambda X: [answers(X)], kind, options, width)


def trained(
    make: Callable[[], nn.Module], data: Callable[[], Table], kind: Kind, **options: Any
) -> Callable[[], Subject]:
    """A maker of the network, trained from seed 0 without touching torch's global generator."""

    def maker() -> Subject:
        table = data()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = train(make(), table)
        return subject(model, table, kind, input_shape=(np.asarray(table.training.X).shape[1],), **options)

    return maker


def scripted() -> Subject:
    """The functional network as TorchScript."""
    plain = trained(lambda: Functional(64), tables.odd_or_even, "one hidden ReLU layer")()
    return subject(torch.jit.script(plain.model), plain.table, "one hidden ReLU layer", width=12, input_shape=(64,))


MODELS: dict[str, Callable[[], Subject]] = {
    "CNN with BatchNorm and SiLU": trained(SmoothConvnet, tables.digits, "smooth"),
    "CNN with BatchNorm and functional ReLU": trained(BentConvnet, tables.digits, "piecewise linear"),
    "LSTM": trained(Recurrent, tables.odd_or_even, "smooth"),
    "attention": trained(Attentive, tables.odd_or_even, "smooth"),
    "residual network": trained(lambda: Residual(64), tables.odd_or_even, "piecewise linear"),
    "functional ReLU": trained(lambda: Functional(64), tables.odd_or_even, "one hidden ReLU layer"),
    "a square in the forward pass": trained(lambda: Squared(64), tables.odd_or_even, "smooth"),
    "TorchScript": scripted,
}

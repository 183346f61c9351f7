"""Reading a module: plain ReLU networks come out as they are, anything else is named and refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from divulge.core.errors import UnsupportedModel
from divulge.models import MLP
from divulge.models.weight_matrices import read


class Functional(nn.Module):
    """A module whose ReLU is a function and whose inputs are pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(64, 8), nn.Linear(8, 3)
        self.input_shape = (1, 8, 8)

    def forward(self, X: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(torch.flatten(X, 1))))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 1)

    def forward(self, X: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(X)) + X)


class Doubled(nn.Module):
    """Does more than its layers say, in a way that only its answers show."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1))

    def forward(self, X: Tensor) -> Tensor:
        return self.body(X.flatten(1)[:, [1, 0, 2, 3]])


@pytest.mark.parametrize(
    "model",
    [MLP([5, 7, 4, 1]), MLP([5, 7, 2], bias="first"), Functional(),
     nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 6), nn.Linear(6, 2))],
)  # fmt: skip
def test_reads_what_the_module_computes(model: nn.Module) -> None:
    network = read(model)
    X = torch.randn(9, network.input_dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    shaped = X.float().reshape(9, *getattr(model, "input_shape", (network.input_dim,)))
    with torch.no_grad():
        assert torch.allclose(network(X).float(), model.eval()(shaped), atol=1e-6)


def test_gradients_by_pre_activation_agree_with_autograd() -> None:
    network = read(MLP([5, 7, 4, 1]))
    X = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    hidden, out = network.forward(X)
    deltas = network.backward(hidden, torch.ones_like(out))
    (gradient,) = torch.autograd.grad(out.sum(), X)
    assert torch.allclose(deltas[0] @ network.weights[0], gradient)


def test_comes_back_as_a_module() -> None:
    for bias in ("all", "first", "none"):
        network = read(MLP([5, 7, 2], bias=bias))
        assert torch.equal(read(network.module())(torch.ones(1, 5).double()), network(torch.ones(1, 5).double()))


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)), "Tanh"),
        (nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 1)), "BatchNorm1d"),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 1)), "Conv2d"),
        (Residual(), "residual"),
        (Doubled(), "answers differ"),
        (nn.Sequential(nn.Linear(4, 1)), "no hidden layer"),
        (nn.Linear(4, 1), "no hidden layer"),
        (nn.Sequential(nn.Linear(4, 3), nn.ReLU()), "no linear layer at its end"),
    ],
)
def test_names_what_it_cannot_read(model: nn.Module, named: str) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        read(model)


def test_refuses_weights_with_nan() -> None:
    model = MLP([4, 5, 1])
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
    with pytest.raises(UnsupportedModel, match=r"Layer 1 .* NaN"):
        read(model)

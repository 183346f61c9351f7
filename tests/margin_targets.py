"""Small targets on real digits, trained once for all tests."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from divulge.training import margin


@dataclass(frozen=True)
class Target:
    """A model, what it was trained on (centred), and what it never saw."""

    model: nn.Module
    X: Tensor
    y: Tensor
    unseen: Tensor
    mean: Tensor


def odd_digits(n: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """n random digits in [0, 1], their labels (1 for odd), and 500 others."""
    data = load_digits()
    X, y = torch.tensor(data.data / 16), torch.tensor(data.target % 2)
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(seed))
    return X[order[:n]], y[order[:n]], X[order[n : n + 500]]


@pytest.fixture(scope="session")
def target() -> Target:
    """64-128-1 trained to its margin on eight digits."""
    X, y, unseen = odd_digits(8, seed=0)
    mean = X.mean(dim=0)
    start = margin.network([64, 128, 1], first_scale=1e-3, balanced=True, seed=0)
    trained = margin.to_margin(start, X - mean, y, extra_epochs=1500)
    return Target(trained.model, X - mean, y, unseen - mean, mean)

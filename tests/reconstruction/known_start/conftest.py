"""Networks that a few digits trained, for the tests of a known start."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import divulge

Train = Callable[..., nn.Module]


@pytest.fixture(scope="session")
def few_digits() -> Callable[[int, int], tuple[Tensor, Tensor]]:
    """n digits of scikit-learn in [0, 1] with their labels, drawn with a seed."""

    def drawn(n: int, seed: int) -> tuple[Tensor, Tensor]:
        X, y = divulge.datasets.load("digits").train
        X = X.float().flatten(1) / (16 if float(X.max()) > 1 else 1)
        order = torch.randperm(len(X), generator=torch.Generator().manual_seed(seed))[:n]
        return X[order], y[order].long()

    return drawn


@pytest.fixture(scope="session")
def descended() -> Train:
    """A copy of a model after steps of gradient descent on the parameters whose names are wanted."""

    def train(
        start: nn.Module, X: Tensor, y: Tensor, *, wanted: Callable[[str], bool] = lambda _: True, steps: int = 60
    ) -> nn.Module:
        model = copy.deepcopy(start).train()
        moved = [parameter for name, parameter in model.named_parameters() if wanted(name)]
        descent = torch.optim.SGD(moved, lr=0.05, momentum=0.9)
        for _ in range(steps):
            descent.zero_grad()
            nn.functional.cross_entropy(model(X), y).backward()
            descent.step()
        return model.eval()

    return train

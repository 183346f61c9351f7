"""The network of ``method="network"``: it starts from the ridge reconstruction and learns what that leaves over.

It reads the reconstruction beside the strongest directions of the features, a first layer that is learned without
descent. Its last layer starts at zero, so that the untrained network is ridge. It learns from reconstructions whose own
row was left out, because ridge fits the rows that it has seen far better than others. What departs from the paper's
network (``reconstructor_network``) is thus the first layer, where that starts, dropout, and AdamW with a falling rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from divulge.core.progress import report
from divulge.models import MLP
from divulge.models.build import initialise

EPOCHS = 20
_DIRECTIONS, _FROM = 512, 2000  # strongest directions, and the shadow models that they are taken from, at most
_WIDTH, _BATCH, _RATE, _DECAY, _DROPPED = 1000, 128, 5e-4, 0.05, 0.3
_WARM = 0.1  # share of the steps in which the rate rises


@dataclass(frozen=True)
class ResidualMap:
    """A trained network, and the directions that it reads."""

    network: MLP
    mean: Tensor
    """The mean of the features [P]."""
    directions: Tensor
    """Directions of the features [P, k], each scaled to unit variance."""

    def rows(self, features: Tensor, first: Tensor) -> Tensor:
        """Better reconstructions [n, d], from features [n, P] and the ridge reconstructions of the same models."""
        with torch.no_grad():
            left: Tensor = self.network(self.inputs(features, first))
        return first + left.to(first)

    def inputs(self, features: Tensor, first: Tensor) -> Tensor:
        """What the network reads [n, k + d]."""
        return torch.cat([(features.float() - self.mean) @ self.directions, first.float()], dim=1)


def fit(
    features: Tensor, first: Tensor, X: Tensor, *, epochs: int = EPOCHS, seed: int = 0, start: ResidualMap | None = None
) -> ResidualMap:
    """Learn what reconstructions ``first`` [n, d] of the rows [n, d], each made without its own row, leave over.

    ``start`` continues from another fixed set's network and directions.
    """
    features, rows = features.float(), X.flatten(1).float()
    if start is None:
        mean, directions = _strongest(features)
        network = MLP([directions.shape[1] + rows.shape[1], _WIDTH, _WIDTH, rows.shape[1]])
        initialise(network, seed=seed)
        last = [layer for layer in network.modules() if isinstance(layer, nn.Linear)][-1]
        for part in last.parameters():
            nn.init.zeros_(part)
    else:
        mean, directions = start.mean, start.directions
        network = MLP([directions.shape[1] + rows.shape[1], _WIDTH, _WIDTH, rows.shape[1]])
        network.load_state_dict(start.network.state_dict())
    found = ResidualMap(network, mean, directions)
    _descend(network, found.inputs(features, first), rows - first.float(), epochs, seed)
    return found


def _strongest(features: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of the features, and their principal directions scaled to unit variance."""
    some = features[:_FROM]
    mean = some.mean(dim=0)
    away = (some - mean).double()
    values, vectors = torch.linalg.eigh(away @ away.T)
    kept = values > 1e-9 * values[-1].clamp(min=torch.finfo(values.dtype).tiny)
    values, vectors = values[kept][-_DIRECTIONS:], vectors[:, kept][:, -_DIRECTIONS:]
    return mean, ((away.T @ vectors) * (len(some) ** 0.5 / values)).float()


def _descend(network: MLP, inputs: Tensor, left: Tensor, epochs: int, seed: int) -> None:
    """Mean squared error by AdamW; the rate rises for a tenth of the steps and falls as a cosine after that."""
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
    optimiser = torch.optim.AdamW(network.parameters(), lr=_RATE, weight_decay=_DECAY)
    steps = max(1, epochs * math.ceil(len(inputs) / _BATCH))
    rate = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _share(step / steps))
    random = torch.Generator().manual_seed(seed)
    for epoch in range(epochs):
        total = 0.0
        for index in torch.split(torch.randperm(len(inputs), generator=random), _BATCH):
            value = inputs[index]
            for layer in layers[:-1]:
                value = layer(value).relu()
                value = value * (torch.rand(value.shape, generator=random) >= _DROPPED) / (1 - _DROPPED)
            loss = (layers[-1](value) - left[index]).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            rate.step()
            total += float(loss.detach()) * len(index)
        report("training the reconstructor network", epoch + 1, epochs, loss=f"{total / len(inputs):.4f}")
    network.eval()


def _share(done: float) -> float:
    """The rate after a share of the steps, as a share of the largest."""
    if done < _WARM:
        return 0.05 + 0.95 * done / _WARM
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (done - _WARM) / (1 - _WARM)))) + 1e-4

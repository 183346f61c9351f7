"""RecoNN, the reconstructor network of Balle 2022 (section IV, Table V), as printed for MNIST: two hidden layers of
1,000 ReLU units on standardised weights, mean absolute plus mean squared error, RMSProp, batches of 128, 100 epochs.
Standardising is to zero mean and unit variance over the shadow models, coordinate by coordinate.

That is ``method="paper"``. ``method="network"`` is ``residual_network``. On processors that have it, bfloat16 makes the
products in a fraction of the time; weights and steps stay in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from divulge.core.progress import report
from divulge.models import MLP
from divulge.models.build import initialise

BATCH, EPOCHS, RATE = 128, 100, 1e-3
_STILL = 1e-6  # of the largest spread: a coordinate that moves less did not move

Step = Callable[[Tensor, Tensor], Tensor]
"""(reconstructions, rows) of a batch -> the loss, once the network has been moved along its slope."""


@dataclass(frozen=True)
class NetworkMap:
    """A trained reconstructor network and the standardisation in front of it."""

    network: nn.Module
    mean: Tensor
    spread: Tensor
    loss: float
    """The last epoch's training loss."""

    def rows(self, features: Tensor) -> Tensor:
        """The reconstruction of each row of features."""
        with torch.no_grad():
            rebuilt: Tensor = self.network((features - self.mean) / self.spread)
        return rebuilt


def standardisation(features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and spread of each coordinate over the models; the spread of one that never moves is infinite, so that it
    counts as zero in a model in which it does move."""
    spread = features.std(dim=0)
    return features.mean(dim=0), torch.where(spread > _STILL * spread.max(), spread, torch.inf)


def learn(
    network: nn.Module,
    step: Step,
    features: Tensor,
    X: Tensor,
    *,
    epochs: int,
    seed: int,
    start: NetworkMap | None,
    half: bool,
) -> NetworkMap:
    """Train a network from standardised features to rows, batch by batch; ``start`` continues from another fixed set's
    (Balle 2022, appendix B)."""
    features, rows = features.to(torch.float32), X.flatten(1).to(torch.float32)
    mean, spread = standardisation(features)
    inputs = (features - mean) / spread
    initialise(network, seed=seed)
    if start is not None:
        network.load_state_dict(start.network.state_dict())
    order = torch.Generator().manual_seed(seed)
    last = float("nan")
    for epoch in range(epochs):
        total = 0.0
        for index in torch.split(torch.randperm(len(inputs), generator=order), BATCH):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
                made = network(inputs[index])
            total += float(step(made.float(), rows[index]).detach()) * len(index)
        last = total / len(inputs)
        report("training the reconstructor network", epoch + 1, epochs, loss=f"{last:.4f}")
    return NetworkMap(network.eval(), mean, spread, last)


def off(made: Tensor, rows: Tensor) -> Tensor:
    """Mean absolute plus mean squared error."""
    away = made - rows
    return away.abs().mean() + away.square().mean()


def descend(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    """One step of an optimiser down a loss."""
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()


def fit(
    features: Tensor,
    X: Tensor,
    *,
    epochs: int = EPOCHS,
    width: int = 1000,
    learning_rate: float = RATE,
    seed: int = 0,
    start: NetworkMap | None = None,
    half: bool = False,
) -> NetworkMap:
    """The network for vectors; ``half`` makes its products in bfloat16."""
    network = MLP([features.shape[1], width, width, X[0].numel()])
    optimiser = torch.optim.RMSprop(network.parameters(), lr=learning_rate)

    def step(made: Tensor, rows: Tensor) -> Tensor:
        loss = off(made, rows)
        descend(optimiser, loss)
        return loss

    return learn(network, step, features, X, epochs=epochs, seed=seed, start=start, half=half)

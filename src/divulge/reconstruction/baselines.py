"""Baselines of the reconstruction: methods that solve no equation, and weights without stationarity.

Model inversion and the first layer's weights are the comparisons of Haim et al. 2022, section 5.4. Broken weights are
ours. Their hidden units are reconnected at random, so the attack on them shows how much the first layer gives away by
itself.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from divulge.core.errors import InvalidInput
from divulge.core.optim import Descent
from divulge.models import MLP
from divulge.models.weight_matrices import Network, read


def model_inversion(
    model: nn.Module,
    *,
    starts: int = 1000,
    steps: int = 500,
    learning_rate: float = 0.05,
    scales: tuple[float, ...] = (1e-3, 1e-2, 1e-1, 1.0),
    mean: Tensor | None = None,
    value_range: tuple[float, float] | None = (0.0, 1.0),
    seed: int = 0,
) -> Tensor:
    """Inputs [starts, d] that maximise or minimise the output (each class in turn, with several classes).

    Starts are random with standard deviations ``scales``. Values stay inside ``value_range`` where one is given.
    """
    if starts < 1 or steps < 1:
        raise InvalidInput("Model inversion takes at least one start and one step.")
    network = read(model, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    scale = torch.tensor(scales).repeat(math.ceil(starts / len(scales)))[:starts, None]
    X = (scale * torch.randn(starts, network.input_dim, generator=generator)).requires_grad_()
    shift = torch.zeros(network.input_dim) if mean is None else mean.detach().float().reshape(-1)
    number = torch.arange(starts)
    descent = Descent([X], optimiser="adam", learning_rate=learning_rate)
    for step in range(steps):
        descent.learning_rate = learning_rate * 0.5 * (1 + math.cos(math.pi * step / steps))
        out = network(X)
        if network.output_dim == 1:
            wanted = torch.where(number % 2 == 0, 1.0, -1.0) * out[:, 0]
        else:
            wanted = torch.log_softmax(out, dim=1)[number, number % network.output_dim]
        descent.clear()
        (-wanted.sum()).backward()  # type: ignore[no-untyped-call]
        descent.step()
        if value_range is not None:
            with torch.no_grad():
                X.copy_((X + shift).clamp(*value_range) - shift)
    return X.detach().double()


def first_layer(model: nn.Module) -> Tensor:
    """The first layer's weights as inputs, in both signs, [2 h, d]."""
    weights = read(model).weights[0]
    return torch.cat([weights, -weights])


def broken(model: nn.Module, *, seed: int = 0) -> MLP:
    """The model with its hidden units reconnected at random: same first layer and spectrum, no stationarity."""
    network = read(model)
    generator = torch.Generator().manual_seed(seed)
    weights = list(network.weights)
    for layer in range(1, len(weights)):
        order = torch.randperm(weights[layer].shape[1], generator=generator)
        weights[layer] = weights[layer][:, order]
    return Network(tuple(weights), network.biases).module()

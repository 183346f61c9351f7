"""What to beat: reconstructions that need no equation, and weights from which nothing can be read.

Model inversion and the first layer's weights are the comparisons of Haim et al. 2022, section 5.4. Broken weights are
ours: the same attack on a network whose hidden units were reconnected at random measures what the attack finds in
nothing, and unseen inputs offered as reconstructions measure what the yardstick lets pass.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from divulge.errors import InvalidInput
from divulge.models import MLP
from divulge.reconstruction.network import Network, read


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
    """Inputs [starts, d] that drive the output up or down (each class up, with several), from random starts of several
    sizes; kept inside the range where one is given."""
    if starts < 1 or steps < 1:
        raise InvalidInput("Model inversion takes at least one start and one step.")
    network = read(model, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    scale = torch.tensor(scales).repeat(math.ceil(starts / len(scales)))[:starts, None]
    X = (scale * torch.randn(starts, network.input_dim, generator=generator)).requires_grad_()
    shift = torch.zeros(network.input_dim) if mean is None else mean.detach().float().reshape(-1)
    number = torch.arange(starts)
    optimiser = torch.optim.Adam([X], lr=learning_rate, foreach=False)
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = learning_rate * 0.5 * (1 + math.cos(math.pi * step / steps))
        out = network(X)
        if network.output_dim == 1:
            wanted = torch.where(number % 2 == 0, 1.0, -1.0) * out[:, 0]
        else:
            wanted = torch.log_softmax(out, dim=1)[number, number % network.output_dim]
        optimiser.zero_grad()
        (-wanted.sum()).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        if value_range is not None:
            with torch.no_grad():
                X.copy_((X + shift).clamp(*value_range) - shift)
    return X.detach().double()


def first_layer(model: nn.Module) -> Tensor:
    """The first layer's weights as inputs, both signs, [2 h, d]."""
    weights = read(model).weights[0]
    return torch.cat([weights, -weights])


def broken(model: nn.Module, *, seed: int = 0) -> MLP:
    """The model with each hidden layer reconnected at random: the same weights, the same spectrum, no stationarity."""
    network = read(model)
    generator = torch.Generator().manual_seed(seed)
    weights = list(network.weights)
    for layer in range(1, len(weights)):
        order = torch.randperm(weights[layer].shape[1], generator=generator)
        weights[layer] = weights[layer][:, order]
    return Network(tuple(weights), network.biases).module()

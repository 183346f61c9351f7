"""The classes of reconstructed inputs, from their rows of A.

A row of A is the sum over the steps of (y - p) J, where p are the predicted probabilities and J is the derivative of
the outputs by the layer's pre-activations. So the row as a combination of the derivatives has its one positive
coefficient at the class of the input.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from divulge.core.errors import DivulgeError
from divulge.models.weight_matrices import Network, read


def classes(models: tuple[nn.Module, nn.Module], X: Tensor, A: Tensor) -> Tensor:
    """The class of each input X [m, ...] with row A [m, h], from the networks before and after training."""
    try:
        networks = [read(model) for model in models]
    except DivulgeError:
        return predicted(models[1], X)
    X = X.flatten(1)
    if networks[0].weights[0].shape != (A.shape[1], X.shape[1]):
        return predicted(models[1], X)
    J = torch.stack([_derivatives(network, X) for network in networks]).mean(dim=0)  # [m, k, h]
    coefficients = torch.linalg.lstsq(J.mT, A[..., None]).solution[..., 0]
    return _largest(coefficients)


def predicted(model: nn.Module, X: Tensor) -> Tensor:
    """The class that the model predicts for each input X [m, ...]: it was trained on them."""
    if len(X) == 0:
        return torch.zeros(0, dtype=torch.long)
    with torch.no_grad():
        outputs = model(X.to(next(model.parameters()))).reshape(len(X), -1)
    return _largest(outputs)


def _largest(scores: Tensor) -> Tensor:
    """The class with the largest score [m, k]; the sign of a single score."""
    chosen: Tensor = (scores[:, 0] > 0).long() if scores.shape[1] == 1 else scores.argmax(dim=1)
    return chosen


def _derivatives(network: Network, X: Tensor) -> Tensor:
    """Of every output by every pre-activation of the first layer, [m, k, h]."""
    hidden, _ = network.forward(X)
    signals = torch.eye(network.output_dim).to(X).expand(len(X), -1, -1)
    spread = [Z[:, None].expand(-1, network.output_dim, -1) for Z in hidden]
    return network.backward(spread, signals)[0]

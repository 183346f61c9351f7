"""Fully connected networks: the MLP that is trained, and the one-hidden-layer form that exact extraction finds."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from divulge.errors import InvalidInput

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "softplus": nn.Softplus,
}
Bias = Literal["all", "first", "none"]


class MLP(nn.Sequential):
    """Linear layers with an activation between them; logits out. ``bias="first"`` makes a ReLU network homogeneous."""

    def __init__(self, widths: Sequence[int], *, activation: str = "relu", bias: Bias = "all") -> None:
        if len(widths) < 2 or any(width < 1 for width in widths):
            raise InvalidInput(
                f"An MLP needs at least an input and an output width, each positive; got {list(widths)}."
            )
        if activation not in ACTIVATIONS:
            raise InvalidInput(f"There is no activation {activation!r}; choose one of {', '.join(ACTIVATIONS)}.")
        if bias not in ("all", "first", "none"):
            raise InvalidInput(f'bias is "all", "first" or "none", not {bias!r}.')
        layers: list[nn.Module] = []
        for depth, (fan_in, fan_out) in enumerate(itertools.pairwise(widths)):
            if depth:
                layers.append(ACTIVATIONS[activation]())
            layers.append(nn.Linear(fan_in, fan_out, bias=bias == "all" or (bias == "first" and depth == 0)))
        super().__init__(*layers)
        self.spec = {"architecture": "mlp", "widths": list(widths), "activation": activation, "bias": bias}
        self.input_shape = (widths[0],)


class ReluNetwork(nn.Module):
    """f(x) = W relu(A x + b) + P x + q: one hidden layer and an affine part, as exact extraction finds it."""

    def __init__(self, A: Tensor, b: Tensor, W: Tensor, P: Tensor | None = None, q: Tensor | None = None) -> None:
        super().__init__()
        width, inputs = A.shape  # A [h, d], b [h], W [k, h], P [k, d], q [k]
        outputs = W.shape[0]
        self.A = nn.Parameter(A.detach().clone())
        self.b = nn.Parameter(b.detach().clone())
        self.W = nn.Parameter(W.detach().clone())
        self.P = nn.Parameter(P.detach().clone() if P is not None else A.new_zeros(outputs, inputs))
        self.q = nn.Parameter(q.detach().clone() if q is not None else A.new_zeros(outputs))
        self.spec = {"architecture": "relu-network", "inputs": inputs, "width": width, "outputs": outputs}
        self.input_shape = (inputs,)

    def forward(self, X: Tensor) -> Tensor:
        hidden = torch.relu(X @ self.A.T + self.b)
        return hidden @ self.W.T + X @ self.P.T + self.q


def empty_relu_network(*, inputs: int, width: int, outputs: int) -> ReluNetwork:
    """A ReluNetwork of zeros, to load weights into."""
    return ReluNetwork(torch.zeros(width, inputs), torch.zeros(width), torch.zeros(outputs, width))

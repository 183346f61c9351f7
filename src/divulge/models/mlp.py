"""Fully connected networks: the MLP that is trained, and the one-hidden-layer form that exact extraction finds."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from divulge.core.errors import InvalidInput

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "softplus": nn.Softplus,
}
Bias = Literal["all", "first", "none"]
MAX_WIDTHS = 10_000  # torch builds so many layers in under a second
MAX_WIDTH = 1 << 31


class MLP(nn.Sequential):
    """Linear layers with an activation between them. The outputs are logits.

    Parameters
    ----------
    widths : sequence of int
        The input width, the hidden widths and the output width.
    activation : {"relu", "elu", "tanh", "sigmoid", "softplus"}, default "relu"
        What stands between the layers.
    bias : {"all", "first", "none"}, default "all"
        Which layers have a bias. "first" makes a ReLU network homogeneous (Haim 2022).

    Raises
    ------
    InvalidInput
        If the widths, the activation or the bias make no sense.

    Examples
    --------
    >>> from divulge.models import MLP
    >>> MLP([4, 3, 1], bias="first").spec
    {'architecture': 'mlp', 'widths': [4, 3, 1], 'activation': 'relu', 'bias': 'first'}
    """

    def __init__(self, widths: Sequence[int], *, activation: str = "relu", bias: Bias = "all") -> None:
        if len(widths) < 2 or any(width < 1 for width in widths):
            raise InvalidInput(
                f"An MLP needs at least an input and an output width, each positive; got {_shown(widths)}."
            )
        if len(widths) > MAX_WIDTHS or any(isinstance(width, int) and width >= MAX_WIDTH for width in widths):
            raise InvalidInput(
                f"An MLP has at most {MAX_WIDTHS:,} widths, each below {MAX_WIDTH:,}; got {len(widths):,} widths: "
                f"{_shown(widths)}."
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
    """f(x) = W relu(A x + b) + P x + q: one hidden layer and an affine part, as exact extraction finds it.

    Parameters
    ----------
    A : Tensor, [h, d]
        Weights of the hidden layer.
    b : Tensor, [h]
        Its bias.
    W : Tensor, [k, h]
        Weights of the output layer.
    P : Tensor or None, [k, d], default None
        The linear part; zero by default.
    q : Tensor or None, [k], default None
        The output bias; zero by default.

    Examples
    --------
    >>> import torch
    >>> from divulge.models import ReluNetwork
    >>> network = ReluNetwork(torch.eye(2), torch.zeros(2), torch.ones(1, 2))
    >>> network(torch.tensor([[1.0, -3.0]])).item()
    1.0
    """

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


def _shown(widths: Sequence[int]) -> str:
    """The widths for an error message, cut short where they are many or long."""
    text = str(list(widths[:20]))
    return text if len(text) <= 200 and len(widths) <= 20 else f"{text[:200]}..."

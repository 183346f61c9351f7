"""Functions of many kinds, drawn at random: what ``random_functions.py`` runs the attacks on.

Some are ReLU networks of one hidden layer, which should be copied. The others are not, or only where they are asked:
deeper networks, maxima, absolute values, skip connections, smooth and saturated units, constants, rounded and clipped
answers, saw-teeth, trees, kernels, steps, and models in units of their own (``KINDS``); and functions at the edge of
double precision: answers of 1e200 and 1e-200, overflow, fast oscillation, narrow bumps (``EXTREMES``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

DOUBLE = torch.float64
Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Case:
    """A function [n, d] -> [n, k], and rows like its data (None for N(0, I))."""

    kind: str
    function: Function
    inputs: int
    outputs: int
    rows: Tensor | None = None

    def draw(self, count: int, seed: int) -> Tensor:
        """Inputs like its data, or N(0, I)."""
        g = torch.Generator().manual_seed(seed)
        if self.rows is None:
            return torch.randn(count, self.inputs, generator=g, dtype=DOUBLE)
        return self.rows[torch.randint(len(self.rows), (count,), generator=g)]


class Draw:
    """Random sizes and weights from one seed."""

    def __init__(self, seed: int) -> None:
        self.g = torch.Generator().manual_seed(seed)

    def whole(self, low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (1,), generator=self.g))

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.g, dtype=DOUBLE)

    def mlp(self, inputs: int, outputs: int, depth: int, activation: Callable[[Tensor], Tensor]) -> Function:
        widths = [inputs, *(self.whole(2, 8) for _ in range(depth)), outputs]
        layers = [(self.normal(o, i) / i**0.5, 0.5 * self.normal(o)) for i, o in itertools.pairwise(widths)]

        def function(X: Tensor) -> Tensor:
            for number, (weight, bias) in enumerate(layers):
                X = X @ weight.T + bias
                X = activation(X) if number < depth else X
            return X

        return function


def _relu(depth: int) -> Callable[[Draw, int, int], Function]:
    return lambda draw, d, k: draw.mlp(d, k, depth, torch.relu)


def _units(activation: Callable[[Tensor], Tensor]) -> Callable[[Draw, int, int], Function]:
    return lambda draw, d, k: draw.mlp(d, k, draw.whole(1, 2), activation)


def _maximum(draw: Draw, d: int, k: int) -> Function:
    f, g = draw.mlp(d, k, draw.whole(0, 1), torch.relu), draw.mlp(d, k, draw.whole(0, 1), torch.relu)
    return lambda X: torch.maximum(f(X), g(X))


def _absolute(draw: Draw, d: int, k: int) -> Function:
    f = draw.mlp(d, k, draw.whole(0, 1), torch.relu)
    return lambda X: f(X).abs()


def _skip(draw: Draw, d: int, k: int) -> Function:
    f, g = draw.mlp(d, k, 2, torch.relu), draw.mlp(d, k, 0, torch.relu)
    return lambda X: f(X) + g(X)


def _saturated(draw: Draw, d: int, k: int) -> Function:
    return draw.mlp(d, k, 1, lambda z: torch.tanh(100 * z))


def _constant(draw: Draw, d: int, k: int) -> Function:
    level = draw.normal(k)
    return lambda X: level + 0 * X[:, :1]


def _rounded(draw: Draw, d: int, k: int) -> Function:
    f, digits = draw.mlp(d, k, 1, torch.relu), draw.whole(0, 5)
    return lambda X: torch.round(f(X), decimals=digits)


def _clipped(draw: Draw, d: int, k: int) -> Function:
    f, size = draw.mlp(d, k, draw.whole(0, 1), torch.relu), 10.0 ** float(draw.whole(-2, 1))
    return lambda X: f(X).clamp(-size, size)


def _saw(draw: Draw, d: int, k: int) -> Function:
    A, period = draw.normal(k, d), 10.0 ** float(draw.whole(-1, 2))
    return lambda X: torch.remainder(X @ A.T, period)


def _steps(draw: Draw, d: int, k: int) -> Function:
    f, A = draw.mlp(d, k, 1, torch.relu), draw.normal(1, d)
    return lambda X: f(X) + (X @ A.T > 1.0).to(X)


def _tree(draw: Draw, d: int, k: int) -> Function:
    columns = [draw.whole(0, d - 1) for _ in range(6)]
    cuts, levels = draw.normal(6), draw.normal(6, k)
    return lambda X: torch.stack([(X[:, c] > cut).to(X) for c, cut in zip(columns, cuts, strict=True)], dim=1) @ levels


def _kernel(draw: Draw, d: int, k: int) -> Function:
    centres, weights, width = draw.normal(20, d), draw.normal(20, k), 10.0 ** float(draw.whole(-2, 1))
    return lambda X: torch.exp(-((X[:, None] - centres).square().sum(dim=2)) / (2 * width * d)) @ weights


def _island(draw: Draw, d: int, k: int) -> Function:
    """Affine but for a bump around one far point."""
    f, centre = draw.mlp(d, k, 0, torch.relu), 3 * draw.normal(d) / d**0.5
    return lambda X: f(X) + (0.5 - (X - centre).norm(dim=1, keepdim=True)).clamp_min(0)


def _probability(draw: Draw, d: int, k: int) -> Function:
    f, size = draw.mlp(d, k, draw.whole(0, 2), torch.relu), 10.0 ** float(draw.whole(-1, 2))
    return lambda X: torch.sigmoid(size * f(X)) if k == 1 else torch.softmax(size * f(X), dim=1)


KINDS: dict[str, Callable[[Draw, int, int], Function]] = {
    "one hidden layer": _relu(1),
    "two hidden layers": _relu(2),
    "three hidden layers": _relu(3),
    "four hidden layers": _relu(4),
    "affine": _relu(0),
    "maximum": _maximum,
    "absolute value": _absolute,
    "skip connection": _skip,
    "leaky": _units(lambda z: nn.functional.leaky_relu(z, 0.1)),
    "tanh": _units(torch.tanh),
    "softplus": _units(nn.functional.softplus),
    "saturated": _saturated,
    "constant": _constant,
    "rounded": _rounded,
    "clipped": _clipped,
    "saw-tooth": _saw,
    "steps": _steps,
    "tree": _tree,
    "kernel": _kernel,
    "island": _island,
    "probability": _probability,
}


def _scaled(factor: float, level: float = 0.0) -> Callable[[Draw, int, int], Function]:
    def make(draw: Draw, d: int, k: int) -> Function:
        f = draw.mlp(d, k, 1, torch.relu)
        return lambda X: factor * f(X) + level

    return make


def _overflowing(draw: Draw, d: int, k: int) -> Function:
    f = draw.mlp(d, k, 1, torch.relu)
    return lambda X: torch.exp(200 * f(X))


def _of_a_projection(function: Callable[[Tensor], Tensor]) -> Callable[[Draw, int, int], Function]:
    def make(draw: Draw, d: int, k: int) -> Function:
        A = draw.normal(k, d)
        return lambda X: function(X @ A.T)

    return make


def _disturbed(function: Callable[[Tensor], Tensor]) -> Callable[[Draw, int, int], Function]:
    def make(draw: Draw, d: int, k: int) -> Function:
        f, A = draw.mlp(d, k, 1, torch.relu), draw.normal(k, d)
        return lambda X: f(X) + function(X @ A.T)

    return make


def _first_input(draw: Draw, d: int, k: int) -> Function:
    return lambda X: X[:, :1].repeat(1, k)


EXTREMES: dict[str, Callable[[Draw, int, int], Function]] = {
    "nearly constant": _scaled(1e-12, 1.0),
    "huge": _scaled(1e200),
    "tiny": _scaled(1e-200),
    "overflowing": _overflowing,
    "square": _of_a_projection(torch.square),
    "sine": _of_a_projection(lambda z: torch.sin(50 * z)),
    "floor": _of_a_projection(torch.floor),
    "first input": _first_input,
    "narrow bump": _disturbed(lambda z: torch.relu(1 - 200 * z.abs())),
    "oscillation below 0.001": _disturbed(lambda z: 1e-3 * torch.sin(1e6 * z)),
}


def random_case(seed: int, kind: str | None = None) -> Case:
    """Case number ``seed``, with one to eight inputs and one to three outputs, some in other units.

    Parameters
    ----------
    seed : int
        Number of the case.
    kind : str, optional
        One of ``KINDS`` or ``EXTREMES``; the kinds of ``KINDS`` in turn if None.

    Returns
    -------
    Case
        The function and rows like its data.
    """
    draw = Draw(seed)
    kind = list(KINDS)[seed % len(KINDS)] if kind is None else kind
    inputs, outputs = draw.whole(1, 8), draw.whole(1, 3) if draw.whole(0, 2) == 0 else 1
    function = (KINDS | EXTREMES)[kind](draw, inputs, outputs)
    if draw.whole(0, 3):
        return Case(kind, lambda X: function(X) + 0 * X[:, :1], inputs, outputs)  # autograd follows constants too
    scale, center = 10.0 ** (2 * draw.normal(inputs)), 100 * draw.normal(inputs)
    rows = center + scale * draw.normal(500, inputs)
    return Case(f"{kind}, own units", lambda X: function((X - center) / scale) + 0 * X[:, :1], inputs, outputs, rows)

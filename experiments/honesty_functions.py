"""Random functions of many kinds, on which an attack may fail but must not claim an exact copy that is wrong.

Some are ReLU networks of one hidden layer, which should be copied. The others are not, or only where they are asked:
deeper networks, maxima, absolute values, skip connections, smooth and saturated units, constants, rounded and clipped
answers, saw-teeth, trees, kernels, steps, and models in units of their own. ``outcome`` runs one attack on one of them
and judges what it claims.
"""

from __future__ import annotations

import itertools
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import divulge
from divulge import extraction
from divulge.auditing import TimeUp, deadline
from divulge.extraction import Extraction

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


class _Draw:
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


def _relu(depth: int) -> Callable[[_Draw, int, int], Function]:
    return lambda draw, d, k: draw.mlp(d, k, depth, torch.relu)


def _units(activation: Callable[[Tensor], Tensor]) -> Callable[[_Draw, int, int], Function]:
    return lambda draw, d, k: draw.mlp(d, k, draw.whole(1, 2), activation)


def _maximum(draw: _Draw, d: int, k: int) -> Function:
    f, g = draw.mlp(d, k, draw.whole(0, 1), torch.relu), draw.mlp(d, k, draw.whole(0, 1), torch.relu)
    return lambda X: torch.maximum(f(X), g(X))


def _absolute(draw: _Draw, d: int, k: int) -> Function:
    f = draw.mlp(d, k, draw.whole(0, 1), torch.relu)
    return lambda X: f(X).abs()


def _skip(draw: _Draw, d: int, k: int) -> Function:
    f, g = draw.mlp(d, k, 2, torch.relu), draw.mlp(d, k, 0, torch.relu)
    return lambda X: f(X) + g(X)


def _saturated(draw: _Draw, d: int, k: int) -> Function:
    return draw.mlp(d, k, 1, lambda z: torch.tanh(100 * z))


def _constant(draw: _Draw, d: int, k: int) -> Function:
    level = draw.normal(k)
    return lambda X: level + 0 * X[:, :1]


def _rounded(draw: _Draw, d: int, k: int) -> Function:
    f, digits = draw.mlp(d, k, 1, torch.relu), draw.whole(0, 5)
    return lambda X: torch.round(f(X), decimals=digits)


def _clipped(draw: _Draw, d: int, k: int) -> Function:
    f, size = draw.mlp(d, k, draw.whole(0, 1), torch.relu), 10.0 ** float(draw.whole(-2, 1))
    return lambda X: f(X).clamp(-size, size)


def _saw(draw: _Draw, d: int, k: int) -> Function:
    A, period = draw.normal(k, d), 10.0 ** float(draw.whole(-1, 2))
    return lambda X: torch.remainder(X @ A.T, period)


def _steps(draw: _Draw, d: int, k: int) -> Function:
    f, A = draw.mlp(d, k, 1, torch.relu), draw.normal(1, d)
    return lambda X: f(X) + (X @ A.T > 1.0).to(X)


def _tree(draw: _Draw, d: int, k: int) -> Function:
    columns = [draw.whole(0, d - 1) for _ in range(6)]
    cuts, levels = draw.normal(6), draw.normal(6, k)
    return lambda X: torch.stack([(X[:, c] > cut).to(X) for c, cut in zip(columns, cuts, strict=True)], dim=1) @ levels


def _kernel(draw: _Draw, d: int, k: int) -> Function:
    centres, weights, width = draw.normal(20, d), draw.normal(20, k), 10.0 ** float(draw.whole(-2, 1))
    return lambda X: torch.exp(-((X[:, None] - centres).square().sum(dim=2)) / (2 * width * d)) @ weights


def _island(draw: _Draw, d: int, k: int) -> Function:
    """Affine but for a bump around one far point."""
    f, centre = draw.mlp(d, k, 0, torch.relu), 3 * draw.normal(d) / d**0.5
    return lambda X: f(X) + (0.5 - (X - centre).norm(dim=1, keepdim=True)).clamp_min(0)


def _probability(draw: _Draw, d: int, k: int) -> Function:
    f, size = draw.mlp(d, k, draw.whole(0, 2), torch.relu), 10.0 ** float(draw.whole(-1, 2))
    return lambda X: torch.sigmoid(size * f(X)) if k == 1 else torch.softmax(size * f(X), dim=1)


KINDS: dict[str, Callable[[_Draw, int, int], Function]] = {
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


def random_case(seed: int) -> Case:
    """Case number ``seed``: the kinds in turn, with one to eight inputs, one to three outputs, some in other units."""
    draw = _Draw(seed)
    kind = list(KINDS)[seed % len(KINDS)]
    inputs, outputs = draw.whole(1, 8), draw.whole(1, 3) if draw.whole(0, 2) == 0 else 1
    function = KINDS[kind](draw, inputs, outputs)
    if draw.whole(0, 3):
        return Case(kind, lambda X: function(X) + 0 * X[:, :1], inputs, outputs)  # autograd follows constants too
    scale, center = 10.0 ** (2 * draw.normal(inputs)), 100 * draw.normal(inputs)
    rows = center + scale * draw.normal(500, inputs)
    return Case(f"{kind}, own units", lambda X: function((X - center) / scale) + 0 * X[:, :1], inputs, outputs, rows)


class Target(nn.Module):
    """A case as a module, so that it has gradients."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function, self.unused = function, nn.Parameter(torch.zeros(1, dtype=DOUBLE))

    def forward(self, X: Tensor) -> Tensor:
        return self.function(X)


LIMIT = 20.0
"""Seconds that an attack may take on one of these small functions."""
ROUNDING = 1e-5
"""A copy is wrong in a row if it is off by more than this part of the answers' standard deviation."""
DRAWN = 20_000
ATTACKS: dict[str, tuple[str, Callable[..., Extraction]]] = {
    "from_gradients": ("gradient", extraction.from_gradients),
    "from_values": ("value", extraction.from_values),
    "worst_case": ("value", extraction.worst_case),
    "deep_from_gradients": ("gradient", extraction.deep_from_gradients),
    "softmax_regression": ("gradient", extraction.softmax_regression),
}


@dataclass(frozen=True)
class Outcome:
    """What an attack claimed about a random function, and whether it is true."""

    seed: int
    kind: str
    attack: str
    state: str
    """"exact", "false exact", "not exact", "refused" (a DivulgeError), "traceback" (any other) or "overrun"."""
    seconds: float
    said: str = ""


def outcome(seed: int, attack: str, *, limit: float = LIMIT) -> Outcome:
    """One attack on case number ``seed``, its claim judged on rows that it never saw.

    ``exact`` states a share of inputs on which the copy may be wrong. It is false if the copy is wrong on more than
    that share of 20,000 rows like the data, beyond chance.
    """
    case, (access, run) = random_case(seed), ATTACKS[attack]
    target = divulge.oracle(Target(case.function), access=access, input_shape=[case.inputs])
    began = time.perf_counter()
    try:
        with deadline(limit):
            stolen = run(target, inputs=case.rows, seed=seed)
        state, said = "not exact", stolen.reason
        if stolen.exact:
            share, allowed = _wrong(case, stolen), float(stolen.facts["verification"]["share"])
            excess = allowed + 4 * (allowed / DRAWN) ** 0.5
            state, said = ("false exact", f"wrong on {share:.2%}") if share > excess else ("exact", f"{share:.2%}")
    except TimeUp:
        state, said = "overrun", ""
    except divulge.DivulgeError as error:
        state, said = "refused", str(error)
    except Exception as error:
        state, said = "traceback", "".join(traceback.format_exception(error))
    seconds = time.perf_counter() - began
    state = "overrun" if seconds > 1.15 * limit else state
    return Outcome(seed, case.kind, attack, state, seconds, said)


def _wrong(case: Case, stolen: Extraction) -> float:
    """The share of rows like the data on which the copy is wrong."""
    X = case.draw(DRAWN, seed=987_654)
    with torch.no_grad():
        truth, copy = case.function(X), stolen.model(X.to(DOUBLE)).reshape(DRAWN, -1)
    deviation = truth.std(dim=0).max().clamp_min(1e-300)
    return float(((truth - copy).abs().amax(dim=1) > ROUNDING * deviation).double().mean())

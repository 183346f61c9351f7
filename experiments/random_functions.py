"""Random functions of many kinds, on which an attack may fail but must not claim an exact copy that is wrong.

Some are ReLU networks of one hidden layer, which should be copied. The others are not, or only where they are asked:
deeper networks, maxima, absolute values, skip connections, smooth and saturated units, constants, rounded and clipped
answers, saw-teeth, trees, kernels, steps, and models in units of their own (``KINDS``); and functions at the edge of
double precision: answers of 1e200 and 1e-200, overflow, fast oscillation, narrow bumps (``EXTREMES``). ``outcome`` runs
one attack on one of them and judges what it claims; ``run`` counts the outcomes of many.
"""

from __future__ import annotations

import itertools
import json
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import divulge
from divulge import extraction
from divulge.auditing.hard_stop import hard_stop
from divulge.auditing.probes.probe import TimeUp, deadline
from divulge.extraction import Extraction, TreeCopy

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


def _scaled(factor: float, level: float = 0.0) -> Callable[[_Draw, int, int], Function]:
    def make(draw: _Draw, d: int, k: int) -> Function:
        f = draw.mlp(d, k, 1, torch.relu)
        return lambda X: factor * f(X) + level

    return make


def _overflowing(draw: _Draw, d: int, k: int) -> Function:
    f = draw.mlp(d, k, 1, torch.relu)
    return lambda X: torch.exp(200 * f(X))


def _of_a_projection(function: Callable[[Tensor], Tensor]) -> Callable[[_Draw, int, int], Function]:
    def make(draw: _Draw, d: int, k: int) -> Function:
        A = draw.normal(k, d)
        return lambda X: function(X @ A.T)

    return make


def _disturbed(function: Callable[[Tensor], Tensor]) -> Callable[[_Draw, int, int], Function]:
    def make(draw: _Draw, d: int, k: int) -> Function:
        f, A = draw.mlp(d, k, 1, torch.relu), draw.normal(k, d)
        return lambda X: f(X) + function(X @ A.T)

    return make


def _first_input(draw: _Draw, d: int, k: int) -> Function:
    return lambda X: X[:, :1].repeat(1, k)


EXTREMES: dict[str, Callable[[_Draw, int, int], Function]] = {
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
    draw = _Draw(seed)
    kind = list(KINDS)[seed % len(KINDS)] if kind is None else kind
    inputs, outputs = draw.whole(1, 8), draw.whole(1, 3) if draw.whole(0, 2) == 0 else 1
    function = (KINDS | EXTREMES)[kind](draw, inputs, outputs)
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
LATE = 1.15
"""A run that takes longer than this many times its limit is late."""
FAULTS = ("false exact", "foreign error", "late")
"""The states that no run may end in."""
ROUNDING = 1e-5
"""A copy is wrong in a row if it is off by more than this part of the answers' standard deviation."""
DRAWN = 20_000
ATTACKS: dict[str, tuple[str, Callable[..., Extraction | TreeCopy]]] = {
    "from_gradients": ("gradient", extraction.from_gradients),
    "from_values": ("value", extraction.from_values),
    "worst_case": ("value", extraction.worst_case),
    "softmax_regression": ("gradient", extraction.softmax_regression),
    "from_tree_values": ("value", extraction.from_tree_values),
}
"""Every attack that may call a copy exact; ``deep_from_gradients`` is ``from_gradients`` under another name."""


@dataclass(frozen=True)
class Outcome:
    """What an attack claimed about a random function, and whether it is true."""

    seed: int
    kind: str
    attack: str
    state: str
    """"exact", "false exact", "not exact", "refused" (a DivulgeError), "foreign error" (any other), "stopped" (at its
    time) or "late" (it did not stop in time)."""
    seconds: float
    said: str = ""


def outcome(seed: int, attack: str, *, kind: str | None = None, limit: float = LIMIT) -> Outcome:
    """One attack on case number ``seed``, its claim judged on rows that it never saw.

    ``exact`` states a share of inputs on which the copy may be wrong. It is false if the copy is wrong on more than
    that share of 20,000 rows like the data, beyond chance.

    Parameters
    ----------
    seed : int
        Number of the case, and the attack's seed.
    attack : str
        One of ``ATTACKS``.
    kind : str, optional
        As for :func:`random_case`.
    limit : float
        Seconds for the attack.

    Returns
    -------
    Outcome
        What the attack claimed and whether that is true.
    """
    case, (access, run_attack) = random_case(seed, kind), ATTACKS[attack]
    target = divulge.oracle(Target(case.function), access=access, input_shape=[case.inputs])
    began = time.perf_counter()
    try:
        with hard_stop(1.05 * limit, given=limit), deadline(limit), np.errstate(all="ignore"):
            stolen = run_attack(target, inputs=case.rows, seed=seed)
        seconds = time.perf_counter() - began
        state, said = _judged(case, stolen)
    except TimeUp:
        state, said, seconds = "stopped", "", time.perf_counter() - began
    except divulge.DivulgeError as error:
        state, said, seconds = "refused", str(error), time.perf_counter() - began
    except Exception as error:
        said, seconds = "".join(traceback.format_exception(error)), time.perf_counter() - began
        state = "foreign error"
    late = state not in FAULTS and seconds > LATE * limit
    return Outcome(seed, case.kind, attack, "late" if late else state, seconds, said)


def _judged(case: Case, stolen: Extraction | TreeCopy) -> tuple[str, str]:
    if not stolen.exact:
        return "not exact", stolen.reason
    share, allowed = _wrong(case, stolen), float(stolen.facts["verification"]["share"])
    if share > allowed + 4 * (allowed / DRAWN) ** 0.5:
        return "false exact", f"wrong on {share:.2%}"
    return "exact", f"{share:.2%}"


def _wrong(case: Case, stolen: Extraction | TreeCopy) -> float:
    """The share of rows like the data on which the copy is wrong."""
    X = case.draw(DRAWN, seed=987_654)
    with torch.no_grad():
        truth, copy = case.function(X), stolen.model(X.to(DOUBLE)).reshape(DRAWN, -1)
    finite = torch.isfinite(truth).all(dim=1)
    size = truth[finite].abs().amax().clamp_min(1e-300)  # squares of 1e200 and of 1e-200 are no float64 numbers
    deviation = (truth[finite] / size).std(dim=0).max().clamp_min(1e-300)
    right = finite & ((truth / size - copy / size).abs().amax(dim=1) <= ROUNDING * deviation)
    return 1 - float(right.double().mean())


def run(
    count: int = 2000,
    seed: int = 0,
    seconds: float | None = None,
    limit: float = LIMIT,
    record: Path | None = None,
) -> dict[str, Any]:
    """All exact attacks on random functions of every kind, extremes among them.

    Parameters
    ----------
    count : int
        Functions; the kinds take turns.
    seed : int
        Number of the first case.
    seconds : float, optional
        No function is begun after so many seconds.
    limit : float
        Seconds for an attack on a function.
    record : Path, optional
        A file that keeps every outcome as it comes. A run goes on with what an earlier one left there.

    Returns
    -------
    dict
        How many runs ended in each state, the slowest run, and every run that ended as none may.
    """
    torch.set_num_threads(1)
    kinds = [*KINDS, *EXTREMES]
    done = _recorded(record)
    found: list[Outcome] = []
    begun, functions = time.monotonic(), 0
    while functions < count:
        key = seed + functions
        if any((key, attack) not in done for attack in ATTACKS):
            if seconds is not None and time.monotonic() - begun > seconds:
                break
            for attack in ATTACKS:
                done[key, attack] = outcome(key, attack, kind=kinds[functions % len(kinds)], limit=limit)
                _record(record, done[key, attack])
        found += [done[key, attack] for attack in ATTACKS]
        functions += 1
    states = Counter(one.state for one in found)
    bad = [
        f"{one.attack} on {one.kind}, seed {one.seed}: {one.state}, {one.said[-200:]}"
        for one in found
        if one.state in FAULTS
    ]
    slowest = max((one.seconds for one in found), default=0.0)
    return {"functions": functions, "runs": len(found), **dict(sorted(states.items())), "slowest_seconds": slowest,
            "bad": bad}  # fmt: skip


def _recorded(record: Path | None) -> dict[tuple[int, str], Outcome]:
    """The outcomes that a file keeps; a last line that was cut short is asked again."""
    done: dict[tuple[int, str], Outcome] = {}
    for line in record.read_text().splitlines() if record is not None and record.exists() else ():
        with suppress(ValueError, TypeError):
            one = Outcome(**json.loads(line))
            done[one.seed, one.attack] = one
    return done


def _record(record: Path | None, one: Outcome) -> None:
    if record is not None:
        with record.open("a") as file:
            file.write(json.dumps(asdict(one)) + "\n")

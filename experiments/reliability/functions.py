"""Random and adversarial functions through every exact attack: no false claim, no foreign error, none beyond its time.

A claim of exactness is false if the copy is off by more than ``OFF`` standard deviations of the answers on more than
``SHARE`` of 20,000 fresh Gaussian rows. Attacks get ``SECONDS`` each; they are stopped as the audit stops them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import divulge
from divulge.auditing.hard_stop import hard_stop
from divulge.auditing.probes.probe import TimeUp, deadline
from divulge.core.errors import DivulgeError
from divulge.models import MLP

SECONDS = 10.0
LATE = 1.5
"""A run that takes longer than this many times its seconds is late; machines under load are slow to stop."""
ROWS, OFF, SHARE = 20_000, 1e-4, 1e-3
Function = Callable[[Tensor], Tensor]


class Computed(nn.Module):
    """A function of rows as a module that gradients pass."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, X: Tensor) -> Tensor:
        return self.function(X)


def _network(g: torch.Generator, d: int, h: int, k: int) -> Function:
    A, b, W = (torch.randn(*shape, generator=g, dtype=torch.float64) for shape in ((d, h), (h,), (h, k)))
    return lambda X: torch.relu(X @ A + b) @ W


def families(seed: int) -> dict[str, Function]:
    """One function of every family, drawn with this seed."""
    g = torch.Generator().manual_seed(seed)
    d = [1, 2, 5, 12][seed % 4]
    h, k = 1 + seed % 5, 1 + seed % 3
    f, other = _network(g, d, h, k), _network(g, d, h, k)
    a = torch.randn(d, k, generator=g, dtype=torch.float64)
    deep = MLP([d, h + 2, h + 1, k]).double()
    for parameter in deep.parameters():
        parameter.data = torch.randn(parameter.shape, generator=g, dtype=torch.float64)
    return {
        "network": f,
        "two layers": deep,
        "max of two": lambda X: torch.maximum(f(X), other(X)),
        "absolute": lambda X: f(X).abs(),
        "skip": lambda X: f(X) + X @ a,
        "linear": lambda X: X @ a,
        "constant": lambda X: 0 * (X @ a) + 3.0,
        "nearly constant": lambda X: 1e-12 * f(X) + 1.0,
        "rounded": lambda X: torch.round(f(X), decimals=2),
        "saw-tooth": lambda X: torch.remainder(X @ a, 1.0),
        "steps": lambda X: torch.floor(X @ a),
        "smooth": lambda X: torch.tanh(X @ a),
        "square": lambda X: (X @ a).square(),
        "narrow bump": lambda X: f(X) + torch.relu(1 - 200 * (X @ a).abs()),
        "clipped": lambda X: f(X).clamp(-0.5, 0.5),
        "huge": lambda X: 1e200 * f(X),
        "tiny": lambda X: 1e-200 * f(X),
        "overflowing": lambda X: torch.exp(200 * f(X)),
        "sine": lambda X: torch.sin(50 * (X @ a)),
        "first input": lambda X: X[:, :1] * 1.0,
        "softmax": lambda X: torch.softmax(f(X), dim=1),
        "leaky": lambda X: nn.functional.leaky_relu(f(X), 0.1),
        "gaussian noise by input": lambda X: f(X) + 1e-3 * torch.sin(1e6 * (X @ a)),
    }


def attacks() -> dict[str, Callable[[nn.Module, int], Any]]:
    """Every attack that may call its copy exact."""
    return {
        "from_gradients": lambda m, s: divulge.extraction.from_gradients(_oracle(m, "gradient"), seed=s),
        "from_values": lambda m, s: divulge.extraction.from_values(_oracle(m, "value"), seed=s),
        "worst_case": lambda m, s: divulge.extraction.worst_case(_oracle(m, "value"), epsilon=1e-2, seed=s),
    }


def _oracle(model: nn.Module, access: Any) -> Any:
    return divulge.oracle(model, access=access, budget=300_000, precision="double", input_shape=(model.width,))


def _false(model: nn.Module, copy: nn.Module, seed: int) -> bool:
    X = torch.randn(ROWS, model.width, generator=torch.Generator().manual_seed(10**6 + seed), dtype=torch.float64)
    with torch.no_grad():
        truth, said = model(X).reshape(ROWS, -1), copy(X).reshape(ROWS, -1)
    off = (said - truth).abs().amax(dim=1) > OFF * max(float(truth.std()), 1e-300)
    return float(off.double().mean()) > SHARE


def one(name: str, function: Function, attack: str, seed: int) -> tuple[str, float]:
    """How one attack on one function ended, and its seconds."""
    model = Computed(function)
    model.width = [1, 2, 5, 12][seed % 4]
    start = time.monotonic()
    try:
        with hard_stop(1.05 * SECONDS, given=SECONDS), deadline(SECONDS), np.errstate(all="ignore"):
            result = attacks()[attack](model, seed)
        exact = bool(getattr(result, "exact", False))
        ending = "not exact" if not exact else "false" if _false(model, result.model, seed) else "exact"
    except TimeUp:
        ending = "stopped"
    except DivulgeError:
        ending = "error"
    except Exception as error:  # what the cases look for
        ending = f"foreign {type(error).__name__}: {str(error)[:80]}"
    return ending, time.monotonic() - start


def run(count: int = 2000, seed: int = 0, seconds: float | None = None) -> dict[str, Any]:
    """So many functions, every attack on each, until the seconds are over."""
    torch.set_num_threads(1)
    counts = dict.fromkeys(
        ("functions", "runs", "exact", "not exact", "error", "stopped", "false", "foreign", "late"), 0
    )
    bad: list[str] = []
    begun = time.monotonic()
    draw = seed
    while counts["functions"] < count:
        for name, function in families(draw).items():
            if counts["functions"] >= count or (seconds is not None and time.monotonic() - begun > seconds):
                return {**counts, "bad": bad}
            counts["functions"] += 1
            for attack in attacks():
                ending, took = one(name, function, attack, draw)
                kind = "foreign" if ending.startswith("foreign") else ending
                counts[kind] += 1
                counts["runs"] += 1
                counts["late"] += took > LATE * SECONDS
                if kind in ("foreign", "false") or took > LATE * SECONDS:
                    bad.append(f"{attack} on {name}, seed {draw}: {ending}, {took:.1f} s")
        draw += 1
    return {**counts, "bad": bad}

"""The MNIST lines of Balle et al. 2022: what is changed of the default setting, and how many targets are attacked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

TARGETS = 3
"""Targets of each fixed set and initialisation."""
RUNS = 58
"""Training runs of the direct attack a target; its first guesses are shared by all targets."""
ONE_UNIT_RUNS = 400
"""The same at width 1, where a run is cheap and the way to the weights bends most."""


@dataclass(frozen=True)
class Factor:
    """One line of Table II, III or figure 7: what is changed, and the paper's mean squared error."""

    name: str
    paper: float | None
    change: dict[str, Any] = field(default_factory=dict)
    fixed: int = 1000
    targets: int = 3
    first: int = 0
    """How many targets are passed over, because something was tried on them."""
    runs: float = RUNS
    each: int = TARGETS
    """Targets of each fixed set and initialisation (``balle_lines``)."""
    diagonal: bool = False
    """Whether each of three fixed sets has one initialisation of its own, not three."""
    unknown: str = ""
    """"start" or "order": what of the training the adversary does not know."""
    pretrained: bool = False


def _batches(size: int, rate: float) -> dict[str, Any]:
    return {"batch_size": size, "learning_rate": rate, "momentum": 0.0}


FACTORS = (
    Factor("a start near convergence (appendix C)", None, pretrained=True, targets=8),
    Factor("1,000 fixed", 0.0094, targets=8, runs=88),
    Factor("10,000 fixed (the paper's default)", 0.0089, fixed=10_000, targets=4, first=8, runs=60),
    Factor("250 epochs", 0.0121, {"epochs": 250}),
    Factor("learning rate 0.01", 0.0049, {"learning_rate": 0.01}, targets=5),
    Factor("learning rate 0.01, no momentum", 0.0041, {"learning_rate": 0.01, "momentum": 0.0}, targets=5),
    Factor("learning rate 0.2, no momentum", 0.0063, {"momentum": 0.0}, targets=5),
    Factor("width 1", 0.0079, {"widths": [784, 1, 10]}, targets=5, runs=ONE_UNIT_RUNS),
    Factor("width 100", 0.0079, {"widths": [784, 100, 10]}, targets=2),
    Factor("batches of 128, known seed", None, {"batch_size": 128, "momentum": 0.0}, targets=2),
    Factor("batches of 128, unknown seed", None, {"batch_size": 128, "momentum": 0.0}, runs=24, unknown="order"),
    Factor("batches of 256, rate 0.01, unknown seed", None, _batches(256, 0.01), runs=24, unknown="order"),
    Factor("unknown initial weights", 0.0695, unknown="start"),
)


LINES = (
    Factor("learning rate 0.01", 0.0049, {"learning_rate": 0.01}),
    Factor("learning rate 0.01, no momentum", 0.0041, {"learning_rate": 0.01, "momentum": 0.0}),
    Factor("learning rate 0.2, no momentum", 0.0063, {"momentum": 0.0}),
    Factor("1,000 fixed", 0.0094, runs=88),
    Factor("width 1", 0.0079, {"widths": [784, 1, 10]}, runs=ONE_UNIT_RUNS, each=3, diagonal=True),
    Factor("width 100", 0.0079, {"widths": [784, 100, 10]}, each=2, diagonal=True),
    Factor("250 epochs", 0.0121, {"epochs": 250}),
    Factor("ReLU", 0.0182, {"activation": "relu"}, diagonal=True, runs=88),
    Factor("10,000 fixed (the paper's default)", 0.0089, fixed=10_000, each=2, diagonal=True, runs=60),
    *(
        Factor(f"batches of 256, rate {rate}, known seed", None, _batches(256, rate), each=1, diagonal=True)
        for rate in (0.01, 0.2)
    ),
)
"""The lines that are attacked over three fixed sets and three initialisations."""

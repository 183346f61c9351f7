"""The model under audit: what it is, what the auditor may see of it, and what is known beside it."""

from __future__ import annotations

import hashlib
import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from divulge.errors import InvalidInput, NonFiniteAnswer, WrongShape
from divulge.extraction.logits import beneath
from divulge.oracles.base import Access, Oracle
from divulge.workers import Workers

Kind = Literal["linear", "one hidden ReLU layer", "piecewise linear", "piecewise constant", "smooth", "unknown"]
KINDS: dict[Kind, str] = {
    "linear": "a linear model",
    "one hidden ReLU layer": "a network with one hidden ReLU layer",
    "piecewise linear": "a deeper piecewise-linear network",
    "piecewise constant": "a piecewise-constant model, such as a forest of trees",
    "smooth": "a smooth network",
    "unknown": "a model of unknown kind",
}
_PIECEWISE = (nn.ReLU, nn.LeakyReLU, nn.MaxPool1d, nn.MaxPool2d, nn.ReLU6, nn.Hardtanh)
_SMOOTH = (nn.ELU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.GELU, nn.SiLU, nn.Softmax, nn.SELU)


_TAKES = {
    "extract": ("--guard", "--output", "--input-shape", "--trust-pickle", "--token-env", "--rate-limit"),
    "span": ("--input-shape", "--trust-pickle", "--token-env", "--rate-limit"),
    "reconstruct": ("--trust-pickle",),
    "informed": ("--trust-pickle",),
}
"""Which of an audit's options about the target each command has too."""


@dataclass(frozen=True)
class Target:
    """What an audit attacks. ``make_oracle(access)`` builds a fresh, counted view for each adversary."""

    name: str
    kind: Kind
    access: Access
    input_dim: int
    output_dim: int
    make_oracle: Callable[[Access], Oracle]
    model: nn.Module | None = None
    """The weights, where the auditor holds them."""
    estimator: Any = None
    """The fitted scikit-learn estimator, where the target is one."""
    inputs: Tensor | None = None
    """Training inputs [n, d]: to know beside the target record, and to judge reconstructions by."""
    labels: Tensor | None = None
    unseen: Tensor | None = None
    """Inputs like the training ones that the model never saw: the control."""
    unseen_labels: Tensor | None = None
    mean: Tensor | None = None
    """What was subtracted from the inputs before training, to show pictures as they were."""
    recipe: Any = None
    """How the model was trained, for the insider."""
    shape: tuple[int, ...] | None = None
    """(channels, height, width) where an input is a picture."""
    columns: tuple[str, ...] = ()
    """Names of the inputs where they are a table."""
    guards: str = ""
    address: str = "MODEL"
    """How the command line names the target, to print commands that repeat a finding."""
    data_name: tuple[str, ...] | None = None
    """What the command line says after --data: nothing if the data lies beside the model, None for data in memory."""
    options: tuple[str, ...] = ()
    """What else the command line says about the target: its guards, its input shape, ..."""
    seed: int = 0
    workers: Workers = None
    """Where independent jobs run: here, in several processes, or on a Dask cluster."""
    folder: Path | None = None
    """Where attacks keep what they have computed, to go on from after a stop."""
    budget: int | None = None
    """Rows that each adversary may ask."""

    def oracle(self, access: Access) -> Oracle:
        return self.make_oracle(access)

    @property
    def description(self) -> str:
        """What the model is, as far as the attacker can tell."""
        from_outside = self.kind == "piecewise linear" and self.model is None
        return "a piecewise-linear model of unknown depth" if from_outside else KINDS[self.kind]

    @property
    def data_option(self) -> list[str]:
        """How the command line is told the training data."""
        name = ("TRAINING_DATA",) if self.data_name is None and self.inputs is not None else self.data_name
        return ["--data", *name] if name else []

    def command(self, verb: str, *words: Any) -> str:
        """The command that repeats a finding; where the single attack does not take all options, the audit does."""
        takes = _TAKES.get(verb, ())
        given = [option for option in self.options if option.startswith("--")]
        if verb != "audit" and any(option not in takes for option in given):
            access = words[words.index("--access") + 1] if "--access" in words else self.access
            return self.command("audit", "--access", access, *self.data_option)
        words = ("divulge", verb, self.address, *words, *self.options, "--seed", self.seed)
        return shlex.join(str(word) for word in words)

    def affordable(self, rows: int) -> int:
        """How many rows the auditor asks beside the attack, to judge it: no more than the budget of an adversary."""
        return rows if self.budget is None else min(rows, self.budget)

    def kept(self, function: Callable[[Any], Any], jobs: list[Any], name: str, *, workers: Workers = None) -> list[Any]:
        """The jobs' results, kept in the audit's folder, so that an audit that was killed trains nothing twice."""
        from divulge.workers import checkpointed, run

        if self.folder is None:
            return run(function, jobs, workers=workers, stage=name)
        return checkpointed(function, jobs, self.folder / name, workers=workers, stage=name)

    def grants(self, access: Access) -> bool:
        from divulge.oracles.base import ACCESS_LEVELS

        return ACCESS_LEVELS.index(access) <= ACCESS_LEVELS.index(self.access)

    def data_digest(self) -> str:
        """Tells the data that was given from other data."""
        state = hashlib.sha256()
        for part in (self.inputs, self.labels, self.unseen, self.mean):
            state.update(b"none" if part is None else part.detach().cpu().to(torch.float64).numpy().tobytes())
        return state.hexdigest()

    def as_dict(self) -> dict[str, Any]:
        """What the report says about it."""
        facts: dict[str, Any] = {
            "name": self.name,
            "kind": self.description,
            "inputs": self.input_dim if self.shape is None else " x ".join(str(extent) for extent in self.shape),
            "outputs": self.output_dim,
            "access_granted": self.access,
        }
        if self.model is not None:
            facts["parameters"] = sum(p.numel() for p in self.model.parameters())
        if self.inputs is not None:
            facts["training_records"] = len(self.inputs)
        if self.guards:
            facts["guards"] = self.guards
        return facts


def kind_of_module(model: nn.Module) -> Kind:
    """What a network is, by its layers."""
    layers = list(model.modules())
    if getattr(model, "spec", {}).get("architecture") == "relu-network":
        return "one hidden ReLU layer"
    if layers and type(layers[-1]) is nn.Softmax:
        layers.pop()  # exact extraction takes it off
    if any(isinstance(layer, _SMOOTH) for layer in layers):
        return "smooth"
    weighted = sum(isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d) for layer in layers)
    bends = sum(isinstance(layer, _PIECEWISE) for layer in layers)
    if bends == 0:
        return "linear" if weighted <= 1 else _kind_by_asking_module(model)
    convolutional = any(isinstance(layer, nn.Conv1d | nn.Conv2d) for layer in layers)
    return "one hidden ReLU layer" if weighted == 2 and not convolutional else "piecewise linear"


def _kind_by_asking_module(model: nn.Module) -> Kind:
    from divulge.oracles import oracle

    return kind_by_asking(oracle(model, precision="double"))


def kind_by_asking(oracle: Oracle, *, lines: int = 4, points: int = 65, seed: int = 0) -> Kind:
    """What a network looks like from outside: straight, bent at places, or curved everywhere.

    Second differences along random lines vanish for a linear model, vanish in most places for a piecewise-linear one,
    and nowhere for a smooth one; probabilities are looked at as the logits beneath them. How many layers a
    piecewise-linear one has is for the attacks to find out. Costs ``lines * points`` values, fewer if the budget is
    smaller, and two to see whether they are probabilities.
    """
    left = oracle.ledger.remaining
    if left is not None:
        lines = max(1, min(lines, (left - 2) // points))
    try:
        return _kind_along_lines(beneath(oracle, None, seed), lines, points, seed)
    except NonFiniteAnswer:  # the logarithm of a probability that rounded to zero
        return _kind_along_lines(oracle, lines, points, seed)


def _kind_along_lines(oracle: Oracle, lines: int, points: int, seed: int) -> Kind:
    generator = torch.Generator().manual_seed(seed)
    start, direction = torch.randn(2, lines, 1, oracle.input_dim, generator=generator, dtype=torch.float64)
    t = torch.linspace(-2, 2, points, dtype=torch.float64)[None, :, None]
    values = oracle.value((start + t * direction).reshape(lines * points, -1)).to(torch.float64)
    values = values.reshape(lines, points, -1)
    bends = values.diff(n=2, dim=1).abs()
    floor = 64 * max(oracle.eps, 2.0**-52) * float(values.abs().max().clamp(min=1e-300))
    straight = float((bends <= floor).to(torch.float64).mean())
    if straight == 1.0:
        return "linear"
    steps = values.diff(dim=1).abs() > floor
    if float(steps.to(torch.float64).mean()) < 0.5 and int(steps.sum()) <= int((bends > floor).sum()):
        return "piecewise constant"  # every step stands alone between two flat places
    return "piecewise linear" if straight > 0.05 or _bends_are_few(bends) else "smooth"


def _bends_are_few(bends: Tensor) -> bool:
    """For noisy or rounded answers: a few second differences far above all the others."""
    flat = bends.flatten().sort().values
    typical = float(flat[len(flat) // 2].clamp(min=1e-300))
    return float((flat > 1e3 * typical).to(torch.float64).mean()) > 0.01


def fit_data(inputs: Any, input_dim: int, what: str) -> Tensor:
    """Rows [n, d] as float64, checked against the model's width."""
    try:
        rows = torch.as_tensor(inputs if isinstance(inputs, Tensor) else np.array(inputs, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"The {what} must be rows of numbers: {error}.") from error
    rows = rows.reshape(len(rows), -1).to(torch.float64)
    if rows.shape[1] != input_dim:
        raise WrongShape(
            f"The {what} has {rows.shape[1]} values a row, and the model takes {input_dim}; they do not fit."
        )
    if len(rows) == 0 or not bool(torch.isfinite(rows).all()):
        raise InvalidInput(f"The {what} is empty or holds NaN or infinite values; clean it first.")
    return rows


def picture_shape(shape: Sequence[int] | None, input_dim: int) -> tuple[int, ...] | None:
    """(channels, height, width) of what is a picture; None for what is a table."""
    if shape is not None and len(shape) == 3 and math.prod(shape) == input_dim:
        return tuple(int(extent) for extent in shape)
    return None

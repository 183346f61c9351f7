"""The target as exact extraction sees it: at every point an affine map, known to a stated precision.

One gradient query tells value and gradient, and with them the whole affine map of the cell that the point lies in.
LocalMaps are taken to float64 and corrected for the rounding of the query itself to the oracle's number format.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from divulge.extraction.gradients.kink_search import Samples, Tolerance
from divulge.extraction.relu_network import NetworkEstimate
from divulge.oracles.base import Oracle
from divulge.oracles.outputs import rounding_step

ROUNDED = 12**-0.5
"""Standard error of a number that is rounded to multiples of one."""
ENTRIES_AT_ONCE = 1 << 26
"""Gradients asked in one request hold at most this many numbers."""


class TargetMaps:
    """An oracle's affine maps, in float64 on the CPU."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle
        self.inputs, self.outputs = oracle.input_dim, oracle.output_dim
        self._rows_at_once = max(1, ENTRIES_AT_ONCE // (self.inputs * self.outputs))

    def maps(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Values [n, k] and gradients [n, k, d] at the rows of ``X``."""
        parts = [self._ask(X[i : i + self._rows_at_once]) for i in range(0, len(X), self._rows_at_once)]
        return torch.cat([value for value, _ in parts]), torch.cat([gradient for _, gradient in parts])

    def values(self, X: Tensor) -> Tensor:
        """Values [n, k]. Rows that the oracle's format cannot hold are moved first, so ask what ``stored`` returns."""
        return self.oracle.value(X.to(self.oracle.dtype)).to("cpu", torch.float64)

    def stored(self, X: Tensor) -> Tensor:
        """The rows as the oracle will see them."""
        return X.to(self.oracle.dtype).to(torch.float64)

    def room(self, wanted: int) -> int:
        """How many of ``wanted`` rows the budget still covers; one if none, so that the oracle itself says no."""
        remaining = self.oracle.ledger.remaining
        return wanted if remaining is None else max(1, min(wanted, remaining))

    def _ask(self, X: Tensor) -> tuple[Tensor, Tensor]:
        value, gradient = self.oracle.gradient(X.to(self.oracle.dtype))
        value, gradient = value.to("cpu", torch.float64), gradient.to("cpu", torch.float64)
        moved = X - self.stored(X)
        if bool(moved.any()):
            value = value + torch.einsum("nkd,nd->nk", gradient, moved)
        return value, gradient


@dataclass(frozen=True)
class LocalMaps:
    """Points ``X`` [n, d] with the target's values [n, k] and gradients [n, k, d] there."""

    X: Tensor
    value: Tensor
    gradient: Tensor

    def __len__(self) -> int:
        return len(self.X)

    def minus(self, copy: NetworkEstimate) -> LocalMaps:
        """What the copy does not explain."""
        value, gradient = copy.value_and_gradient(self.X)
        return LocalMaps(self.X, self.value - value, self.gradient - gradient)

    @property
    def constant(self) -> Tensor:
        """Value of the affine map at the origin [n, k]."""
        return self.value - torch.einsum("nkd,nd->nk", self.gradient, self.X)


FEWEST_VALUES = 3
"""Different answers that must all be numbers of single precision for the target to be taken to compute in it."""


@dataclass(frozen=True)
class Quality:
    """How well the oracle answers, as its first answers tell."""

    eps: float
    """Relative size of an error in an answer."""
    step: float
    """What all answers are multiples of, or 0."""
    noise: float
    """How differently one row was answered twice."""
    scale: float
    """Size of the target's gradient."""
    level: float
    """Size of the target's values."""
    entries: int
    """Numbers in one gradient."""
    format_eps: float
    """Relative precision of the answers' number format."""

    @property
    def coarse(self) -> bool:
        return bool(self.step or self.noise)

    @property
    def reach(self) -> float:
        """How far out on a line to look: farther costs precision, nearer misses more kinks, which repair must find."""
        return float(self.eps**-0.25)

    @property
    def entry_error(self) -> float:
        """Standard error of each number of a gradient."""
        own = self.format_eps * self.scale / self.entries**0.5
        return float(np.linalg.norm([own, ROUNDED * self.step, self.noise]))

    def tolerance(self, inputs: int) -> Tolerance:
        blur = self.step + 8 * self.noise
        jump = max(self.eps**0.75 * self.scale, 4e-10 * self.scale, 4 * blur * self.entries**0.5)
        rounding = 8 * self.eps * (self.scale * inputs**0.5)
        closest = max(1e-9, 0.1 * self.eps**0.5)
        return Tolerance(
            jump=jump,
            value=rounding + 8 * self.eps * self.level + blur * inputs**0.5,
            drift=rounding + blur * inputs**0.5,
            closest=closest,
        )

    def describe(self) -> str:
        if self.noise:
            return f"the oracle answered one row twice with a difference of {self.noise:.1e}: its answers are noisy"
        if self.step:
            return f"the oracle rounds its answers to multiples of {self.step:g}"
        return f"the oracle answers to a relative precision of {self.eps:.1e}"


def quality(oracle: Oracle, answers: LocalMaps, repeat: tuple[Tensor, Tensor]) -> Quality:
    """Judge the oracle by its answers and by those to the first row, asked again."""
    value, gradient = answers.value, answers.gradient
    scale = float(gradient.flatten(1).norm(dim=1).max())
    level = float(value.abs().max())
    again = max(float((value[0] - repeat[0]).abs().max()), float((gradient[0] - repeat[1]).abs().max()))
    own = float(torch.finfo(oracle.dtype).eps)
    noise = again if again > 64 * own * max(level, scale) else 0.0
    step = 0.0 if noise or bool((value == value[0]).all()) else rounding_step(value.numpy(), own)
    tiny = torch.finfo(torch.float64).tiny
    telling = torch.unique(value).numel() >= FEWEST_VALUES  # where all units are off, answers are a bias of any format
    single = telling and all(bool((part == part.float().double()).all()) for part in (value, gradient))
    eps = max(oracle.eps, float(torch.finfo(torch.float32).eps) if single and level > 0 else 0.0)
    format_eps, eps = eps, max(eps, (step + noise) / max(level, scale, tiny))
    return Quality(
        eps=min(eps, 0.1), step=step, noise=noise, scale=max(scale, level * 1e-3, tiny), level=level,
        entries=gradient[0].numel(), format_eps=format_eps,
    )  # fmt: skip


class SampleLines:
    """Asks the target on lines, less what a copy explains already: what ``KinkSearch`` needs."""

    def __init__(self, target: TargetMaps, before: NetworkEstimate, origins: Tensor, directions: Tensor) -> None:
        self.target, self.before, self.origins, self.directions = target, before, origins, directions
        self.answers: list[Samples] = []
        """Every answer, without anything subtracted."""

    def at(self, line: Tensor, t: Tensor) -> Tensor:
        return self.origins[line] + t[:, None] * self.directions[line]

    def __call__(self, line: Tensor, t: Tensor) -> Samples:
        X = self.at(line, t)
        answer = LocalMaps(X, *self.target.maps(X))
        self.answers.append(self._samples(line, t, answer))
        return self._samples(line, t, answer.minus(self.before)) if self.before.width else self.answers[-1]

    def _samples(self, line: Tensor, t: Tensor, maps: LocalMaps) -> Samples:
        slope = torch.einsum("nkd,nd->nk", maps.gradient, self.directions[line])
        return Samples(line, t, maps.value, slope, maps.gradient)

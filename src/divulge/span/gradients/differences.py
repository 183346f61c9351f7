"""Gradients from values alone (Jayaram 2020, Lemma 3.2): one difference along every input coordinate.

The lemma takes steps so small that no ReLU switches inside them; then differences are exact in exact arithmetic. A
real oracle rounds, so the step is chosen by measurement. The derivatives along q1 and q2 must add up to the derivative
along their sum. The mismatch is the error of a difference, whatever its cause: rounding, curvature, kinks or noise. The
same test along a few more directions rejects a gradient whose stencil contains a kink.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Scheme = Literal["forward", "central"]
Ask = Callable[[Tensor], Tensor]

CHECKS = 3  # directions along which every gradient is tested for linearity
_POINTS = 4  # points at which the step is calibrated
_GOOD = 5e-11  # sufficient relative error; of the steps that reach it the smallest crosses the fewest kinks
_FAIR = 1e-9  # sufficient for forward differences, which take half the rows


@dataclass(frozen=True)
class Stencil:
    """How differences are taken."""

    scheme: Scheme
    step: float
    error: float
    """Standard error of one directional derivative."""
    relative_error: float = 0.0
    """That error over the size of a typical derivative; 0 where it was not measured."""

    def rows_per_gradient(self, dim: int) -> int:
        """Rows that one gradient in ``dim`` inputs asks."""
        return 1 + dim + CHECKS if self.scheme == "forward" else 2 * (dim + CHECKS)


@dataclass(frozen=True)
class Estimate:
    """The gradient at one point by differences."""

    gradient: Tensor
    """[k, d], one row for each output."""
    value: Tensor
    """[k]."""
    mismatch: float
    """Root mean squared error in the linearity test."""
    largest: float
    """Largest absolute answer. Its rounding bounds the error from below."""


def uncalibrated(eps: float, scale: float) -> Stencil:
    """The stencil of a non-adaptive run: central, with the step that balances rounding and curvature."""
    step = scale * eps ** (1 / 3)
    return Stencil("central", step, eps / step)


def calibrate(ask: Ask, dim: int, *, eps: float, scale: float, generator: torch.Generator) -> Stencil:
    """The smallest step with a sufficient error, else the step with the least error; forward where that suffices."""
    points, first, second = (torch.randn(_POINTS, dim, generator=generator, dtype=torch.float64) for _ in range(3))
    first, second = first / first.norm(dim=1, keepdim=True), second / second.norm(dim=1, keepdim=True)
    third = (first + second) / math.sqrt(2)
    steps = [scale * 10.0**power for power in range(math.ceil(math.log10(eps) / 2), 1)]
    moves = torch.stack([sign * step * q for step in steps for q in (first, second, third) for sign in (1.0, -1.0)])
    answers = ask(torch.cat([scale * points[None], scale * points + moves]).reshape(-1, dim)).to(torch.float64)
    answers = answers.reshape(1 + len(moves), _POINTS, -1)
    centre, moved = answers[0], answers[1:].reshape(len(steps), 3, 2, _POINTS, -1)

    candidates: list[tuple[bool, Stencil]] = []
    for i, step in enumerate(steps):
        slopes: dict[Scheme, Tensor] = {  # each [3 directions, points, outputs]
            "forward": (moved[i, :, 0] - centre) / step,
            "central": (moved[i, :, 0] - moved[i, :, 1]) / (2 * step),
        }
        for scheme, slope in slopes.items():
            miss = (slope[0] + slope[1]) / math.sqrt(2) - slope[2]
            missed = float(miss.square().mean().sqrt()) / math.sqrt(2)
            error = max(missed, eps * float(centre.abs().max()) / step)
            relative = missed / max(float(slope.square().mean().sqrt()), torch.finfo(torch.float64).tiny)
            candidates.append((relative <= _GOOD, Stencil(scheme, step, error, relative)))
    by_error = [stencil for _, stencil in sorted(candidates, key=lambda candidate: candidate[1].error)]
    forward = [stencil for good, stencil in candidates if good and stencil.scheme == "forward"]
    forward += [stencil for stencil in by_error if stencil.scheme == "forward" and stencil.relative_error < _FAIR]
    central = [stencil for good, stencil in candidates if good and stencil.scheme == "central"]
    return [*forward, *central, *by_error][0]


def narrower(stencil: Stencil) -> Stencil:
    """A stencil with a fifth of the step, for closer kinks. Its rounding error is five times as large."""
    return Stencil(stencil.scheme, stencil.step / 5, stencil.error * 5, stencil.relative_error * 5)


def check_directions(dim: int, seed: int) -> Tensor:
    """Random unit rows [CHECKS, d], the same for all gradients of a run."""
    rows = torch.randn(CHECKS, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    units: Tensor = rows / rows.norm(dim=1, keepdim=True)
    return units


def stencil_rows(point: Tensor, stencil: Stencil, checks: Tensor) -> Tensor:
    """The rows that one gradient asks: the point [d], a step along each coordinate and one along each check."""
    steps = stencil.step * torch.cat([torch.eye(len(point), dtype=torch.float64), checks])
    if stencil.scheme == "forward":
        return torch.cat([point[None], point + steps])
    return torch.cat([point + steps, point - steps])


def gradient_from(answers: Tensor, stencil: Stencil, checks: Tensor) -> Estimate:
    """The gradient computed from the answers [rows, k] to ``stencil_rows``."""
    answers = answers.to(torch.float64)
    if stencil.scheme == "forward":
        value = answers[0]
        slopes = (answers[1:] - value) / stencil.step
    else:
        plus, minus = answers.chunk(2)
        slopes = (plus - minus) / (2 * stencil.step)
        value = (plus[-1] + minus[-1]) / 2
    gradient = slopes[: -len(checks)].T  # [k, d]
    mismatch = (checks.to(gradient.device) @ gradient.T - slopes[-len(checks) :]).square().mean().sqrt()
    return Estimate(gradient, value, float(mismatch) / math.sqrt(2), float(answers.abs().max()))

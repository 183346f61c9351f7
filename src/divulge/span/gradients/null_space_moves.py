"""Moves inside the presumed null space. The outputs must not change under them if the span is complete."""

from __future__ import annotations

import torch
from torch import Tensor


def gaussian(count: int, dim: int, scale: float, generator: torch.Generator) -> Tensor:
    """Gaussian points [count, dim] of standard deviation ``scale``."""
    points: Tensor = scale * torch.randn(count, dim, generator=generator, dtype=torch.float64)
    return points


class NullSpaceMoves:
    """The moves made since the span last grew, and the one that changed the outputs most."""

    def __init__(self, scale: float, generator: torch.Generator) -> None:
        self._scale, self._generator = scale, generator
        self.count = 0
        self.largest = 0.0
        self.worst: tuple[Tensor, Tensor] | None = None

    def move(self, points: Tensor, basis: Tensor) -> Tensor:
        """The points with new Gaussian coordinates outside the span of ``basis``. They stay Gaussian."""
        change = gaussian(len(points), points.shape[1], self._scale, self._generator) - points
        basis = basis.cpu()
        moved: Tensor = points + change - (change @ basis.T) @ basis
        return moved

    def record(self, starts: Tensor, ends: Tensor, before: Tensor, after: Tensor) -> None:
        """Record the outputs [n, k] before and after moves from ``starts`` to ``ends`` [n, d]."""
        self.count += len(ends)
        changes = (after - before).abs().amax(dim=1)
        worst = int(changes.argmax())
        if self.worst is None or float(changes[worst]) > self.largest:
            self.worst = starts[worst], ends[worst]
            self.largest = float(changes[worst])

    def reset(self) -> None:
        """Discard all moves: the span has grown, and earlier moves were not inside its null space."""
        self.count, self.largest, self.worst = 0, 0.0, None

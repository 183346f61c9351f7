"""Moves inside what looks like the null space, which a network must ignore if nothing of its span is missing."""

from __future__ import annotations

import torch
from torch import Tensor


def gaussian(count: int, dim: int, scale: float, generator: torch.Generator) -> Tensor:
    points: Tensor = scale * torch.randn(count, dim, generator=generator, dtype=torch.float64)
    return points


class Moves:
    """The moves made since the span last grew, and the one that changed outputs most."""

    def __init__(self, scale: float, generator: torch.Generator) -> None:
        self._scale, self._generator = scale, generator
        self.count = 0
        self.largest = 0.0
        self.worst: tuple[Tensor, Tensor] | None = None

    def move(self, points: Tensor, basis: Tensor) -> Tensor:
        """The same points with fresh Gaussian coordinates outside the span of ``basis``, and so Gaussian again."""
        change = gaussian(len(points), points.shape[1], self._scale, self._generator) - points
        basis = basis.cpu()
        moved: Tensor = points + change - (change @ basis.T) @ basis
        return moved

    def note(self, starts: Tensor, ends: Tensor, before: Tensor, after: Tensor) -> None:
        """Outputs [n, k] before and after moves from ``starts`` to ``ends`` [n, d]."""
        self.count += len(ends)
        changes = (after - before).abs().amax(dim=1)
        worst = int(changes.argmax())
        if self.worst is None or float(changes[worst]) > self.largest:
            self.worst = starts[worst], ends[worst]
            self.largest = float(changes[worst])

    def forget(self) -> None:
        """The span has grown: earlier moves left it."""
        self.count, self.largest, self.worst = 0, 0.0, None

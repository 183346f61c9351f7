"""A test of the null space by labels: moves inside it must not shift the decision boundary.

A label shows a change only near the boundary. So each test starts at a boundary point, which a bisection inside the
span finds, and takes two points at a distance ``tolerance`` on either side of it. Both move by the same random vector
of the null space. If the network ignores that vector, both keep their labels. If it does not, the boundary shifts, and
one of the two labels changes unless the shift is smaller than the tolerance.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from divulge.span.labels.boundary import Labels, bisect_segments

_FINEST = 1e-4  # smallest tolerance, in units of the spread of the points
_COARSEST = 0.5  # above this tolerance a move tests nothing at the boundary
_TILTS = (
    16.0  # tolerance over the shift that the error of the basis typically causes, which is the error times the spread
)
_DRAWS = 8  # batches of segments drawn in search of two labels

Segments = tuple[Tensor, Tensor, Tensor]
"""Starts [m, d], ends [m, d], and the labels at the starts [m]; the labels at the ends differ."""


@dataclass(frozen=True)
class NullSpaceTest:
    """The outcome of moves in the null space."""

    moves: int
    """Moves made from a boundary point."""
    tolerance: float
    """Shift of the boundary that goes unnoticed, in units of the spread of the points."""
    tested: int
    """Labels that could have changed: two for each move from a boundary point."""
    changed: Segments
    """Moves that changed a label."""

    @property
    def passed(self) -> bool:
        """Whether moves were made and none changed a label."""
        return self.moves > 0 and len(self.changed[0]) == 0


def examine_null_space(
    labels: Labels, basis: Tensor, *, boundary: Tensor, normals: Tensor, moves: int, tilt: float, scale: float,
    generator: torch.Generator,
) -> NullSpaceTest:  # fmt: skip
    """Move ``moves`` boundary points in the null space of ``basis`` [k, d].

    ``boundary`` and ``normals`` [m, d] are boundary points that are known already, and their unit normals. They are
    used where random segments show too few boundary points. ``tilt`` is the error of the basis in radians.
    """
    dim = basis.shape[1]
    nothing = basis.new_zeros(0, dim)
    relative = max(_FINEST, _TILTS * tilt)
    if relative > _COARSEST:
        points = scale * torch.randn(2 * moves, dim, generator=generator, dtype=torch.float64)
        return NullSpaceTest(0, relative, len(points), _changed(labels, basis, points, scale, generator))
    tolerance = relative * scale
    starts, ends = _segments(labels, basis, moves, scale, generator)
    start_labels = labels(starts) if len(starts) else torch.zeros(0, dtype=torch.long)
    points = bisect_segments(labels, starts, ends, start_labels, tolerance / 4) if len(starts) else nothing
    along = (ends - starts) / (ends - starts).norm(dim=1, keepdim=True).clamp_min(1e-300)
    missing = moves - len(points)
    if missing > 0 and len(boundary):
        again = torch.arange(missing) % len(boundary)
        points, along = torch.cat([points, boundary[again]]), torch.cat([along, normals[again]])
    low, high = labels(torch.cat([points - tolerance * along, points + tolerance * along])).chunk(2)
    between = low != high  # elsewhere the boundary is not between the two points
    points, along = points[between], along[between]
    sides = torch.cat([points - tolerance * along, points + tolerance * along])
    known = torch.cat([low[between], high[between]])
    return NullSpaceTest(len(points), relative, len(sides), _changed(labels, basis, sides, scale, generator, known))


def _changed(
    labels: Labels, basis: Tensor, rows: Tensor, scale: float, generator: torch.Generator, known: Tensor | None = None
) -> Segments:
    """Rows whose label changes when they get random coordinates in the null space; pairs of rows move alike."""
    half = rows[: (len(rows) + 1) // 2]
    change = scale * torch.randn(half.shape, generator=generator, dtype=torch.float64) - half
    change = (change - (change @ basis.T) @ basis).repeat(2, 1)[: len(rows)]
    if len(rows) == 0:
        return rows, rows, torch.zeros(0, dtype=torch.long)
    before = labels(rows) if known is None else known
    different = before != labels(rows + change)
    return rows[different], (rows + change)[different], before[different]


def _segments(
    labels: Labels, basis: Tensor, count: int, scale: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Up to ``count`` segments inside the span whose ends have different labels: starts and ends, [m, d]."""
    found: list[tuple[Tensor, Tensor]] = []
    missing = count
    for _ in range(_DRAWS):
        starts, others = scale * torch.randn(2, count, basis.shape[1], generator=generator, dtype=torch.float64)
        ends = starts + ((others - starts) @ basis.T) @ basis
        first, second = labels(torch.cat([starts, ends])).chunk(2)
        mixed = (first != second).nonzero()[:, 0][:missing]
        found.append((starts[mixed], ends[mixed]))
        missing -= len(mixed)
        if missing == 0:
            break
    return torch.cat([starts for starts, _ in found]), torch.cat([ends for _, ends in found])

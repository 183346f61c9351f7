"""Rows of a table in the span: the points at which every category has one level.

The levels of a category are neighbouring columns whose sum is the bias coordinate, 1. In a row one of them is 1 and the
others are 0. So the rows are where two sets meet: the points of the span whose bias coordinate is 1, and the points
with one level in each category. Both have projections that are cheap. Alternating between them ends at a near miss. The
relaxed reflections of Elser 2018 (The complexity of bit retrieval, RRR) leave near misses and stay where the sets meet.
They start at many random points, and where one has found a row it starts again.

With few columns for each row there are more points that are nearly rows, and the search takes longer.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from divulge.core import progress
from divulge.reconstruction.known_start.difference import Span

WHOLE, MOST_LEVELS = 1e-3, 200
"""How near the levels of a category are to 0 and 1, and their largest number."""
PROJECTIONS = 3
"""Random combinations of the records in which categories are looked for first."""
STEP = 0.25
"""Of a reflection. Of 200 rows with 416 columns (seed 900) 3,000 steps of 200 points find 115 with 0.05, 172 with 0.2,
170 with 0.3, 40 with 0.8 and 6 with 1."""
POINTS, STEPS, IDLE = 200, 6000, 2000
"""Points at a time, their steps, and the steps without a new row after which a search that found some ends."""
CHECKED = 50
"""Steps between two looks at what was found."""
INDEPENDENT = 1e-4
"""The smallest singular value of the category columns, as a share of the largest, with which they determine a row."""


def blocks(span: Span) -> list[tuple[int, int]]:
    """The first column and the number of levels of each category."""
    if not span.has_bias:
        return []
    draw = torch.randn(PROJECTIONS, span.rank, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mixed = draw.to(span.V) @ span.V  # few combinations show the columns that all of them confirm
    sums = torch.cat([mixed.new_zeros(PROJECTIONS, 1), mixed[:, :-1].cumsum(dim=1)], dim=1)
    size, found = span.V[:, -1].norm(), []
    for levels in range(2, min(MOST_LEVELS, span.input_dim) + 1):
        rest = (sums[:, levels:] - sums[:, :-levels] - mixed[:, -1:]).abs().amax(dim=0)
        for start in (rest < 10 * WHOLE * size).nonzero()[:, 0].tolist():
            total = span.V[:, start : start + levels].sum(dim=1)
            if float((total - span.V[:, -1]).norm()) < WHOLE * float(size):
                found.append((start, levels))
    return found


def categorical(span: Span) -> Tensor:
    """Which inputs [d] are levels of a category."""
    found = torch.zeros(span.input_dim, dtype=torch.bool)
    for start, levels in blocks(span):
        found[start : start + levels] = True
    return found


def _apart(found: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Categories that share no column, those with the fewest levels first: columns that are always 0 fit twice."""
    kept: list[tuple[int, int]] = []
    for start, levels in found:
        if all(start + levels <= other or other + count <= start for other, count in kept):
            kept.append((start, levels))
    return kept


@dataclass(frozen=True)
class _Categories:
    """The columns of all categories, one after the other."""

    columns: Tensor
    """Their places among the inputs, [c]."""
    places: Tensor
    """For each category the places of its levels in ``columns``, filled up with c, [b, most]."""

    def nearest(self, x: Tensor) -> Tensor:
        """The points [m, c] with one level in each category that are nearest to x [m, c]."""
        padded = torch.cat([x, x.new_full((len(x), 1), -math.inf)], dim=1)
        largest = padded[:, self.places].argmax(dim=2)
        return torch.zeros_like(x).scatter_(1, self.places[torch.arange(len(self.places)), largest], 1.0)


def _categories(span: Span) -> _Categories | None:
    found = _apart(blocks(span))
    if not found:
        return None
    columns = torch.cat([torch.arange(start, start + levels) for start, levels in found])
    places = torch.full((len(found), max(levels for _, levels in found)), len(columns))
    first = 0
    for row, (_, levels) in zip(places, found, strict=True):
        row[:levels] = torch.arange(first, first + levels)
        first += levels
    return _Categories(columns, places)


def records(span: Span, *, seed: int, within: Tensor | None = None, end: float = math.inf) -> Tensor:
    """Coordinates c [k, r] of rows with one level in each category, in the span or in its part ``within`` [w, r].

    There are none where the table has no categories, or where they do not determine a row.
    """
    categories = _categories(span)
    nothing = span.S.new_zeros(0, span.rank)
    if categories is None:
        return nothing
    whole = span.V[:, torch.cat([categories.columns, torch.tensor([span.V.shape[1] - 1])])]
    sizes = torch.linalg.svdvals(whole)
    if len(whole) > whole.shape[1] or float(sizes[-1]) < INDEPENDENT * float(sizes[0]):
        return nothing
    back = torch.linalg.pinv(whole)
    search = _Search(categories, *_affine(whole if within is None else within @ whole), span.rank)
    found = search.run(torch.Generator().manual_seed(seed), end)
    wanted = torch.cat([found, found.new_ones(len(found), 1)], dim=1).to(back)
    p = wanted @ back
    exact = (p @ whole - wanted).abs().amax(dim=1) < WHOLE
    coordinates: Tensor = p[exact] / span.S
    return coordinates


def _affine(values: Tensor) -> tuple[Tensor, Tensor]:
    """A point [c] and orthonormal directions [w - 1, c] of combinations of values [w, c + 1] whose last one is 1."""
    last = values[:, -1]
    directions = torch.linalg.svd(last[None])[2][1:] @ values[:, :-1]
    basis = torch.linalg.svd(directions, full_matrices=False)[2]
    point = (last @ values[:, :-1]) / last.square().sum()
    return (point - (point @ basis.T) @ basis).float(), basis.float()


@dataclass(frozen=True)
class _Search:
    """Points that move by reflections until they are rows."""

    categories: _Categories
    point: Tensor
    basis: Tensor
    most: int
    """The number of rows that there are."""

    def run(self, draw: torch.Generator, end: float) -> Tensor:
        """Different rows [k, c]."""
        x, last = self._random(POINTS, draw), 0
        found = x[:0]
        for step in range(STEPS):
            inside = self._projected(x)
            whole = self.categories.nearest(2 * inside - x)
            if step % CHECKED == CHECKED - 1:
                met = (whole - inside).abs().amax(dim=1) < 10 * WHOLE
                before, found = len(found), torch.unique(torch.cat([found, whole[met]]), dim=0)
                last = step if len(found) > before else last
                progress.report("rows of one level in each category", done=len(found), total=self.most)
                if len(found) >= self.most or (last and step - last >= IDLE) or time.perf_counter() > end:
                    break
                x[met] = whole[met] = inside[met] = self._random(int(met.sum()), draw)
            x = x + STEP * (whole - inside)
        return found

    def _projected(self, x: Tensor) -> Tensor:
        return self.point + ((x - self.point) @ self.basis.T) @ self.basis

    def _random(self, count: int, draw: torch.Generator) -> Tensor:
        """Points of the span near random shares of all levels."""
        return self._projected(torch.rand(count, len(self.point), generator=draw))

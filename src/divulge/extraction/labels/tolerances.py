"""Where the boundary is searched, and how precisely: every length that the attack uses, in one place.

The attack works in standardised coordinates (``oracles.region``), in which inputs are around N(0, I). Lengths are
relative to ``spread``, the length of a typical input, the square root of d.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from divulge.extraction.labels.asking import Array

REACH = 30.0
"""The boundary is followed to this many spreads from the centre."""
LINE = 30.0
"""Points of edges are bisected to this many times the precision of those of facets: most edges are not measured."""
ACROSS = 0.25
"""Rounding moves the boundary by this share of a row's rounding along a facet's normal. Planes cut facets obliquely, so
that in a plane it moves by more. Facets of float32 networks (20-16-1, and 64-8-1 trained on digits) are as precise."""
COARSE = 1e-9
"""Rounding of a row from which on corners of different neurons agree by chance."""
COARSE_CHECK = 16.0
"""How near, in precisions of a facet, its measured points must lie in a coarse target: slight bends are larger than the
precision there."""
MARGIN = 0.02
"""Edges that come this near to a bound (in standard deviations) have left the region: corners need room around."""


@dataclass(frozen=True)
class Tolerances:
    """Lengths in standardised coordinates."""

    spread: float
    """The length of a typical input."""
    resolution: float
    """How precisely the points of facets are bisected."""
    line: float
    """How precisely the points of edges are, until their facet is measured."""
    offset: float
    """An edge is left where the boundary is this far from its line."""
    bracket: float
    """Corners are first bracketed to this."""
    check: float
    """How near to its predicted place a measured point of a facet must lie."""
    loose: float
    """Largest angle between two measurements of one hyperplane."""
    tight: float
    """Largest distance, relative to the spread, of a point from a hyperplane that it lies on."""

    @property
    def coarse(self) -> bool:
        """Whether the target rounds so much that neurons are told by pairs of facets alone."""
        return self.line >= COARSE * self.spread

    @staticmethod
    def of(inputs: int, precision: float, rounding: float) -> Tolerances:
        """For d inputs and a relative precision of boundary points; ``rounding`` is that of a row.

        In double precision the lengths are fixed multiples of the spread. A coarser target keeps
        their order: resolution < offset < bracket.
        """
        spread = math.sqrt(inputs)
        coarse = rounding >= COARSE
        in_plane = max(precision, rounding)
        fine = ACROSS * rounding if coarse else in_plane
        return Tolerances(
            spread=spread,
            resolution=fine * spread,
            line=max(LINE * precision, rounding) * spread,
            offset=max(1e-9, 100 * in_plane) * spread,
            bracket=max(3e-5, 2e3 * in_plane) * spread,
            check=(COARSE_CHECK if coarse else 100) * fine * spread,
            loose=max(1e-6, 1e3 * in_plane),
            tight=max(1e-9, 100 * fine),
        )


@dataclass(frozen=True, eq=False)
class Domain:
    """The standardised rows that may be asked: a box, a ball and further half-spaces."""

    low: Array
    """[d], -inf where there is no bound."""
    high: Array
    """[d]."""
    reach: float
    """The radius of the ball."""
    margin: float = MARGIN
    """How far edges stay off the faces of the box."""
    faces: Array | None = None
    """Further half-spaces [m, d + 1]: faces @ (x, 1) > 0, rows of unit normals."""
    centre: Array | None = None
    """A row inside of them [d]."""

    @property
    def unbounded(self) -> bool:
        """Whether it is the whole space."""
        return self.faces is None and not bool(np.isfinite(np.append(self.low, self.high)).any())

    def clipped(self, rows: Array) -> Array:
        """The rows moved into the region."""
        return self._moved(rows, 0.0)

    def inner(self, rows: Array) -> Array:
        """The rows moved into the region and off its faces."""
        return self._moved(rows, 2 * self.margin)

    def _moved(self, rows: Array, margin: float) -> Array:
        if self.unbounded:
            return rows
        rows = np.clip(rows, self.low + margin, self.high - margin)
        if self.faces is None:
            return rows
        assert self.centre is not None
        height, top = (x @ self.faces[:, :-1].T + self.faces[:, -1] - margin for x in (rows, self.centre))
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(height < 0, top / (top - height), 1.0).min(axis=1)
        return np.asarray(self.centre + np.clip(share, 0, 1)[:, None] * (rows - self.centre))

    def holds(self, rows: Array) -> bool:
        """Whether all rows are inside, off the faces."""
        inside = bool((rows > self.low + 2 * self.margin).all() and (rows < self.high - 2 * self.margin).all())
        if self.faces is None or not inside:
            return inside
        return bool((rows @ self.faces[:, :-1].T + self.faces[:, -1] > 2 * self.margin).all())

    def room(self, x: Array, direction: Array) -> float:
        """How far one can go from x along a unit direction before the region ends."""
        along = float(x @ direction)
        inside = along**2 + self.reach**2 - float(x @ x)
        ball = math.sqrt(inside) - along if inside > 0 else 0.0
        with np.errstate(divide="ignore", invalid="ignore"):
            box = np.where(direction > 0, self.high - self.margin - x, self.low + self.margin - x) / direction
        ends = [ball, float(box[direction != 0].min(initial=math.inf))]
        if self.faces is not None:
            height, slope = self.faces[:, :-1] @ x + self.faces[:, -1] - self.margin, self.faces[:, :-1] @ direction
            ends.append(float((-height[slope < 0] / slope[slope < 0]).min(initial=math.inf)))
        return max(0.0, min(ends))

"""The decision boundary in a 2-plane: a polygon of edges and corners.

In a 2-plane through the input space a piecewise linear boundary is made of straight edges. At a corner either a hidden
neuron switches, or a third class comes in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from divulge.extraction.labels.asking import Array

if TYPE_CHECKING:
    from divulge.extraction.labels.facets import Facet

Pair = tuple[int, int]


@dataclass(eq=False)
class Slice:
    """A 2-plane, x = origin + y @ frame, with what was found of the boundary in it."""

    origin: Array  # [d]
    frame: Array  # [2, d] orthonormal
    edges: list[Edge] = field(default_factory=list)
    corners: list[Corner] = field(default_factory=list)
    lost: int = 0
    """How often the boundary could not be followed further."""

    def lift(self, y: Array) -> Array:
        """Inputs of points of the plane."""
        return np.asarray(self.origin + y @ self.frame)

    def give_up(self) -> None:
        """Keep nothing of it: what was followed is no polygon."""
        self.lost += 1
        self.edges.clear()
        self.corners.clear()


@dataclass(eq=False)
class Edge:
    """A straight edge: two boundary points in the plane, its direction and normal, and the corners at its ends."""

    slice: Slice
    near: Array
    far: Array
    pair: Pair
    """Labels on the side of the normal and on the other."""
    tangent: Array
    normal: Array
    ends: list[Corner | None] = field(default_factory=lambda: [None, None])
    """The corner at the near end and that at the far end."""
    facet: Facet | None = None
    asked: list[bool] = field(default_factory=lambda: [True, True])
    """Whether the near and the far point were bisected; the others were predicted."""
    error: float = 0.0
    """How far a predicted point may be off."""
    slope: Array | None = None
    """Gradient of the difference of the two logits in the plane [2], in the scale of the forecast."""

    @property
    def length(self) -> float:
        """Distance of the two points."""
        return float(np.linalg.norm(self.far - self.near))

    def points(self) -> Array:
        """The two points as inputs [2, d]."""
        return self.slice.lift(np.stack([self.near, self.far]))

    def asked_points(self) -> Array:
        """Those of the two points that were bisected, as inputs [n, d]."""
        return np.asarray(self.points()[np.array(self.asked)])

    def error_at(self, y: Array, resolution: float) -> float:
        """How far the line may be off at a point of the plane."""
        near, far = (resolution if asked else max(resolution, self.error) for asked in self.asked)
        return float(far * np.linalg.norm(y - self.near) + near * np.linalg.norm(y - self.far)) / self.length

    def line(self) -> tuple[Array, Array]:
        """A point and the unit direction."""
        return self.near, unit(self.far - self.near)

    def turn_to(self, far: Array) -> None:
        """Another far point; tangent and normal follow."""
        self.far = far
        self.tangent = unit(far - self.near)
        normal = turned(self.tangent)
        self.normal = normal if normal @ self.normal > 0 else -normal

    def extent(self, longest: float) -> tuple[Array, float]:
        """The middle of the edge and its length; an edge without a corner is cut at ``longest``."""
        p, t = self.line()
        start, stop = (None if end is None else float((end.y - p) @ t) for end in self.ends)
        low = 0.0 if start is None else start
        high = max(self.length, low) if stop is None else stop
        if start is None and stop is None:
            low, high = max(low, (high - longest) / 2), min(high, (high + longest) / 2)
        elif start is None:
            low = max(high - longest, min(low, high))
        elif stop is None:
            high = min(low + longest, high)
        return p + t * (low + high) / 2, high - low


@dataclass(eq=False)
class Corner:
    """Where two edges meet."""

    slice: Slice
    before: Edge
    after: Edge
    kind: Literal["neuron", "class"]
    """Whether a hidden neuron switches or a third class comes in."""
    y: Array
    """In the plane."""
    turn: float = 0.0
    """The angle between the edges."""
    error: float = 0.0
    """How far the corner may be off."""
    neuron: int | None = None
    """The neuron that switches here, once it is known."""

    @property
    def x(self) -> Array:
        """As an input."""
        return self.slice.lift(self.y)

    def settle(self, resolution: float) -> None:
        """Place the corner where the lines of its two edges meet."""
        p, t = self.before.line()
        q, s = self.after.line()
        cross = cross_product(t, s)
        self.y = p + cross_product(q - p, s) / cross * t
        self.turn = abs(math.atan2(cross, float(t @ s)))
        off = max(resolution, *(edge.error_at(self.y, resolution) for edge in (self.before, self.after)))
        self.error = off / max(1e-12, math.sin(min(self.turn, math.pi / 2)))


def turned(v: Array) -> Array:
    """A vector of the plane, turned by a right angle."""
    return np.array([-v[1], v[0]])


def unit(v: Array) -> Array:
    """The vector at length one."""
    return np.asarray(v / np.linalg.norm(v))


def cross_product(v: Array, w: Array) -> float:
    """Of two vectors of the plane."""
    return float(v[0] * w[1] - v[1] * w[0])

"""The whole hyperplane of the boundary piece that an edge lies in.

Rough slopes are measured along the slice's normal, six labels a direction; then exact heights along the rough normal.
A direction that leaves the facet shows half way out, at two labels, and is tried again with a quarter of the step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from divulge.extraction.labels.asking import Array, Asking, bisect_all, rounds
from divulge.extraction.labels.polygon import Edge, Pair, turned
from divulge.extraction.labels.tolerances import Tolerances

ROUGH_STEP = 0.01
"""Step of the rough slopes, in lengths of the edge."""
EXACT_STEP = 0.06
SLIGHT_TURN, TURNS = 0.25, 4.0
"""Past a turn smaller than this slopes differ by at most this many times the turn, in nearly all directions."""
PILOTS = 6
"""Directions that go first; where many of them leave the facet, the others start with smaller steps."""
COARSE_GROUP, GROUP = 4, 8
"""Directions whose coarse heights, and whose exact heights, are checked together."""
ATTEMPTS = 14
STEEPEST = 4.0
"""The window of a direction that fails widens to this slope: its rough slope may be that of another facet."""


AXIS = 1e-6
"""Largest part of a normal outside of one coordinate, for a facet along the axes."""


NEARLY_ALL = 0.8


@dataclass(eq=False)
class Facet:
    """A hyperplane of the boundary, normal . x = offset, and the points that it came from."""

    normal: Array
    """Unit length, to the side of ``pair[0]``."""
    offset: float
    pair: Pair
    points: Array
    """Boundary points on it [n, d]."""
    step: float
    """How far around ``base`` it was measured; 0 if it was computed."""
    error: float
    """Angle by which the normal may be off."""
    base: Array
    """A point of it."""
    scale: float | None = None
    """The slope of the difference of the two logits in (normal spread, -offset), up to a factor of the pair."""
    scale_error: float = 0.0
    """How far the scale may be off."""

    @property
    def measured(self) -> bool:
        """Whether it was measured, and not computed from another facet."""
        return self.step > 0

    def homogeneous(self, spread: float) -> Array:
        """(normal spread, -offset) at unit length, for rows (x / spread, 1)."""
        row = np.append(self.normal * spread, -self.offset)
        return np.asarray(row / np.linalg.norm(row))


def measure(edge: Edge, tolerances: Tolerances, random: np.random.Generator) -> Asking[Facet | None]:
    """The facet of an edge; None where it is too small or too steep to be measured.

    Past a slight turn the facet before it has nearly the same slopes, and none are measured roughly.
    """
    if not (yield from _refine(edge, tolerances)):
        return None
    middle, length = edge.extent(tolerances.spread)
    base = edge.slice.lift(middle)
    _, direction = edge.line()
    normal2 = turned(direction) if turned(direction) @ edge.normal > 0 else -turned(direction)
    tangent, normal = direction @ edge.slice.frame, normal2 @ edge.slice.frame
    d = len(base)
    frame = np.concatenate([np.stack([tangent, normal]), random.standard_normal((d - 2, d))])
    others = np.linalg.qr(frame.T)[0].T[2:]
    across = normal
    before = _beside(edge, tangent, normal)
    if before is not None:
        normal, window = before
    else:
        rough = yield from _rough_slopes(base, others, normal, edge.pair[0], length * ROUGH_STEP)
        if rough is None:
            return None
        normal = normal - rough @ others
        # a rough slope is off by up to 1/16 along the old normal, and by as much less along the new as that is steeper
        window = max(0.01, 0.125 / float(np.linalg.norm(normal)))
        normal /= np.linalg.norm(normal)
    directions = _reflected(others, across, normal)
    exact = _Heights(base, directions, normal, edge.pair[0], tolerances, length * EXACT_STEP, window)
    if not (yield from exact.measure()):
        return None
    normal = normal - exact.slopes @ directions
    normal /= np.linalg.norm(normal)
    r = tolerances.resolution
    error = math.hypot(float(np.linalg.norm(r / exact.step)), r / edge.length)
    points = np.concatenate([exact.points, edge.points()])
    step = float(np.median(exact.step)) if len(exact.step) else length * EXACT_STEP
    return Facet(normal, float(normal @ base), edge.pair, points, step, error, base)


def _reflected(rows: Array, one: Array, two: Array) -> Array:
    """Rows in the reflection that takes one unit vector to another: what is orthogonal to the one is to the other."""
    axis = one - two
    length = float(np.linalg.norm(axis))
    return rows - np.outer(rows @ axis, 2 / length**2 * axis) if length > 0 else rows


def _refine(edge: Edge, tolerances: Tolerances) -> Asking[bool]:
    """Bisect the two points of an edge as precisely as those of its facet; whether the boundary is there."""
    if tolerances.line <= tolerances.resolution:
        return True
    wide = np.where(edge.asked, 4 * tolerances.line, 10 * tolerances.offset)
    up = edge.normal @ edge.slice.frame
    h, inside, _ = yield from bisect_all(edge.points(), up, -wide, wide, edge.pair[0], tolerances.resolution)
    if not inside.all():
        return False
    edge.near = edge.near + h[0] * edge.normal
    edge.turn_to(edge.far + h[1] * edge.normal)
    edge.asked = [True, True]
    for corner in edge.ends:
        if corner is not None:
            corner.settle(tolerances.line)
    return True


def _beside(edge: Edge, tangent: Array, normal: Array) -> tuple[Array, float] | None:
    """The normal of a facet past a slight turn, turned to hold this edge, and how far slopes may be off it."""
    corners = [c for c in edge.ends if c is not None and c.kind == "neuron" and 0 < c.turn < SLIGHT_TURN]
    for corner in sorted(corners, key=lambda c: c.turn):
        known = (corner.after if corner.before is edge else corner.before).facet
        if known is not None:
            turned_to = known.normal - (known.normal @ tangent) * tangent
            turned_to /= np.linalg.norm(turned_to) * np.sign(turned_to @ normal)
            return turned_to, max(0.01, TURNS * corner.turn)
    return None


def _rough_slopes(base: Array, others: Array, normal: Array, label: int, step: float) -> Asking[Array | None]:
    """Slopes of the boundary in the directions ``others`` [m, d], to an eighth; steeper ones at smaller steps."""
    slopes, steps, todo, wide = np.zeros(len(others)), np.full(len(others), step), np.arange(len(others)), 4.0
    for _ in range(6):
        if not len(todo):
            break
        rows = base + steps[todo, None] * others[todo]
        window = wide * steps[todo]
        h, inside, _ = yield from bisect_all(rows, normal, -window, window, label, float(steps[todo].min()) * wide / 32)
        slopes[todo] = h / steps[todo]
        todo = todo[~inside]
        wide *= 4
        steps[todo] /= 4
    return slopes if not len(todo) else None


class _Heights:
    """Exact heights of the boundary over the rough hyperplane, one for each direction."""

    def __init__(
        self, base: Array, directions: Array, normal: Array, label: int, tolerances: Tolerances, step: float,
        window: float,
    ) -> None:  # fmt: skip
        count = len(directions)
        self.base, self.directions, self.normal, self.label = base, directions, normal, label
        self.tolerances, self.window = tolerances, window
        self.step, self.widen = np.full(count, step), np.ones(count)
        self.slopes, self.points = np.zeros(count), np.zeros((count, len(base)))
        self.done = np.zeros(count, bool)

    def measure(self) -> Asking[bool]:
        smallest = max(1e-7, 1e4 * self.tolerances.resolution / self.tolerances.spread) * self.tolerances.spread
        for attempt in range(ATTEMPTS):
            todo = np.nonzero(~self.done)[0]
            if not len(todo):
                return True
            if attempt == 0:
                todo = todo[:PILOTS]
            failed = yield from self._attempt(todo)
            self.step[failed] /= 4
            self.widen[failed] = np.minimum(self.widen[failed] * 2, max(1.0, STEEPEST / self.window))
            if attempt == 0 and len(failed) > 0.3 * len(todo):
                self.step[~self.done] = np.minimum(self.step[~self.done], self.step[todo].min() * 2)
            if self.step.min() < smallest:
                return False
        return bool(self.done.all())

    def _attempt(self, todo: Array) -> Asking[Array]:
        """Measure these directions: coarsely first, where most that leave the facet show it. Returns those that did."""
        step = self.step[todo]
        rows = self.base + step[:, None] * self.directions[todo]
        wide = self.window * self.widen[todo] * step
        coarse = max(float(wide.min()) / 2**11, self.tolerances.resolution)
        h, good, _ = yield from bisect_all(rows, self.normal, -wide, wide, self.label, coarse)
        good &= yield from self._flat(todo, h, np.maximum(wide / 2**10, self.tolerances.check), COARSE_GROUP)
        left = np.nonzero(good)[0]
        if len(left):
            narrow = wide[left] / 2 ** rounds(2 * float(wide.max()), coarse)  # what the coarse bisection left
            narrow = np.maximum(narrow, 4 * self.tolerances.resolution)  # where rounding makes the boundary rough
            exact, inside, _ = yield from bisect_all(
                rows[left], self.normal, h[left] - narrow, h[left] + narrow, self.label, self.tolerances.resolution
            )
            inside &= yield from self._flat(todo[left], exact, np.full(len(left), self.tolerances.check), GROUP)
            h[left], good[left] = exact, inside
        right = todo[good]
        self.slopes[right] = h[good] / step[good]
        self.points[right] = rows[good] + h[good, None] * self.normal
        self.done[right] = True
        return todo[~good]

    def _flat(self, todo: Array, h: Array, tolerance: Array, group: int) -> Asking[Array]:
        """Whether the boundary is flat half way out: groups of directions are asked together, and one by one if not."""
        good = np.ones(len(todo), bool)
        groups = np.split(np.arange(len(todo)), range(group, len(todo), group))
        weights = [0.5 / math.sqrt(len(g)) * np.ones(len(g)) for g in groups]
        parts = list(zip(weights, groups, strict=True))
        rows = np.stack([(w * self.step[todo[g]]) @ self.directions[todo[g]] for w, g in parts])
        heights = np.array([w @ h[g] for w, g in parts])
        flat = yield from self._beside(self.base + rows, heights, np.array([tolerance[g].max() for g in groups]))
        unsure = np.concatenate([*(g for g, fits in zip(groups, flat, strict=True) if not fits), np.zeros(0, int)])
        if len(unsure):
            good[unsure] = yield from self._half_way(todo[unsure], h[unsure], tolerance[unsure])
        return good

    def _half_way(self, todo: Array, h: Array, tolerance: Array) -> Asking[Array]:
        """Whether the boundary half way out is half as high: two labels a direction."""
        half = self.base + 0.5 * self.step[todo, None] * self.directions[todo]
        return (yield from self._beside(half, 0.5 * h, tolerance))

    def _beside(self, rows: Array, h: Array, tolerance: Array) -> Asking[Array]:
        """Whether the boundary is at these heights over the rows: two labels a row."""
        above, below = rows + (h + tolerance)[:, None] * self.normal, rows + (h - tolerance)[:, None] * self.normal
        labels = yield np.concatenate([above, below])
        return np.asarray((labels[: len(rows)] == self.label) & (labels[len(rows) :] != self.label))


def along_axes(facets: Sequence[Facet]) -> bool:
    """Whether at least two facets were measured, across different axes, and nearly all of them parallel to axes."""
    normals = np.abs(np.stack([f.normal for f in facets])) if facets else np.zeros((0, 1))
    main = normals.argmax(axis=1)
    rest = normals.copy()
    rest[np.arange(len(main)), main] = 0
    return len(set(main.tolist())) > 1 and bool((np.linalg.norm(rest, axis=1) < AXIS).mean() >= NEARLY_ALL)

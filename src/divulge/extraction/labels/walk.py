"""Following the boundary in a 2-plane, from corner to corner.

An edge is followed by asking both sides of its line at doubling distances. Its end is bracketed from one side, one
label a round. The next edge is where two arcs around the bracket cross the boundary. A corner counts only if the
lines of the two edges meet inside the bracket and four labels beside it fit: the bracket alone lets false corners
through.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from divulge.extraction.labels.asking import Array, Asking, bisect
from divulge.extraction.labels.facets import Facet
from divulge.extraction.labels.forecast import Forecast
from divulge.extraction.labels.polygon import Corner, Edge, Pair, Slice, cross_product, turned, unit
from divulge.extraction.labels.tolerances import Domain, Tolerances

MOST_CORNERS = 400
CURVED_CORNERS, CURVED_EDGE = 40, 0.01
"""So many corners in a row between edges shorter than this share of the spread are those of a curve, which is followed
like a polygon, by chords that it hardly leaves. Edges between neurons' hyperplanes differ in length: the longest of so
many is several times as long as most."""
LEAP = 4.0
"""An edge is asked at distances that grow by this factor."""
STRETCH = 64.0
"""A line is followed to this many times the distance of its two points before a farther point is measured."""
FIRST_CIRCLE = 0.03
"""Radius, in spreads, of the circle that shows the direction of the first edge."""
Step = tuple[Edge, Literal["neuron", "class"], Array, int | None]
"""The edge past a corner, the kind of corner, where it is, and its neuron if that is known."""
ARCS = (24.0, 96.0)
"""Radii of the two arcs around a corner, in widths of its bracket."""
SECOND_ARC = 0.03
"""Half the length of the second arc, as an angle: the corner is off the centre by at most half a width."""


@dataclass(frozen=True)
class Bracket:
    """The end of an edge: the edge holds at ``inside`` and not at ``outside``, seen from one side of its line."""

    inside: float
    outside: float
    side: float
    label: int

    @property
    def width(self) -> float:
        return max(self.outside - self.inside, 1e-9)


@dataclass(eq=False)
class Walk:
    """A walk along the boundary in one slice."""

    slice: Slice
    tolerances: Tolerances
    domain: Domain
    random: np.random.Generator
    forecast: Forecast
    closed: bool = field(default=False, init=False)
    curved: bool = field(default=False, init=False)

    # -- starting -----------------------------------------------------------------------------------------------------

    def between(self, end: Array, label: int) -> Asking[None]:
        """Find the boundary between the plane's origin, of this label, and ``end``, and follow it both ways."""
        length = float(np.linalg.norm(end))
        path = lambda t: self.slice.lift(t * end)  # noqa: E731
        found = yield from bisect(path, 0.0, 1.0, label, self.tolerances.line / length)
        beyond = found.beyond
        if beyond is None:
            beyond = int((yield self.slice.lift(end)[None])[0])
        first = yield from self._first_edge(found.middle * end, unit(end), (label, beyond))
        if first is None:
            self.slice.lost += 1
        else:
            yield from self.follow(first)

    def follow(self, first: Edge) -> Asking[None]:
        """Follow the boundary from one edge, both ways."""
        self.slice.edges.append(first)
        yield from self._onwards(first, first)
        if not self.closed and not self.curved:
            asked = first.asked[::-1]
            back = Edge(self.slice, first.far, first.near, first.pair, -first.tangent, first.normal, asked=asked)
            yield from self._onwards(back, first)
        for corner in self.slice.corners:
            corner.settle(self.tolerances.line)

    def _first_edge(self, y: Array, along: Array, pair: Pair) -> Asking[Edge | None]:
        """The edge through y: a small circle around it changes its label on both sides."""
        radius = FIRST_CIRCLE * self.tolerances.spread
        for _ in range(4):  # a curved boundary is not straight even in the smallest circle
            one = yield from self._arc(y, radius, along, (math.pi, 0.0), pair[0])
            if one is not None and one[1] == pair[1]:
                two = yield from self._arc(y, radius, along, (-math.pi, 0.0), pair[0])
                if two is not None and two[1] == pair[1]:
                    up, down = one[0], two[0]
                    tangent = unit(up - down)
                    if abs(float((y - down) @ turned(tangent))) < 25 * self.tolerances.line:
                        if turned(tangent) @ along > 0:  # the normal points to the first label
                            up, down, tangent = down, up, -tangent
                        return Edge(self.slice, down, up, pair, tangent, turned(tangent))
            radius /= 6
        return None

    def _arc(
        self, centre: Array, radius: float, axis: Array, angles: tuple[float, float], label: int
    ) -> Asking[tuple[Array, int, float] | None]:
        """On a circle: the point where ``label`` ends between two angles from ``axis``, the label beyond, the angle."""

        def point(angle: float) -> Array:
            return np.asarray(centre + radius * (math.cos(angle) * axis + math.sin(angle) * turned(axis)))

        def path(angle: float) -> Array:
            return self.slice.lift(point(angle))

        found = yield from bisect(path, *angles, label, self.tolerances.line / radius)
        if found.beyond is None or found.inside == angles[0]:
            return None
        return point(found.middle), found.beyond, found.middle

    # -- from corner to corner ----------------------------------------------------------------------------------------

    def _onwards(self, edge: Edge, held: Edge) -> Asking[None]:
        """Follow the boundary on from ``edge`` until it leaves the region, closes or is lost.

        ``held`` is the edge of the slice that it belongs to: itself, or the same edge the other way round.
        """
        self.closed = False
        for _ in range(MOST_CORNERS):
            step = yield from self._predicted(edge, held.facet)
            if step is None:
                bracket = yield from self._end_of(edge)
                if held is not edge:  # walked backwards: the point on that side makes the edge's base line longer
                    held.near, held.asked[0] = edge.far.copy(), edge.asked[1]
                if bracket is None:
                    return
                step = yield from self._turn(edge, bracket)
                if step is not None:
                    self.forecast.resume(edge, step[0], step[2])
            if step is None:
                self.slice.lost += 1
                return
            after, kind, here, neuron = step
            if self._closes(held, here):
                return
            corner = Corner(self.slice, held, after, kind, here, neuron=neuron)
            self.slice.corners.append(corner)
            held.ends[1 if held is edge else 0] = corner
            after.ends[0] = corner
            self.slice.edges.append(after)
            edge = held = after
            if self._is_curve():
                self.curved = True
                self.slice.give_up()
                return

    def _is_curve(self) -> bool:
        """Whether the last corners are too near to each other to be those of neurons."""
        last = [corner.y for corner in self.slice.corners[-CURVED_CORNERS:]]
        apart = np.linalg.norm(np.diff(last, axis=0), axis=1)
        return len(last) == CURVED_CORNERS and bool(apart.max() < CURVED_EDGE * self.tolerances.spread)

    def _predicted(self, edge: Edge, facet: Facet | None) -> Asking[Step | None]:
        """The next corner, if it is that of a known neuron: predicted, and confirmed by four labels."""
        room = self.domain.room(self.slice.lift(edge.near), edge.tangent @ self.slice.frame)
        found = self.forecast.next(edge, facet, room)
        if found is None or not (yield from self._fits(edge, found.here, found.after, found.reach)):
            return None
        return found.after, "neuron", found.here, found.neuron

    def _closes(self, held: Edge, here: Array) -> bool:
        """Whether the walk is back at a corner that it knows."""
        near = 1e-7 * (1 + float(np.linalg.norm(here))) + 3 * self.tolerances.offset
        for corner in self.slice.corners:
            if np.linalg.norm(corner.y - here) < near:
                self.closed = True
                if held is not corner.before and held is not corner.after and held.ends[1] is None:
                    held.ends[1] = corner
                return True
        return False

    def _sides(self, edge: Edge, t: float) -> Asking[tuple[bool, bool]]:
        """Whether the labels beside the edge's line at distance t from its near point are those of the edge."""
        q, e = edge.near + t * edge.tangent, self.tolerances.offset * edge.normal
        labels = yield self.slice.lift(np.stack([q + e, q - e]))
        return int(labels[0]) == edge.pair[0], int(labels[1]) == edge.pair[1]

    def _end_of(self, edge: Edge) -> Asking[Bracket | None]:
        """Where the edge ends; its far point moves outwards on the way. None if it leaves the region."""
        room = self.domain.room(self.slice.lift(edge.near), edge.tangent @ self.slice.frame)
        base = edge.length
        good, bad, sides = base, None, (True, True)
        while bad is None:
            t = min(LEAP * good, room)
            if t <= good:
                yield from self._lengthen(edge, good)
                return None
            if t > STRETCH * base:
                if not (yield from self._lengthen(edge, good)):
                    good, bad, sides = base, good, (True, True)
                    break
                base = edge.length
                good = max(base, good)
            sides = yield from self._sides(edge, t)
            good, bad = (t, None) if all(sides) else (good, t)
        bracket = yield from self._narrowed(edge, base, good, bad, sides)
        if bracket.inside > 1.3 * base:
            yield from self._lengthen(edge, base + 0.98 * (bracket.inside - base))
        return bracket

    def _narrowed(self, edge: Edge, base: float, good: float, bad: float, sides: tuple[bool, bool]) -> Asking[Bracket]:
        """Halve the bracket from the side on which the edge was left; it may have been left earlier to the other."""
        side, label = 1.0, edge.pair[0]
        for _ in range(6):
            side, label = (1.0, edge.pair[0]) if not sides[0] else (-1.0, edge.pair[1])
            good, bad = yield from self._halve(edge, good, bad, side, label, self.tolerances.bracket)
            if good <= base:
                break
            sides = yield from self._sides(edge, good)
            if all(sides):
                break
            good, bad = base, good
        return Bracket(good, bad, side, label)

    def _halve(
        self, edge: Edge, good: float, bad: float, side: float, label: int, width: float
    ) -> Asking[tuple[float, float]]:
        aside = edge.near + side * self.tolerances.offset * edge.normal
        while bad - good > width:
            middle = (good + bad) / 2
            answer = int((yield self.slice.lift(aside + middle * edge.tangent)[None])[0])
            good, bad = (middle, bad) if answer == label else (good, middle)
        return good, bad

    def _lengthen(self, edge: Edge, t: float) -> Asking[bool]:
        """Measure the boundary point at distance t, known to lie beside the line, and make it the far point."""
        q, e = edge.near + t * edge.tangent, 1.5 * self.tolerances.offset
        path = lambda s: self.slice.lift(q + s * edge.normal)  # noqa: E731
        found = yield from bisect(path, e, -e, edge.pair[0], self.tolerances.line)
        if found.inside == e or found.outside == -e:
            return False
        edge.turn_to(q + found.middle * edge.normal)
        edge.asked[1] = True
        return True

    # -- round a corner -----------------------------------------------------------------------------------------------

    def _turn(self, edge: Edge, bracket: Bracket) -> Asking[Step | None]:
        """The edge past the corner in the bracket, what kind of corner it is, and where."""
        keep = int(self.random.random() < 0.5)  # where a third class comes in, follow this side's class
        for _ in range(5):
            after = yield from self._edge_beyond(edge, bracket, keep)
            if after is not None:
                here = self._meeting(edge, after, bracket)
                if here is not None and (yield from self._fits(edge, here, after, self.tolerances.bracket / 3)):
                    return after, "neuron" if after.pair == edge.pair else "class", here, None
            good, bad = yield from self._halve(
                edge, bracket.inside, bracket.outside, bracket.side, bracket.label, bracket.width / 64
            )
            bracket = Bracket(good, bad, bracket.side, bracket.label)
            if bad - good < 40 * self.tolerances.offset:
                return None
        return None

    def _edge_beyond(self, edge: Edge, bracket: Bracket, keep: int) -> Asking[Edge | None]:
        """The next edge from its crossings with two arcs around the bracket, along the class of one side."""
        centre = edge.near + (bracket.inside + bracket.outside) / 2 * edge.tangent
        axis = edge.tangent
        turn = float(np.sign(turned(axis) @ edge.normal)) * (1 - 2 * keep)  # the kept class lies at angles near this pi
        kept = edge.pair[keep]
        inner, outer = (radius * bracket.width for radius in ARCS)
        span = math.pi - 0.03
        one = yield from self._arc(centre, inner, axis, (turn * span, -turn * span), kept)
        if one is None:
            return None
        q, beyond, angle = one
        two = yield from self._arc(centre, outer, axis, (angle + SECOND_ARC * turn, angle - SECOND_ARC * turn), kept)
        if two is None or two[1] != beyond:
            return None
        tangent = unit(two[0] - q)
        towards = turn * turned(unit(q - centre))  # to the kept class
        normal = turned(tangent) if turned(tangent) @ towards > 0 else -turned(tangent)
        if keep == 0:
            return Edge(self.slice, q, two[0], (kept, beyond), tangent, normal)
        return Edge(self.slice, q, two[0], (beyond, kept), tangent, -normal)

    def _meeting(self, edge: Edge, after: Edge, bracket: Bracket) -> Array | None:
        """Where the two lines meet, if that is inside the bracket."""
        cross = cross_product(edge.tangent, after.tangent)
        if abs(cross) < max(1e-9, 10 * self.tolerances.line / self.tolerances.bracket):
            return None
        along = cross_product(after.near - edge.near, after.tangent) / cross
        slack = 3 * self.tolerances.offset / abs(cross) + 1e-2 * bracket.width
        if not bracket.inside - slack < along < bracket.outside + slack:
            return None
        return np.asarray(edge.near + along * edge.tangent)

    def _fits(self, edge: Edge, here: Array, after: Edge, aside: float) -> Asking[bool]:
        """Whether both edges reach the corner: each is asked on both its sides just beside it."""
        e = self.tolerances.offset
        p, q = here - aside * edge.tangent, here + aside * after.tangent
        rows = np.stack([p + e * edge.normal, p - e * edge.normal, q + e * after.normal, q - e * after.normal])
        labels = yield self.slice.lift(rows)
        return tuple(int(label) for label in labels) == (*edge.pair, *after.pair)

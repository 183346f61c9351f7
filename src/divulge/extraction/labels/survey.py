"""Everything that was found of the decision boundary, and the searches that find more of it.

A ``Survey`` holds slices, facets and single boundary points in standardised coordinates. Slices between two points of
different labels cost most. A slice through a facet that is known has its first edge for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from divulge.extraction.labels.asking import Array, Ask, Asking, bisect_all, together
from divulge.extraction.labels.boundary_points import BoundaryPoints
from divulge.extraction.labels.facets import Facet, measure
from divulge.extraction.labels.forecast import Forecast
from divulge.extraction.labels.pencils import Neuron
from divulge.extraction.labels.polygon import Corner, Edge, Pair, Slice, turned, unit
from divulge.extraction.labels.tolerances import Domain, Tolerances
from divulge.extraction.labels.walk import Walk

POOL = 8
"""Random rows that are asked at once for two of different labels."""
SEGMENTS = 2000
"""Segments between rows of different classes, of which the most telling are bisected."""
POOLS = 60
"""How often, before there is no boundary to be found."""
FIRST_SLICES = 4
"""Slices that are walked for a first facet."""
PARALLEL = 1e-6
"""A direction whose part across the segment is smaller than this, relative to it, makes no slice: another is taken."""
SHORTER = 6
"""How often an edge through the middle of a facet is made shorter, where the facet ends before."""
GRAZE = 0.7
"""How far a slice through a facet is turned away from its normal at random."""


@dataclass(eq=False)
class Survey:
    """What is known of the boundary."""

    ask: Ask
    tolerances: Tolerances
    domain: Domain
    classes: int
    random: np.random.Generator
    slices: list[Slice] = field(default_factory=list)
    facets: list[Facet] = field(default_factory=list)
    """Those that were measured."""
    pool: list[tuple[Array, int]] = field(default_factory=list)
    """Random rows and their labels."""
    single: list[tuple[Array, Pair]] = field(default_factory=list)
    """Boundary points beside those of edges and facets."""
    unmeasurable: set[int] = field(default_factory=set)
    """Edges whose facet could not be measured, by id."""
    forecast: Forecast = field(init=False)

    def __post_init__(self) -> None:
        self.forecast = Forecast(self.tolerances)

    @property
    def inputs(self) -> int:
        return len(self.domain.low)

    def edges(self) -> list[Edge]:
        return [edge for piece in self.slices for edge in piece.edges]

    def corners(self) -> list[Corner]:
        """Corners at which a neuron switches."""
        return [corner for piece in self.slices for corner in piece.corners if corner.kind == "neuron"]

    def rows(self, count: int) -> Array:
        """Random inputs [count, d] of the region."""
        return self.domain.inner(self.random.standard_normal((count, self.inputs)))

    def ends(self) -> Array:
        """The two points of every edge [n, 2, d]."""
        ends = [piece.lift(np.array([[e.near, e.far] for e in piece.edges])) for piece in self.slices if piece.edges]
        return np.concatenate([np.zeros((0, 2, self.inputs)), *ends])

    def crossed(self, neurons: Sequence[Neuron]) -> NDArray[np.bool_]:
        """Whether an edge runs straight through each hyperplane, which no neuron of the first layer lets it."""
        ends = self.ends()
        if not neurons or not len(ends):
            return np.zeros(len(neurons), dtype=bool)
        w, b, error = (np.stack([getattr(n, name) for n in neurons]) for name in ("w", "b", "error"))
        near, far = np.moveaxis(ends @ w.T + b, 1, 0)  # [edges, neurons]
        clear = (self.tolerances.loose + 10 * error) * self.tolerances.spread
        return np.asarray(((near * far < 0) & (np.minimum(np.abs(near), np.abs(far)) > clear)).any(axis=0))

    def forget_derived(self) -> None:
        """Drop what was computed from neurons: facets that were not measured, and all scales."""
        for edge in self.edges():
            edge.slope = None
            if edge.facet is not None and not edge.facet.measured:
                edge.facet = None
        for facet in self.facets:
            facet.scale, facet.scale_error = None, 0.0
        self.forecast.scaled.clear()

    # -- slices -------------------------------------------------------------------------------------------------------

    def different(self) -> tuple[Array, Array, int] | None:
        """Two random rows of different labels, and the label of the first; None if there are none."""
        for _ in range(POOLS):
            rows = self.rows(POOL)
            labels = self.ask(rows)
            self.pool += [(x, int(label)) for x, label in zip(rows, labels, strict=True)]
            other = np.nonzero(labels != labels[0])[0]
            if len(other):
                return rows[0], rows[int(self.random.choice(other))], int(labels[0])
        return None

    def of_both_labels(self) -> tuple[Array, Array]:
        """Two rows of different labels: random ones that were asked before, if there are such, or beside an edge."""
        for x, label in self.pool:
            if label != self.pool[0][1]:
                return self.pool[0][0], x
        edge = self.edges()[0]
        aside = 10 * self.tolerances.offset * edge.normal
        return edge.slice.lift(edge.near + aside), edge.slice.lift(edge.near - aside)

    def first_facet(self) -> bool:
        """Walk slices until a facet of one can be measured; whether one was."""
        for _ in range(FIRST_SLICES):
            pair = self.different()
            if pair is None:
                return False
            self.walk([self.between(*pair)])
            if self.measure_longest():
                return True
        return False

    def walk(self, starts: Sequence[Asking[Slice]]) -> list[Slice]:
        """Run walks side by side and keep their slices."""
        found = together(self.ask, starts)
        self.slices += found
        return found

    def between(self, one: Array, two: Array, label: int, aside: Array | None = None) -> Asking[Slice]:
        """A slice through two points of different labels, ``label`` that of the first, and a direction (or random)."""
        along = unit(two - one)
        aside = self.random.standard_normal(self.inputs) if aside is None else aside
        across = aside - (aside @ along) * along
        if np.linalg.norm(across) <= PARALLEL * np.linalg.norm(aside):
            aside = self.random.standard_normal(self.inputs)
            across = aside - (aside @ along) * along
        piece = Slice(one, np.stack([along, unit(across)]))
        walk = Walk(piece, self.tolerances, self.domain, self.random, self.forecast)
        yield from walk.between(np.array([float(np.linalg.norm(two - one)), 0.0]), label)
        return piece

    def through(self, facet: Facet) -> Asking[Slice]:
        """A random slice through the middle of a facet; an empty one where the facet is too small."""
        along = self.random.standard_normal(self.inputs)
        along = unit(along - (along @ facet.normal) * facet.normal)
        up = facet.normal + GRAZE * unit(self.random.standard_normal(self.inputs))
        piece = Slice(facet.base, np.stack([along, unit(up - (up @ along) * along)]))
        normal = unit(piece.frame @ facet.normal)
        tangent = turned(normal)
        step = 0.25 * facet.step
        for _ in range(SHORTER):
            if (yield from self._reaches(piece, step * tangent, normal, facet.pair)):
                break
            step /= 4
        else:
            return piece
        asked = [False, False]
        first = Edge(piece, -step * tangent, step * tangent, facet.pair, tangent, normal, facet=facet, asked=asked)
        first.error = facet.error * step
        yield from Walk(piece, self.tolerances, self.domain, self.random, self.forecast).follow(first)
        return piece

    def _reaches(self, piece: Slice, end: Array, normal: Array, pair: Pair) -> Asking[bool]:
        """Whether the boundary is where a facet has it at both ends of an edge: the facet may end before."""
        aside = self.tolerances.offset * normal
        labels = yield piece.lift(np.stack([end + aside, -end + aside, end - aside, -end - aside]))
        return tuple(labels.tolist()) == (pair[0], pair[0], pair[1], pair[1])

    # -- facets and points --------------------------------------------------------------------------------------------

    def measure(self, edges: Sequence[Edge]) -> None:
        """Measure the facets of these edges, all at once."""
        todo = [e for e in dict.fromkeys(edges) if e.facet is None and id(e) not in self.unmeasurable]
        for edge, facet in zip(
            todo, together(self.ask, [measure(e, self.tolerances, self.random) for e in todo]), strict=True
        ):
            edge.facet = facet
            if facet is None:
                self.unmeasurable.add(id(edge))
            else:
                self.facets.append(facet)

    def measure_longest(self) -> bool:
        """Measure the facet of the longest edge that can be measured; whether there is one."""
        spread = self.tolerances.spread
        for edge in sorted(self.edges(), key=lambda e: -min(e.extent(spread)[1], spread)):
            self.measure([edge])
            if edge.facet is not None:
                return True
        return False

    def cross(self, inner: Array, outer: Array, labels: Array) -> int:
        """One boundary point on each segment from a row of a label to a row of another; returns how many there were."""
        along = inner - outer
        zero = np.zeros(len(inner))
        search = bisect_all(outer, along, zero, zero + 1, labels, self.tolerances.resolution / self._longest(along))
        t, crossed, beyond = together(self.ask, [search])[0]
        found = outer + t[:, None] * along
        good = np.nonzero(crossed & (beyond >= 0))[0]
        self.single += [(found[i], (int(labels[i]), int(beyond[i]))) for i in good]
        return len(good)

    @staticmethod
    def _longest(along: Array) -> float:
        return float(np.linalg.norm(along, axis=1).max())

    def points_where(self, openness: Callable[[Array, Array], Array], count: int) -> int:
        """Boundary points on segments between rows of different classes; returns how many there were.

        ``openness`` says what points [n, d] of pairs of classes [n, 2] would determine [n, m]. Of many segments those
        are taken whose middles determine most.
        """
        rows, labels = self._of_all_classes()
        one, two = self.random.integers(len(rows), size=(2, SEGMENTS))
        one, two = (end[labels[one] != labels[two]] for end in (one, two))
        if not len(one):
            return 0
        pairs = np.stack([labels[one], labels[two]], axis=1)
        open_rows = openness((rows[one] + rows[two]) / 2, pairs)
        order = scipy.linalg.qr(open_rows.T, mode="r", pivoting=True, check_finite=False)[1][:count]
        return self.cross(rows[one[order]], rows[two[order]], labels[one[order]])

    def _of_all_classes(self) -> tuple[Array, Array]:
        """Rows and their labels: random ones, and for rare classes rows beside edges."""
        if len(self.pool) < POOL * self.classes:
            rows = self.rows(POOL * self.classes - len(self.pool))
            self.pool += [(x, int(label)) for x, label in zip(rows, self.ask(rows), strict=True)]
        found = list(self.pool)
        count = np.bincount([label for _, label in found], minlength=self.classes)
        for edge in self.edges():
            for side, label in zip((1, -1), edge.pair, strict=True):
                if count[label] < POOL:
                    count[label] += 1
                    y = edge.near + side * 10 * self.tolerances.offset * edge.normal
                    found.append((edge.slice.lift(y), label))
        return np.stack([x for x, _ in found]), np.array([label for _, label in found])

    def known_points(self) -> tuple[Array, Array]:
        """Boundary points [n, d] and their pairs [n, 2]."""
        boundary = self.boundary_points()
        return boundary.points, boundary.pairs

    def boundary_points(self) -> BoundaryPoints:
        """All boundary points, those of each measured facet together."""
        points, pairs, of = [np.zeros((0, self.inputs))], [], []
        facets: list[Facet] = []
        used: set[int] = set()
        for edge in self.edges():
            rows, which = edge.asked_points(), -1
            if edge.facet is not None and edge.facet.measured and id(edge.facet) not in used:
                used.add(id(edge.facet))
                rows, which = edge.facet.points, len(facets)
                facets.append(edge.facet)
            points.append(rows)
            pairs += [edge.pair] * len(rows)
            of += [which] * len(rows)
        points += [x[None] for x, _ in self.single]
        pairs += [pair for _, pair in self.single]
        of += [-1] * len(self.single)
        return BoundaryPoints(
            np.concatenate(points), np.array(pairs, dtype=int).reshape(-1, 2), np.array(of, dtype=int), facets
        )

"""The outputs of a hidden layer as inputs of the layers above it.

Where the first layer is no wider than the input, every vector of positive outputs a is that of some row: of all such
rows the shortest is pinv(W) (a - b). In a the target is a network with one hidden layer fewer, on the positive orthant.
An error of W and b is harmless there: inside the orthant the true outputs are an affine map of a, whatever W and b are.

The inputs of a second layer are positive themselves. Its outputs are asked where an affine map takes them back into the
orthant of the first layer: around a point of the boundary at which all neurons of both layers are on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from divulge.extraction.labels.asking import Array
from divulge.extraction.labels.pencils import Sighting
from divulge.extraction.labels.polygon import Corner, Slice
from divulge.extraction.labels.survey import Survey
from divulge.extraction.labels.tolerances import REACH, Domain, Tolerances

STARTS = (0.05, 1.0)
"""How far from a corner, in halves of its edge, a slice beside it begins."""
HELD = (-2.0, -0.5)
"""Logarithms of the smallest and the largest output of neurons that are off and held on."""
HEIGHTS = (0.01, 0.03, 0.1, 0.3)
"""How far above and below an edge the boundary is looked for, once neurons are held on."""
DIRECTIONS, NEAR_BASE = 8, 0.3
"""Directions in which the boundary is looked for at the base point, and how far, in distances to the region's end."""
MARGIN = 1e-3
"""How far edges stay off the faces of the orthant."""


@dataclass(frozen=True, eq=False)
class Features:
    """A layer, oriented: relu(W x + b) of the outputs x of the layers below, or of standardised rows."""

    W: Array  # [h, d], rows of unit length
    b: Array  # [h]
    base: Array  # [d], one of the rows that are asked
    back: Array = field(init=False)  # [d, h]

    def __post_init__(self) -> None:
        object.__setattr__(self, "back", np.linalg.pinv(self.W))

    def __call__(self, x: Array) -> Array:
        """Outputs [n, h] of rows [n, d]."""
        return np.asarray(np.maximum(self.before(x), 0))

    def before(self, x: Array) -> Array:
        """What the neurons get [n, h]."""
        return np.asarray(x @ self.W.T + self.b)

    def rows(self, a: Array) -> Array:
        """The rows [n, d] with these outputs [n, h] that are nearest to the base."""
        return np.asarray(self.base + (a - self.before(self.base)) @ self.back.T)


@dataclass(eq=False)
class FeatureSurvey(Survey):
    """The boundary in the outputs of a layer."""

    features: Features = field(kw_only=True)
    below: Survey = field(kw_only=True)
    """The survey of the layer's inputs."""

    def ends(self) -> Array:
        """The two points of every edge [n, 2, h], those of the boundary below too: no edge crosses a neuron."""
        return np.concatenate([super().ends(), self.features(self.below.ends())])

    def known_points(self) -> tuple[Array, Array]:
        """Boundary points [n, h] and their pairs [n, 2], those of the boundary below too."""
        points, pairs = super().known_points()
        inputs, of = self.below.known_points()
        return np.concatenate([points, self.features(inputs)]), np.concatenate([pairs, of])

    def rows(self, count: int) -> Array:
        """Outputs of random inputs; where a neuron is off, it is on instead by a random share of what it is off by."""
        z = self.features.before(self.below.rows(count))
        share = self.random.random((count, 1))
        return self.domain.inner(np.where(z > 0, z, -share * z))

    def seen(self, corners: Sequence[Sighting], error: float) -> list[Seen]:
        """Corners of the boundary below that are of no neuron of the layer, whose rows are off by ``error``."""
        rows = [c for c in corners if c.neuron is None]
        size = float(np.linalg.norm(self.features.W, 2))
        return [Seen(self.features(c.x[None])[0], size * c.error + error * float(np.linalg.norm(c.x)), c) for c in rows]

    def walk_at_base(self) -> bool:
        """A slice through the boundary at the base point; whether the boundary was found there."""
        here = self.features.before(self.features.base)
        along = self.random.standard_normal((DIRECTIONS, len(here)))
        along /= np.linalg.norm(along, axis=1, keepdims=True)
        room = np.array([min(self.domain.room(here, v), self.domain.room(here, -v)) for v in along])
        aside = NEAR_BASE * room[:, None] * along
        labels = self.ask(np.concatenate([here + aside, here - aside]))
        differ = np.nonzero(labels[:DIRECTIONS] != labels[DIRECTIONS:])[0]
        if not len(differ):
            return False
        one, two = here + aside[differ[0]], here - aside[differ[0]]
        self.walk([self.between(one, two, int(labels[differ[0]]))])
        return True

    def walk_beside(self, corner: Corner) -> bool:
        """A slice that meets the neuron of a corner of the boundary below, if the boundary is found there.

        It is that corner's own plane, with the neurons that are off held on by a little.
        """
        edge = corner.before if self.random.random() < 0.5 else corner.after
        middle, _ = edge.extent(self.tolerances.spread)
        begin = corner.y + self.random.uniform(*STARTS) * (middle - corner.y)
        z, end = (self.features.before(edge.slice.lift(y)[None])[0] for y in (begin, corner.y))
        held = 10 ** self.random.uniform(*HELD) * self.random.uniform(0.5, 1, len(z))
        start, towards = np.where(z > 0, z, held), np.where(z > 0, end - z, 0.0)
        up = np.where(z > 0, self.features.W @ (edge.normal @ edge.slice.frame), 0.0)
        for height in HEIGHTS:
            rows = np.stack([start + height * up, start - height * up])
            if not self.domain.holds(rows):
                return False
            labels = self.ask(rows)
            if labels[0] != labels[1]:
                self.walk([self.between(rows[0], rows[1], int(labels[0]), towards)])
                return True
        return False


@dataclass(eq=False)
class Seen:
    """A corner of the boundary below, in the outputs of the layer."""

    x: Array
    error: float
    corner: Sighting
    neuron: int | None = None

    @property
    def slice(self) -> Slice:
        return self.corner.slice


def survey_of(features: Features, below: Survey) -> FeatureSurvey:
    """An empty survey of the features, which asks through that of the layer's inputs."""
    h = len(features.W)
    low, high = np.zeros(h), np.full(h, np.inf)
    faces = _faces(features, below.domain)
    centre = None if faces is None else features.before(features.base)
    domain = Domain(low, high, REACH * float(np.sqrt(h)), MARGIN, faces, centre)
    t = below.tolerances
    tolerances = Tolerances.of(h, t.resolution / t.spread, t.line / t.spread if t.coarse else 0.0)

    def ask(a: Array) -> Array:
        return below.ask(features.rows(a))

    return FeatureSurvey(ask, tolerances, domain, below.classes, below.random, features=features, below=below)


def _faces(features: Features, below: Domain) -> Array | None:
    """The half-spaces of the layer's inputs, for its outputs [m, h + 1]; None where there is none."""
    if below.unbounded:
        return None
    d = len(below.low)
    rows = [np.column_stack([np.eye(d), -below.low])[np.isfinite(below.low)]]
    rows.append(np.column_stack([-np.eye(d), below.high])[np.isfinite(below.high)])
    rows += [below.faces] if below.faces is not None else []
    G = np.concatenate(rows)
    slope = G[:, :-1] @ features.back
    height = G[:, :-1] @ features.rows(np.zeros((1, len(features.W))))[0] + G[:, -1]
    size = np.linalg.norm(slope, axis=1)
    kept = size > 0
    return np.asarray(np.column_stack([slope, height])[kept] / size[kept, None])

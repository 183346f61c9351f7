"""The outputs of the first hidden layer as inputs of the layers above it.

Where the first layer is no wider than the input, every vector of positive outputs a is that of some row: of all such
rows the shortest is pinv(W) (a - b). In a the target is a network with one hidden layer fewer, on the positive orthant.
An error of W and b is harmless there: inside the orthant the true outputs are an affine map of a, whatever W and b are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from divulge.extraction.labels.asking import Array
from divulge.extraction.labels.polygon import Corner
from divulge.extraction.labels.survey import Survey
from divulge.extraction.labels.tolerances import REACH, Domain, Tolerances

STARTS = (0.05, 1.0)
"""How far from a corner, in halves of its edge, a slice beside it begins."""
HELD = (-2.0, -0.5)
"""Logarithms of the smallest and the largest output of neurons that are off and held on."""
HEIGHTS = (0.01, 0.03, 0.1, 0.3)
"""How far above and below an edge the boundary is looked for, once neurons are held on."""
MARGIN = 1e-3
"""How far edges stay off the faces of the orthant."""


@dataclass(frozen=True, eq=False)
class Features:
    """The first layer, oriented: relu(W x + b) of standardised rows x."""

    W: Array  # [h, d], rows of unit length
    b: Array  # [h]
    back: Array = field(init=False)  # [d, h]

    def __post_init__(self) -> None:
        object.__setattr__(self, "back", np.linalg.pinv(self.W))

    def __call__(self, x: Array) -> Array:
        """Outputs [n, h] of rows [n, d]."""
        return np.asarray(np.maximum(self.before(x), 0))

    def before(self, x: Array) -> Array:
        """What the first layer's neurons get [n, h]."""
        return np.asarray(x @ self.W.T + self.b)

    def rows(self, a: Array) -> Array:
        """The shortest rows [n, d] with these outputs [n, h]."""
        return np.asarray((a - self.b) @ self.back.T)


@dataclass(eq=False)
class FeatureSurvey(Survey):
    """The boundary in the outputs of the first layer."""

    features: Features = field(kw_only=True)
    below: Survey = field(kw_only=True)
    """The survey of the inputs."""

    def ends(self) -> Array:
        """The two points of every edge [n, 2, h], those of the inputs' boundary too: no edge crosses a neuron there."""
        return np.concatenate([super().ends(), self.features(self.below.ends())])

    def rows(self, count: int) -> Array:
        """Outputs of random inputs; where a neuron is off, it is on instead by a random share of what it is off by."""
        x = self.random.standard_normal((count, self.features.W.shape[1]))
        z = self.features.before(x)
        share = self.random.random((count, 1))
        return self.domain.inner(np.where(z > 0, z, -share * z))

    def seen(self, corners: Sequence[Corner], error: float) -> list[Seen]:
        """Corners of the inputs' boundary that are of no neuron of the first layer, whose rows are off by ``error``."""
        rows = [c for c in corners if c.neuron is None and c.kind == "neuron"]
        size = float(np.linalg.norm(self.features.W, 2))
        return [Seen(self.features(c.x[None])[0], size * c.error + error * float(np.linalg.norm(c.x)), c) for c in rows]

    def walk_beside(self, corner: Corner) -> bool:
        """A slice that meets the neuron of a corner of the inputs' boundary, if the boundary is found there.

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
            if rows.min() < 2 * self.domain.margin:
                return False
            labels = self.ask(rows)
            if labels[0] != labels[1]:
                self.walk([self.between(rows[0], rows[1], int(labels[0]), towards)])
                return True
        return False


@dataclass(eq=False)
class Seen:
    """A corner of the inputs' boundary, in the outputs of the first layer."""

    x: Array
    error: float
    corner: Corner
    neuron: int | None = None


def survey_of(features: Features, survey: Survey) -> FeatureSurvey:
    """An empty survey of the features, which asks through that of the inputs."""
    h = len(features.W)
    domain = Domain(np.zeros(h), np.full(h, np.inf), REACH * float(np.sqrt(h)), MARGIN)
    tolerances = Tolerances.of(h, survey.tolerances.resolution / survey.tolerances.spread, 0.0)
    ask = lambda a: survey.ask(features.rows(a))  # noqa: E731
    return FeatureSurvey(ask, tolerances, domain, survey.classes, survey.random, features=features, below=survey)

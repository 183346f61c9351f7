"""The lowest of several hidden layers: neurons whose hyperplane is flat in the whole input space.

A neuron of a higher layer bends where one of the lowest switches, so its corners in different slices do not agree on a
hyperplane. A neuron counts as one of the lowest layer if corners of three slices agree on it and no edge runs straight
through its hyperplane.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from divulge.extraction.labels.asking import Array
from divulge.extraction.labels.discovery import Discovery
from divulge.extraction.labels.pencils import Pencil, Sighting, settle
from divulge.extraction.labels.polygon import Edge

SLICES = 6
AGREEING = 3
"""Corners elsewhere, and slices, that must agree on a neuron."""
FEW_MISMEASURED, DIRECTIONS = 0.1, 3
"""Share of facets whose normals are outside of the neurons' span that may be measured wrongly; directions in which the
boundary must not move there."""
PATIENCE = 14
"""Corners in a row that are measured without a new neuron, before the search asks whether all are found."""


@dataclass(eq=False)
class LowestLayer(Discovery):
    """Neurons of the lowest hidden layer of a deeper network."""

    _still: set[int] = field(default_factory=set)
    """Edges along whose null space the boundary does not move, by id."""

    def run(self) -> None:
        """Measure corners until the normals of all facets lie in the span of the neurons."""
        survey = self.survey
        while len(survey.slices) < SLICES:
            self._random_slice(through=len(survey.slices) % 2 == 0)
        fruitless = 0
        while True:
            self.update()
            self._discard_mismeasured()
            if self.complete and len(self.neurons) < survey.inputs:
                moved = self._moved_edge()
                if moved is None:
                    return
                survey.measure([moved])
                continue
            choice = self.candidates()
            if fruitless >= PATIENCE or not choice:
                if not self.neurons or self.complete or len(survey.slices) >= 3 * SLICES:
                    return
                self._random_slice(through=False)
                fruitless = PATIENCE - 4
                continue
            found = len(self.neurons)
            self._measure(choice[:1])
            self.update()
            fruitless = 0 if len(self.neurons) > found else fruitless + 1

    @property
    def complete(self) -> bool:
        """Whether the neurons span every normal that was measured, and are no more than the inputs."""
        W, _ = self.hyperplanes()
        if not 0 < len(W) <= self.survey.inputs:
            return False
        return bool(self._outside().max() < self.survey.tolerances.loose)

    def _outside(self) -> Array:
        """How far the normal of each facet is from the span of the neurons [n]."""
        W, _ = self.hyperplanes()
        normals = np.stack([f.normal for f in self.survey.facets])
        return np.asarray(np.linalg.norm(normals - normals @ np.linalg.pinv(W) @ W, axis=1))

    def _moved_edge(self) -> Edge | None:
        """An edge that shows a neuron not found: along what no neuron sees, the boundary moves there.

        A facet whose normal the neurons span is the same everywhere along the null space of W. Two labels an edge.
        """
        survey = self.survey
        edges = [e for e in survey.edges() if id(e) not in self._still and id(e) not in survey.unmeasurable]
        edges = [e for e in edges if e.facet is None or not e.facet.measured]
        still = self._holds(edges)
        self._still.update(id(e) for e, good in zip(edges, still, strict=True) if good)
        moved = [e for e, good in zip(edges, still, strict=True) if not good]
        return max(moved, key=lambda e: e.extent(survey.tolerances.spread)[1], default=None)

    def _discard_mismeasured(self) -> None:
        """Forget facets that were measured across a slight bend, once nearly all normals are in the neurons' span.

        The normal of such a facet is outside of it, and yet the boundary does not move along what no neuron sees.
        """
        survey = self.survey
        if not 0 < len(self.neurons) < survey.inputs:
            return
        outside = self._outside() > survey.tolerances.loose
        if not 0 < outside.sum() <= FEW_MISMEASURED * len(outside):
            return
        doubtful = {id(f) for f, out in zip(survey.facets, outside, strict=True) if out}
        edges = [e for e in survey.edges() if e.facet is not None and id(e.facet) in doubtful]
        still = np.all([self._holds(edges) for _ in range(DIRECTIONS)], axis=0)
        wrong = {id(e.facet): e for e, good in zip(edges, still, strict=True) if good}
        survey.facets = [f for f in survey.facets if id(f) not in wrong]
        for edge in wrong.values():
            edge.facet = None
            survey.unmeasurable.add(id(edge))

    def _holds(self, edges: Sequence[Edge]) -> NDArray[np.bool_]:
        """Whether the boundary is where each edge is, also up to a spread away along what no neuron sees."""
        survey = self.survey
        if not edges:
            return np.zeros(0, dtype=bool)
        W, _ = self.hyperplanes()
        away = survey.random.standard_normal((len(edges), survey.inputs))
        away -= away @ np.linalg.pinv(W) @ W
        away /= np.linalg.norm(away, axis=1, keepdims=True)
        aside = max(100 * survey.tolerances.offset, 10 * self.error * survey.tolerances.spread)
        middles = np.stack([e.slice.lift(e.extent(survey.tolerances.spread)[0]) for e in edges])
        room = np.array([survey.domain.room(x, along) for x, along in zip(middles, away, strict=True)])
        middles += np.minimum(survey.tolerances.spread, 0.5 * room)[:, None] * away
        normals = aside * np.stack([e.normal @ e.slice.frame for e in edges])
        labels = survey.ask(survey.domain.clipped(np.concatenate([middles + normals, middles - normals])))
        pairs = np.array([e.pair for e in edges])
        return np.asarray((labels[: len(edges)] == pairs[:, 0]) & (labels[len(edges) :] == pairs[:, 1]))

    @property
    def error(self) -> float:
        """Angle by which a neuron may be off."""
        return max((n.error for n in self.neurons), default=0.0)

    def update(self) -> None:
        """All that follows without labels; nothing is predicted, because bends depend on the second layer."""
        self.explain()
        self.derive()
        self._settle_pencils()

    def _random_slice(self, *, through: bool) -> None:
        if through:
            self.another_slice()
        elif (pair := self.survey.different()) is not None:
            self.survey.walk([self.survey.between(*pair)])

    def _settle(self, pencil: Pencil) -> bool:
        free = [c for c in self.free() if c is not pencil.corner]
        found = settle(pencil, free, self.survey.tolerances, AGREEING) if len(free) >= AGREEING else None
        if found is None:
            return False
        corners: list[Sighting] = [pencil.corner, *(free[i] for i in found[1])]
        if len({id(c.slice) for c in corners}) < AGREEING or self.survey.crossed([found[0]])[0]:
            return False
        self._add(found[0], corners)
        return True

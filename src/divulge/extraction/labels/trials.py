"""A neuron from a pencil and a single corner elsewhere: each candidate is tried where it would bend a third facet.

Every corner elsewhere gives one hyperplane of the pencil, and one of them is the neuron's. If a candidate is right, the
boundary bends by a known amount where the candidate meets a third facet: two labels beside the edge past that corner
refute nearly every wrong candidate, and two more confirm the right one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from divulge.extraction.labels.asking import Array, Asking, together
from divulge.extraction.labels.facets import Facet
from divulge.extraction.labels.forecast import Bend, Prediction, pair_key
from divulge.extraction.labels.pencils import Neuron, Pencil, Sighting
from divulge.extraction.labels.polygon import Edge, Slice, unit
from divulge.extraction.labels.survey import Survey

FACETS = 20
"""Third facets on which a candidate is tried: another unknown neuron may be in the way."""
CLEAR = 30.0
"""The predicted bend must be this many offsets wide, or labels do not tell it from a straight edge."""


@dataclass(eq=False)
class Trials:
    """Tries the candidates of pencils, each on a facet once."""

    survey: Survey
    done: set[tuple[int, int, int]] = field(default_factory=set)

    def settle(self, pencil: Pencil, corners: Sequence[Sighting]) -> tuple[Neuron, Sighting] | None:
        """The neuron and the corner that gave it; None if no candidate is confirmed."""
        one, two = pencil.corner.before.facet, pencil.corner.after.facet
        if one is None or two is None:
            return None
        one, two = (one, two) if one.scale is not None else (two, one)
        if one.scale is None or pair_key(one.pair) != pair_key(two.pair):
            return None
        facets = self._third_facets(one, two)
        candidates = self._candidates(pencil, corners, one, two) if facets else []
        nearest = [self._nearest(facets, neuron) for neuron, _, _ in candidates]
        for rank in range(min(FACETS, len(facets))):
            found = self._on([near[rank] for near in nearest], pencil, candidates)
            if found is not None:
                return found
        return None

    def _candidates(
        self, pencil: Pencil, corners: Sequence[Sighting], one: Facet, two: Facet
    ) -> list[tuple[Neuron, Bend, Sighting]]:
        """The hyperplanes through the corners, with the bends that they would have."""
        survey = self.survey
        angles, error, usable = pencil.angles(corners, survey.tolerances.spread)
        result = []
        for i in np.nonzero(usable & (error < survey.tolerances.loose))[0].tolist():
            row = math.cos(angles[i]) * pencil.basis[0] + math.sin(angles[i]) * pencil.basis[1]
            neuron = Neuron.of(row, survey.tolerances.spread, float(error[i]))
            found = survey.forecast.bend_between(one, two, neuron)
            if found is not None:
                result.append((neuron, found[1], corners[i]))
        crossed = survey.crossed([neuron for neuron, _, _ in result])
        return [candidate for candidate, straight in zip(result, crossed, strict=True) if not straight]

    def _third_facets(self, one: Facet, two: Facet) -> list[Facet]:
        """Facets of the same classes in a known scale, in other hyperplanes: on these two every candidate fits."""
        known = {id(e.facet): e.facet for e in self.survey.edges() if e.facet is not None}
        fits = [f for f in known.values() if f.scale is not None and pair_key(f.pair) == pair_key(one.pair)]
        return [f for f in fits if not self._in_one_plane(f, one) and not self._in_one_plane(f, two)]

    def _in_one_plane(self, f: Facet, g: Facet) -> bool:
        """Whether two facets lie in one hyperplane: the boundary comes back to it, or two slices cut one facet."""
        t = self.survey.tolerances
        a, b = f.homogeneous(t.spread), g.homogeneous(t.spread)
        away = min(float(np.linalg.norm(a - b)), float(np.linalg.norm(a + b)))
        return away < t.loose + 10 * (f.error + g.error)

    @staticmethod
    def _nearest(facets: list[Facet], neuron: Neuron) -> list[Facet]:
        """The facets by their distance to a neuron's hyperplane, nearest first."""
        height = np.stack([f.base for f in facets]) @ neuron.w + neuron.b
        steep = 1 - (np.stack([f.normal for f in facets]) @ neuron.w) ** 2
        return [facets[i] for i in np.argsort(height**2 / np.maximum(steep, 1e-12))[:FACETS]]

    def _on(
        self, facets: list[Facet], pencil: Pencil, candidates: list[tuple[Neuron, Bend, Sighting]]
    ) -> tuple[Neuron, Sighting] | None:
        searches, of = [], []
        for facet, (neuron, bend, corner) in zip(facets, candidates, strict=True):
            key = (id(pencil), id(corner), id(facet))
            found = None if key in self.done else self._prediction(facet, neuron, bend)
            if found is not None:
                self.done.add(key)
                searches.append(_confirmed(*found, self.survey.tolerances.offset))
                of.append((neuron, corner))
        right = together(self.survey.ask, searches)
        return next((pair for pair, good in zip(of, right, strict=True) if good), None)

    def _prediction(self, facet: Facet, neuron: Neuron, bend: Bend) -> tuple[Edge, Prediction] | None:
        """The corner that the candidate would make straight across the facet, if no known neuron is before it."""
        survey = self.survey
        height = float(neuron.w @ facet.base + neuron.b)
        along = -math.copysign(1.0, height) * (neuron.w - (neuron.w @ facet.normal) * facet.normal)
        size = float(np.linalg.norm(along))
        if size < 0.1:
            return None
        piece = Slice(facet.base, np.stack([along / size, unit(facet.normal)]))
        tangent, normal = np.array([1.0, 0.0]), np.array([0.0, 1.0])
        edge = Edge(piece, np.zeros(2), tangent, facet.pair, tangent, normal, facet=facet)
        room = survey.domain.room(facet.base, piece.frame[0])
        found = survey.forecast.predicted(edge, facet, abs(height) / size, neuron, bend, room)
        if found is None or _width(found) < CLEAR * survey.tolerances.offset:
            return None
        return edge, found


def _width(found: Prediction) -> float:
    """How far past the corner the predicted edge is from the straight one."""
    return float(abs((found.after.far - found.here)[1]))


def _confirmed(edge: Edge, found: Prediction, offset: float) -> Asking[bool]:
    """Whether the edge past the corner is as predicted, and then that before it."""
    after = found.after
    for at, of in ((found.here + found.reach * after.tangent, after), (found.here - found.reach * edge.tangent, edge)):
        rows: Array = np.stack([at + offset * of.normal, at - offset * of.normal])
        labels = yield edge.slice.lift(rows)
        if (int(labels[0]), int(labels[1])) != of.pair:
            return False
    return True

"""Several hidden layers from labels, peeled from the lowest on.

The lowest layer is found in the inputs. In its outputs the target has one hidden layer fewer: they are first taken for
the inputs of a network with one hidden layer. Where that does not explain the boundary, the next layer is peeled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from divulge.core.progress import report
from divulge.extraction.labels.asking import Array
from divulge.extraction.labels.deeper.base_point import base_point
from divulge.extraction.labels.deeper.features import Features, FeatureSurvey, Seen, survey_of
from divulge.extraction.labels.deeper.lowest_layer import LowestLayer
from divulge.extraction.labels.deeper.network import DeepNetwork, polish
from divulge.extraction.labels.discovery import Discovery
from divulge.extraction.labels.network import LabelNetwork
from divulge.extraction.labels.one_hidden_layer import OneHiddenLayer
from divulge.extraction.labels.output_layer import orientations
from divulge.extraction.labels.polygon import Corner
from divulge.extraction.labels.survey import Survey
from divulge.extraction.labels.verification import Disagreement, disagreements

MOST_LAYERS = 4
"""Hidden layers that are looked for."""
MOST_SLICES = 40
MORE_SLICES = 10
"""Random slices of the boundary in the outputs of a layer, after those beside corners."""
CHECKS = 200
"""Points of that boundary that are asked from both sides before it is repaired or accepted."""
REPAIRS, REPAIRS_IF_DEEPER = 4, 2
"""How often a copy is mended, and how often where another layer seems to be above it."""
BASE_WALKS = 3
"""Slices through the base point of a layer above the first."""
MOST_WALKS, MOST_TRIES = 30, 300
"""Slices beside corners, and how often one is tried: at many corners the boundary is not found."""
POLISH_ROUNDS = 4
OUTLIERS = 3
"""How often points are left out anew and the others polished."""


@dataclass(eq=False)
class Level:
    """The outputs of a layer that was found, and what is looked for in them."""

    lowest: LowestLayer
    """The search that found the layer, in the outputs of those below."""
    inner: FeatureSurvey
    seen: list[Seen]
    """Corners of higher layers, found below."""
    solver: OneHiddenLayer


@dataclass(eq=False)
class SeveralLayers:
    """The attack on two hidden layers and more, each no wider than its input."""

    survey: Survey
    check: Callable[[DeepNetwork], list[Disagreement]]
    left_out: int = 0
    """Boundary points that the copy does not explain."""
    levels: list[Level] = field(default_factory=list)
    layers: list[Array] = field(default_factory=list)
    """Rows (w, b) of the neurons of the lowest layers, each layer of the outputs of that before it."""
    deeper: bool = False
    """Whether there is another hidden layer, above those found."""

    def run(self) -> DeepNetwork | None:
        """The copy; None where a layer is not found, or where rows of given outputs may be outside of bounds."""
        if not self.survey.domain.unbounded:
            return None
        network, found = None, self._peel(self.survey, [])
        while found is not None:
            network = self._highest(*found) or network
            if not self.deeper or len(self.levels) >= MOST_LAYERS - 1:
                break
            found = self._peel(self.levels[-1].inner, self.levels[-1].seen)
        return network

    def repair(self, wrong: list[Disagreement]) -> DeepNetwork:
        """The copy after slices of the inputs through segments on which it disagrees with the target."""
        slices = self.survey.walk([self.survey.between(w.one, w.two, w.label) for w in wrong])
        corners: Sequence[Corner | Seen] = [c for piece in slices for c in piece.corners if c.kind == "neuron"]
        for level in self.levels:
            level.lowest.elsewhere = [*level.lowest.elsewhere, *(c for c in corners if isinstance(c, Seen))]
            level.lowest.update()
            corners = level.inner.seen(corners, level.lowest.error)
            level.seen += corners
        self.levels[-1].solver.discovery.reopen()
        self._meet_all(self.levels[-1])
        network = self._whole(self.levels[-1])
        assert network is not None
        return network

    def _peel(self, survey: Survey, seen: list[Seen]) -> tuple[Features, LowestLayer] | None:
        """The lowest layer above those found; None where it is not whole."""
        found: list[Corner | Seen] = [*survey.corners(), *seen]
        for sighting in found:
            sighting.neuron = None
        survey.forecast.stop()
        lowest = LowestLayer(survey, MOST_SLICES, elsewhere=seen)
        lowest.run()
        W, b = lowest.hyperplanes()
        turn = orientations(W, b, survey.facets, survey.tolerances)
        report("copy from labels", layer=len(self.layers) + 1, neurons=len(W))
        if not len(W):
            return None
        if not lowest.complete or (turn == 0).any():
            self.layers.append(np.column_stack([W, b]))
            return None
        W, b = turn[:, None] * W, turn * b
        self.layers.append(np.column_stack([W, b]))
        base = np.zeros(W.shape[1]) if survey is self.survey else base_point(W, b, survey)
        return None if base is None else (Features(W, b, base), lowest)

    def _highest(self, features: Features, lowest: LowestLayer) -> DeepNetwork | None:
        """The copy with one more hidden layer, repaired where it decides otherwise than the target."""
        inner = survey_of(features, lowest.survey)
        seen = inner.seen(lowest.sightings(), lowest.error)
        discovery = Discovery(inner, MORE_SLICES, elsewhere=seen)
        level = Level(lowest, inner, seen, OneHiddenLayer(inner, discovery, lambda n: disagreements(n, inner, CHECKS)))
        self.levels.append(level)
        self.deeper = False
        for _ in range(BASE_WALKS if len(self.levels) > 1 else 0):
            inner.walk_at_base()
        self._meet_all(level, stop_if_deeper=True)
        if self.deeper:
            return None
        network = self._whole(level)
        for repairs in range(REPAIRS):
            wrong = [] if network is None else self.check(network)
            if not wrong or (repairs >= REPAIRS_IF_DEEPER and (discovery.deep or discovery.deeper)):
                break
            network = self.repair(wrong)
        self.deeper = network is None or (bool(wrong) and (discovery.deep or discovery.deeper))
        return network

    def _whole(self, level: Level) -> DeepNetwork | None:
        """All layers; None if the boundary in the highest outputs has no facet that can be measured."""
        inner = level.inner
        return self._polished(level.solver.run()) if inner.facets or inner.measure_longest() else None

    def _meet_all(self, level: Level, *, stop_if_deeper: bool = False) -> None:
        """Walk beside corners of neurons that are not known until there is none left."""
        inner, discovery = level.inner, level.solver.discovery
        discovery.most_slices, walked = 0, 0  # slices beside corners say more than random ones
        for _ in range(MOST_TRIES):
            discovery.explain()
            free = [s.corner for s in level.seen if s.neuron is None and isinstance(s.corner, Corner)]
            if not free or walked >= MOST_WALKS:
                break
            if inner.walk_beside(free[int(inner.random.integers(len(free)))]):
                walked += 1
                if inner.facets or inner.measure_longest():
                    discovery.run()
                self.deeper = stop_if_deeper and discovery.deep and discovery.deeper
                if self.deeper:
                    break
        discovery.most_slices = len(inner.slices) + MORE_SLICES

    def _polished(self, upper: LabelNetwork) -> DeepNetwork:
        """All layers on all boundary points, without those that a neuron not found bends away."""
        lower = tuple((level.inner.features.W, level.inner.features.b) for level in self.levels)
        network, t = DeepNetwork(lower, upper), self.survey.tolerances
        points, pairs = self._points()
        for _ in range(OUTLIERS):
            distance = network.distance(points, pairs, t.spread)
            keep = distance < max(t.tight, 30 * float(np.median(distance)))
            self.left_out = int((~keep).sum())
            if distance[keep].max() < t.tight:
                break
            network = polish(network, points[keep], pairs[keep], t.spread, POLISH_ROUNDS)
        return network

    def _points(self) -> tuple[Array, Array]:
        """The boundary points of all levels, as standardised inputs [n, d], and their pairs [n, 2]."""
        found = [self.survey.boundary_points()]
        points, pairs = [found[0].points], [found[0].pairs]
        for k, level in enumerate(self.levels):
            boundary = level.inner.boundary_points()
            rows = boundary.points
            for below in self.levels[k::-1]:
                rows = below.inner.features.rows(rows)
            points.append(rows)
            pairs.append(boundary.pairs)
        return np.concatenate(points), np.concatenate(pairs)

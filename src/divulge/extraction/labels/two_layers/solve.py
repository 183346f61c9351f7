"""Two hidden layers from labels: the first, then the second as a network with one hidden layer of its outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from divulge.core.progress import report
from divulge.extraction.labels.discovery import Discovery
from divulge.extraction.labels.network import LabelNetwork
from divulge.extraction.labels.one_hidden_layer import OneHiddenLayer
from divulge.extraction.labels.output_layer import orientations
from divulge.extraction.labels.survey import Survey
from divulge.extraction.labels.two_layers.features import Features, FeatureSurvey, Seen, survey_of
from divulge.extraction.labels.two_layers.first_layer import FirstLayer
from divulge.extraction.labels.two_layers.network import TwoLayerNetwork, polish
from divulge.extraction.labels.verification import Disagreement, disagreements

MOST_SLICES = 40
MORE_SLICES = 10
"""Random slices of the second layer's boundary, after those beside corners."""
CHECKS = 200
"""Points of the second layer's boundary that are asked from both sides before it is repaired or accepted."""
REPAIRS = 4
MOST_WALKS, MOST_TRIES = 30, 300
"""Slices beside corners, and how often one is tried: at many corners the boundary is not found."""
POLISH_ROUNDS = 4
OUTLIERS = 3
"""How often points are left out anew and the others polished."""


@dataclass(eq=False)
class TwoHiddenLayers:
    """The attack on two hidden layers, the first no wider than the input."""

    survey: Survey
    check: Callable[[TwoLayerNetwork], list[Disagreement]]
    left_out: int = 0
    """Boundary points that the copy does not explain."""
    first: FirstLayer = field(init=False)
    inner: FeatureSurvey = field(init=False)
    solver: OneHiddenLayer = field(init=False)
    seen: list[Seen] = field(init=False)
    """Corners of the second layer in the inputs' boundary."""

    def run(self) -> TwoLayerNetwork | None:
        """The copy; None where a layer is not found, or where rows of given outputs may be outside of bounds."""
        survey = self.survey
        if not survey.domain.unbounded:
            return None
        for corner in survey.corners():
            corner.neuron = None
        survey.forecast.stop()
        first = FirstLayer(survey, MOST_SLICES)
        first.run()
        W, b = first.hyperplanes()
        turn = orientations(W, b, survey.facets, survey.tolerances)
        report("copy from labels", first_layer=len(W))
        if not first.complete or (turn == 0).any():
            return None
        return self._second_layer(Features(turn[:, None] * W, turn * b), first)

    def _second_layer(self, features: Features, first: FirstLayer) -> TwoLayerNetwork | None:
        """The copy, repaired where it decides otherwise than the target."""
        inner = survey_of(features, self.survey)
        self.first, self.inner = first, inner
        self.seen = inner.seen(self.survey.corners(), first.error)
        discovery = Discovery(inner, MORE_SLICES, elsewhere=self.seen)
        self.solver = OneHiddenLayer(inner, discovery, lambda n: disagreements(n, inner, CHECKS))
        network = self._solved()
        for _ in range(REPAIRS):
            wrong = [] if network is None else self.check(network)
            if not wrong:
                break
            network = self.repair(wrong)
        return network

    def repair(self, wrong: list[Disagreement]) -> TwoLayerNetwork:
        """The copy after slices of the inputs through segments on which it disagrees with the target."""
        slices = self.survey.walk([self.survey.between(w.one, w.two, w.label) for w in wrong])
        self.first.update()
        self.seen += self.inner.seen([c for piece in slices for c in piece.corners], self.first.error)
        network = self._solved()
        assert network is not None
        return network

    def _solved(self) -> TwoLayerNetwork | None:
        """Both layers; None if the second has no facet that can be measured."""
        if not self._meet_all(self.inner, self.solver.discovery):
            return None
        return self._polished(self.inner, self.solver.run())

    def _meet_all(self, inner: FeatureSurvey, discovery: Discovery) -> bool:
        """Walk beside corners of neurons that are not known until there is none left; whether a facet was measured."""
        discovery.most_slices, walked = 0, 0  # slices beside corners say more than random ones
        for _ in range(MOST_TRIES):
            discovery.explain()
            free = [s.corner for s in self.seen if s.neuron is None]
            if not free or walked >= MOST_WALKS:
                break
            if inner.walk_beside(free[int(inner.random.integers(len(free)))]):
                walked += 1
                if inner.facets or inner.measure_longest():
                    discovery.run()
        discovery.most_slices = len(inner.slices) + MORE_SLICES
        return bool(inner.facets)

    def _polished(self, inner: FeatureSurvey, upper: LabelNetwork) -> TwoLayerNetwork:
        """Both layers on all boundary points, without those that a neuron not found bends away."""
        below, above = self.survey.boundary_points(), inner.boundary_points()
        points = np.concatenate([below.points, inner.features.rows(above.points)])
        pairs = np.concatenate([below.pairs, above.pairs])
        network, t = TwoLayerNetwork(inner.features.W, inner.features.b, upper), self.survey.tolerances
        for _ in range(OUTLIERS):
            distance = network.distance(points, pairs, t.spread)
            keep = distance < max(t.tight, 30 * float(np.median(distance)))
            self.left_out = int((~keep).sum())
            if distance[keep].max() < t.tight:
                break
            network = polish(network, points[keep], pairs[keep], t.spread, POLISH_ROUNDS)
        return network

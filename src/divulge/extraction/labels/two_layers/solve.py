"""Two hidden layers from labels: the first, then the second as a network with one hidden layer of its outputs.

Where the second bends as only a deeper network does, its own first layer is found, and both are handed over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from divulge.core.progress import report
from divulge.extraction.labels.asking import Array
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
    layers: list[Array] = field(default_factory=list)
    """Rows (w, b) of the neurons of the lowest layers, each layer of the outputs of that before it."""
    deeper: bool = False
    """Whether there is a third hidden layer."""

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
        self.layers = [np.column_stack([W, b])]
        if not first.complete or (turn == 0).any():
            return None
        self.layers = [np.column_stack([turn[:, None] * W, turn * b])]
        return self._second_layer(Features(turn[:, None] * W, turn * b), first)

    def _second_layer(self, features: Features, first: FirstLayer) -> TwoLayerNetwork | None:
        """The copy, repaired where it decides otherwise than the target."""
        inner = survey_of(features, self.survey)
        self.first, self.inner = first, inner
        self.seen = inner.seen(self.survey.corners(), first.error)
        discovery = Discovery(inner, MORE_SLICES, elsewhere=self.seen)
        self.solver = OneHiddenLayer(inner, discovery, lambda n: disagreements(n, inner, CHECKS))
        self._meet_all(inner, discovery, stop_if_deeper=True)
        if self.deeper:
            self._peel_second(inner)
            return None
        network = self._both_layers()
        for _ in range(REPAIRS):
            wrong = [] if network is None else self.check(network)
            if not wrong:
                break
            network = self.repair(wrong)
        return network

    def _peel_second(self, inner: FeatureSurvey) -> None:
        """The neurons of the second layer, in the outputs of the first, where there is a third."""
        for corner in inner.corners():
            corner.neuron = None
        inner.forecast.stop()
        second = FirstLayer(inner, MOST_SLICES)
        second.run()
        W, b = second.hyperplanes()
        report("copy from labels", second_layer=len(W))
        if len(W):
            self.layers.append(np.column_stack([W, b]))

    def repair(self, wrong: list[Disagreement]) -> TwoLayerNetwork:
        """The copy after slices of the inputs through segments on which it disagrees with the target."""
        slices = self.survey.walk([self.survey.between(w.one, w.two, w.label) for w in wrong])
        self.first.update()
        self.seen += self.inner.seen([c for piece in slices for c in piece.corners], self.first.error)
        self.solver.discovery.reopen()
        self._meet_all(self.inner, self.solver.discovery)
        network = self._both_layers()
        assert network is not None
        return network

    def _both_layers(self) -> TwoLayerNetwork | None:
        """Both layers; None if the second has no facet that can be measured."""
        return self._polished(self.inner, self.solver.run()) if self.inner.facets else None

    def _meet_all(self, inner: FeatureSurvey, discovery: Discovery, *, stop_if_deeper: bool = False) -> None:
        """Walk beside corners of neurons that are not known until there is none left."""
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
                self.deeper = stop_if_deeper and discovery.deep and discovery.deeper
                if self.deeper:
                    break
        discovery.most_slices = len(inner.slices) + MORE_SLICES

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

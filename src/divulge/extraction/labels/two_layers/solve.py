"""Two hidden layers from labels: find both, solve for the output layer, polish, check, and repair."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from divulge.core.progress import report
from divulge.extraction.labels.asking import Array
from divulge.extraction.labels.output_layer import orientations
from divulge.extraction.labels.survey import Survey
from divulge.extraction.labels.two_layers.features import FirstFeatures
from divulge.extraction.labels.two_layers.first_layer import FirstLayer
from divulge.extraction.labels.two_layers.network import TwoLayerNetwork, polish
from divulge.extraction.labels.two_layers.second_layer import SecondLayer
from divulge.extraction.labels.verification import Disagreement

MOST_SLICES = 70
REPAIRS = 8
MORE_SLICES = 6
"""Slices that a repair may add to those of its segments."""
POLISH_ROUNDS = 4
IDLE = 1e-7
"""Weight of a neuron in the output, relative to the largest, below which corners agreed on it by chance."""


@dataclass(eq=False)
class TwoHiddenLayers:
    """The attack on two hidden layers and two classes."""

    survey: Survey
    check: Callable[[TwoLayerNetwork], list[Disagreement]]
    left_out: int = 0
    """Boundary points that the copy does not explain."""

    def run(self) -> TwoLayerNetwork | None:
        """The copy; None where the first layer is not found."""
        survey = self.survey
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
        spread = survey.tolerances.spread
        features = FirstFeatures(turn[:, None] * W / spread, turn * b / spread)
        second = SecondLayer(survey, first, features)
        network, most = None, MOST_SLICES
        for _ in range(REPAIRS):
            second.run(most)
            if not second.neurons:
                return None
            network = self._solved(second, features)
            wrong = self.check(network)
            if not wrong:
                break
            survey.walk([survey.between(w.one, w.two, w.label) for w in wrong])
            first.update()
            most = max(MOST_SLICES, len(survey.slices) + MORE_SLICES)
        return network

    def _solved(self, second: SecondLayer, features: FirstFeatures) -> TwoLayerNetwork:
        """The output layer as a null vector, without points that a neuron not found bends away; then polished."""
        points, pairs, first, normals = self.survey.boundary_points()
        rows, keep = self._fitted(second, features, points)
        network = _network(second, features, rows)
        _, gradient = network.difference(points[first], pairs[first])
        if float((gradient * normals).sum()) < 0:
            network = _network(second, features, -rows)
        self.left_out = int((~keep).sum())
        if self.left_out == 0 or keep.sum() > 2 * sum(w.size for w in (network.W1, network.W2)):
            network = polish(network.oriented(), points[keep], self.survey.tolerances.spread, POLISH_ROUNDS)
        return network

    def _fitted(self, second: SecondLayer, features: FirstFeatures, points: Array) -> tuple[Array, Array]:
        """Output weights (second layer, first layer, constant), and the points that they were fitted to."""
        psi = features(points)
        tight = self.survey.tolerances.tight
        for _ in range(len(second.neurons) + 1):
            A = np.stack([row.entries for row in second.neurons])
            R = np.concatenate([np.maximum(psi @ A.T, 0), psi], axis=1)
            R /= np.linalg.norm(R, axis=1, keepdims=True)
            null, keep = _null_vector(R, tight)
            weight = np.abs(null[: len(A)])
            idle = weight < IDLE * np.abs(null).max()
            if not idle.any() or idle.all():
                break
            second.neurons = [row for row, out in zip(second.neurons, idle, strict=True) if not out]
        return null, keep


def _null_vector(rows: Array, tight: float) -> tuple[Array, Array]:
    """The vector that all rows are orthogonal to, without the rows that are far off it, worst first."""
    keep = np.ones(len(rows), bool)
    for _ in range(8):
        vector = np.linalg.svd(rows[keep], full_matrices=False)[2][-1]
        off = np.abs(rows @ vector)
        if off[keep].max() < tight:
            break
        keep = off < max(tight, 0.3 * float(off[keep].max()))
    return vector, keep


def _network(second: SecondLayer, features: FirstFeatures, weights: Array) -> TwoLayerNetwork:
    A = np.stack([row.entries for row in second.neurons])
    h2, h1 = len(A), len(features.W)
    return TwoLayerNetwork(
        features.W, features.b, A[:, :-1], A[:, -1], weights[:h2], weights[h2 : h2 + h1], float(weights[-1])
    )

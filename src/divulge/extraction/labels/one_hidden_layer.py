"""One hidden ReLU layer: walk slices, find the neurons, solve for the output layer, check, and repair.

The check bisects the copy's own boundary, which costs nothing, and asks both sides of it. A segment on which the target
disagrees becomes the next slice: there a neuron is missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from divulge.extraction.labels.asking import Array
from divulge.extraction.labels.boundary_points import BoundaryPoints
from divulge.extraction.labels.discovery import Discovery
from divulge.extraction.labels.facets import Facet
from divulge.extraction.labels.network import LabelNetwork
from divulge.extraction.labels.output_layer import DETERMINED, OutputLayer, orientations, solve_output, with_sign
from divulge.extraction.labels.polish import polish
from divulge.extraction.labels.polygon import Edge
from divulge.extraction.labels.survey import Survey
from divulge.extraction.labels.verification import Disagreement

FIRST_SLICES, FURTHER_SLICES = 2, 10
"""Slices before anything else; and how many may follow those that found a neuron, where the limit is near."""
FEWEST_POINTS, POINT_ROUNDS = 4, 12
"""Boundary points that are added at a time for the output layer, and how often."""
STALLED = 0.5
"""Points are added while each round makes the ratio of singular values this much smaller."""
SOLVED = 1e-3
"""Ratio of singular values up to which output weights tell something of their neurons."""
POLISH_ROUNDS = 3
COARSE_ROUNDS, OUTLIER = 8, 10.0
"""Rounds for a coarse target, whose neurons are found less precisely; and points that are farther off than so many
medians are left out there, because slight bends in a facet do not show."""
REFINED = 1e-5
"""How far the polish may turn a neuron, a tenth of it where the output layer is not determined."""
NEARLY_DETERMINED = 1e-7
"""Ratio of singular values up to which all parameters are polished: output weights that are off turn the neurons."""
PARALLEL = 1e-3
"""Neurons nearer to each other than this, as homogeneous rows of unit length, may be one that was found twice."""


@dataclass(eq=False)
class OneHiddenLayer:
    """The attack on one hidden layer."""

    survey: Survey
    discovery: Discovery
    check: Callable[[LabelNetwork], list[Disagreement]]
    network: LabelNetwork | None = None
    layer: OutputLayer | None = None
    left_out: int = 0
    """Boundary points that the copy does not explain."""
    oriented: bool = False

    def run(self) -> LabelNetwork:
        """The copy; neurons that the boundary does not meet where it was followed are not in it."""
        survey, discovery = self.survey, self.discovery
        while len(survey.slices) < FIRST_SLICES:
            discovery.another_slice()
        discovery.run()
        if discovery.unrelated or (discovery.deeper and not discovery.depth_tried):
            return self._solve(0)
        found = 0
        for _ in range(discovery.most_slices):
            wrong = self.check(self._solved())
            if len(discovery.neurons) > found:
                found = len(discovery.neurons)
                discovery.most_slices = max(discovery.most_slices, len(survey.slices) + FURTHER_SLICES)
            if not wrong or discovery.misfit or len(survey.slices) >= discovery.most_slices:
                break
            self._walk(wrong)
        return self._finished()

    def so_far(self) -> LabelNetwork | None:
        """The copy with the neurons found, where the attack ends before it is whole; None once one was checked."""
        if self.layer is not None or not self.survey.facets:
            return None
        try:
            return self._solve(0)
        except np.linalg.LinAlgError:
            return None

    def repair(self, wrong: list[Disagreement]) -> LabelNetwork:
        """The copy after slices through segments on which it disagrees with the target."""
        self._walk(wrong)
        self._solved()
        return self._finished()

    def _walk(self, wrong: list[Disagreement]) -> None:
        self.discovery.reopen()
        for one in self.survey.walk([self.survey.between(w.one, w.two, w.label) for w in wrong]):
            self._adopt(one.edges)
        self.discovery.run()

    def _finished(self) -> LabelNetwork:
        """The copy, polished, without neurons that have no part in it."""
        network = self._solve(POLISH_ROUNDS)
        assert self.layer is not None
        if self.layer.gap < SOLVED and self.discovery.drop(self._idle(network)):
            network = self._solve(POLISH_ROUNDS)
        while (fewer := self._without_double(network)) is not None:
            network = fewer
        return network

    def _without_double(self, network: LabelNetwork) -> LabelNetwork | None:
        """The copy without the lighter of two nearly parallel neurons, if it explains as many points.

        A corner that was measured imprecisely may give a neuron again, a little off.
        """
        discovery, left_out = self.discovery, self.left_out
        spread = self.survey.tolerances.spread
        rows = [neuron.homogeneous(spread) for neuron in discovery.neurons]
        weight = np.linalg.norm(network.V, axis=0) * np.linalg.norm(network.W, axis=1)
        lighter = {
            min(i, j, key=lambda n: float(weight[n]))
            for i, j in combinations(range(len(rows)), 2)
            if np.linalg.norm(rows[i] - math.copysign(1.0, float(rows[i] @ rows[j])) * rows[j]) < PARALLEL
        }
        for double in sorted(lighter, key=lambda n: float(weight[n])):
            before, layer = list(discovery.neurons), self.layer
            discovery.drop([double])
            self._solve(POLISH_ROUNDS)  # makes the neuron that is left more precise
            fewer = self._solve(POLISH_ROUNDS)
            if self.left_out <= left_out:
                return fewer
            discovery.neurons, self.network, self.layer, self.left_out = before, network, layer, left_out
            discovery.restart()
        return None

    def _idle(self, network: LabelNetwork) -> list[int]:
        """Neurons without a part in the output: hyperplanes on which corners agreed by chance."""
        weight = np.linalg.norm(network.V, axis=0) * np.linalg.norm(network.W, axis=1)
        return [int(i) for i in np.nonzero(weight < 10 * self.survey.tolerances.loose * weight.max(initial=0.0))[0]]

    def _solved(self) -> LabelNetwork:
        """The output layer, with the slices and the points that it still needs."""
        network = self._solve()
        survey = self.survey
        for _ in range(6):
            if self.layer is None or not self.layer.outside or survey.classes == 2:
                break
            self.discovery.another_slice()
            self._adopt(survey.slices[-1].edges)
            self.discovery.run()
            network = self._solve()
        for _ in range(POINT_ROUNDS):
            assert self.layer is not None
            if self.layer.gap < DETERMINED or survey.classes == 2:
                break
            count = max(FEWEST_POINTS, len(self.layer.null_space) - 1)
            gap = self.layer.gap
            if not survey.points_where(self.layer.openness, count):
                break
            network = self._solve()
            if STALLED * gap < self.layer.gap < SOLVED:
                break
        return network

    def _solve(self, rounds: int | None = None) -> LabelNetwork:
        """The copy from all boundary points, without those that a neuron not found bends away.

        It is polished in so many rounds; by default where points are off it.
        """
        survey, tolerances = self.survey, self.survey.tolerances
        boundary = survey.boundary_points()
        points, pairs, first, normals = boundary.points, boundary.pairs, boundary.first, boundary.normals
        W, b = self.discovery.hyperplanes()
        turn = orientations(W, b, survey.facets, tolerances)
        known = turn != 0
        turn = np.where(known, turn, 1.0)
        W, b = turn[:, None] * W, turn * b
        layer, keep = self._fitted(W, b, points, pairs, normals, known)
        self.left_out = int((~keep).sum())
        self.oriented = bool(known.all()) and not layer.outside
        self.layer = layer
        network = with_sign(layer.network, points[first], pairs[first], normals)
        if rounds is None:
            worst = float(network.distance(points, pairs, tolerances.spread)[keep].max())
            # imprecise neurons make an output layer that is determined look as if it were not
            enough = tolerances.tight if layer.gap < DETERMINED else 10 * tolerances.line / tolerances.spread
            rounds = POLISH_ROUNDS if worst > enough and (layer.gap < SOLVED or survey.classes == 2) else 0
        if rounds:
            network = polish(network, boundary.only(keep), tolerances.spread, rounds)
            if tolerances.coarse:
                network = self._polished_without_outliers(network, boundary, keep)
            self._refine_neurons(network)
        self.network = network.without_rounding(tolerances.check / tolerances.spread)
        return self.network

    def _polished_without_outliers(self, network: LabelNetwork, boundary: BoundaryPoints, keep: Array) -> LabelNetwork:
        """The network of a coarse target, polished until the points that it explains no longer change."""
        t = self.survey.tolerances
        before = keep
        for _ in range(POLISH_ROUNDS):
            distance = network.distance(boundary.points, boundary.pairs, t.spread)
            near = keep & (distance < max(OUTLIER * float(np.median(distance[keep])), t.line / t.spread))
            network = polish(network, boundary.only(near), t.spread, COARSE_ROUNDS)
            if (near == before).all():
                break
            before = near
        return network

    def _fitted(
        self, W: Array, b: Array, points: Array, pairs: Array, normals: Array, known: Array
    ) -> tuple[OutputLayer, Array]:
        """The output layer, and which points it was fitted to: those far off are left out, worst first."""
        tolerances = self.survey.tolerances
        keep = np.ones(len(points), bool)
        determined = self.layer is not None and self.layer.gap < DETERMINED and not self.layer.flat
        if determined and self.network is not None and len(self.network.W) <= len(W):
            explained = self.network.distance(points, pairs, tolerances.spread) < tolerances.tight
            keep = with_all_neurons(explained, points @ W.T + b > 0) if 2 * explained.sum() > len(points) else keep
        for _ in range(8):
            layer = solve_output(W, b, points[keep], pairs[keep], self.survey.classes, normals, known, tolerances)
            if keep.all() and len(layer.null_space) > 1:  # several solutions: no point contradicts them
                break
            distance = layer.network.distance(points, pairs, tolerances.spread)
            fits = distance < tolerances.tight
            if fits[keep].all() and not fits[~keep].any():
                break
            worst = float(distance[keep].max())
            bound = max(tolerances.tight, 30 * float(np.median(distance[keep])))
            keep = distance < max(bound, 0.3 * worst if worst > tolerances.tight else 0.0)
        return layer, keep

    def _refine_neurons(self, network: LabelNetwork) -> None:
        """The neurons as the polished network has them, where they moved by little."""
        farthest = REFINED if self.layer is not None and self.layer.gap < NEARLY_DETERMINED else 0.1 * REFINED
        farthest = self.survey.tolerances.loose if self.survey.tolerances.coarse else farthest
        for i, neuron in enumerate(self.discovery.neurons):
            length = float(np.linalg.norm(network.W[i]))
            sign = 1.0 if float(network.W[i] @ neuron.w) > 0 else -1.0
            w, b = sign * network.W[i] / length, sign * float(network.b[i]) / length
            if np.linalg.norm(w - neuron.w) < farthest:
                self.discovery.neurons[i] = replace(neuron, w=w, b=b)

    def _adopt(self, edges: list[Edge]) -> None:
        """Facets without labels: of edges that the copy has right."""
        network, t = self.network, self.survey.tolerances
        if network is None:
            return
        for edge in edges:
            if edge.facet is not None:
                continue
            middle = edge.slice.lift(edge.extent(t.spread)[0])
            rows, pairs = np.concatenate([edge.points(), middle[None]]), np.array([edge.pair] * 3)
            if network.distance(rows, pairs, t.spread).max() < t.tight:
                value, gradient = network.difference(rows[2:], pairs[2:])
                size = float(np.linalg.norm(gradient[0]))
                if size == 0:  # of a copy that is constant here
                    continue
                normal = gradient[0] / size
                offset = float(normal @ middle - value[0] / size)
                edge.facet = Facet(normal, offset, edge.pair, rows[:2], 0.0, 0.01 * t.tight, middle)


def with_all_neurons(keep: Array, on: Array) -> Array:
    """The points that are kept, and those at which a neuron is on that is on at none of them [n].

    Points that a copy without that neuron explains say nothing of it: its output weight alone would solve them all.
    """
    unseen = on.any(axis=0) & ~on[keep].any(axis=0)
    return np.asarray(keep | on[:, unseen].any(axis=1))

"""Where the boundary goes past neurons that are known, without bisections.

Crossing a neuron's hyperplane adds the same multiple of that hyperplane to the difference of two logits wherever it
happens. Once the multiple (the neuron's bend) is known from one corner, the next corner and the edge past it follow
from the facet before it. Four labels beside the corner confirm them, where a corner of an unknown neuron takes a
hundred.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from divulge.extraction.labels.asking import Array
from divulge.extraction.labels.facets import Facet
from divulge.extraction.labels.pencils import Neuron
from divulge.extraction.labels.polygon import Corner, Edge, Pair, turned, unit
from divulge.extraction.labels.tolerances import Tolerances

NEAREST = 1e-4
"""Two predicted corners nearer than this (in spreads) are left to the walk."""
ON_HYPERPLANE = 1e-3
"""A measured corner this near to a known neuron's hyperplane (in brackets) is taken for one of it."""
FAINT = 1e-3
"""Scales that are less precise than this are not taken."""
FARTHEST_CHECK = 3e-3
"""How far past a predicted corner (in spreads) the edge beyond it is confirmed."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """The next corner of an edge and the edge past it."""

    here: Array
    """The corner, in the plane."""
    neuron: int
    after: Edge
    reach: float
    """How far from the corner both edges are confirmed."""


@dataclass(frozen=True)
class Bend:
    """What crossing a neuron from its negative to its positive side adds: ``size`` times its unit row."""

    size: float
    error: float


@dataclass(eq=False)
class Forecast:
    """Facets in the scale of the logits, and the bends of the neurons, for each pair of classes."""

    tolerances: Tolerances
    neurons: list[Neuron] = field(default_factory=list)
    bends: dict[tuple[Pair, int], Bend] = field(default_factory=dict)
    scaled: set[Pair] = field(default_factory=set)
    """Pairs of classes of which one facet holds the scale."""

    def update(self, neurons: list[Neuron], corners: Sequence[Corner]) -> None:
        """Carry the scale from facet to facet over the corners of known neurons, and read off the neurons' bends."""
        self.neurons = neurons
        again = True
        while again:
            again = False
            for c in corners:
                one, two = c.before.facet, c.after.facet
                if c.neuron is None or one is None or two is None:
                    continue
                self._begin(one)
                if one.scale is None and two.scale is not None:
                    one, two = two, one
                bend = self.bends.get((pair_key(one.pair), c.neuron))
                if one.scale is not None and (two.scale is None or bend is None):
                    again |= self._carry(one, two, c.neuron)
                elif one.scale is None and bend is not None:
                    again |= self._from_bend(one, two, neurons[c.neuron], bend)

    def stop(self) -> None:
        """Predict nothing from now on: in deeper networks a bend depends on the layers above."""
        self.neurons = []
        self.forget()

    def forget(self) -> None:
        """Drop the bends: the neurons were numbered anew."""
        self.bends.clear()

    def _begin(self, facet: Facet) -> None:
        key = pair_key(facet.pair)
        if key not in self.scaled and facet.measured:
            self.scaled.add(key)
            facet.scale = 1.0

    def _carry(self, one: Facet, two: Facet, which: int) -> bool:
        """The scale of ``two`` from that of ``one``, and the bend between them; whether something was learned."""
        found = self.bend_between(one, two, self.neurons[which])
        if found is None:
            return False
        scale, bend = found
        key = (pair_key(one.pair), which)
        known = self.bends.get(key)
        learned = two.scale is None or known is None
        if two.scale is None:
            two.scale, two.scale_error = scale, bend.error
        if known is None or bend.error < known.error:
            self.bends[key] = bend
        return learned

    def bend_between(self, one: Facet, two: Facet, neuron: Neuron) -> tuple[float, Bend] | None:
        """The scale of ``two`` and the neuron's bend, from the scale of ``one``; None if they do not fit."""
        assert one.scale is not None
        rows = self._columns(two, neuron, -1.0 if one.pair != two.pair else 1.0)
        right = one.scale * one.homogeneous(self.tolerances.spread)
        (scale, bend), *_ = np.linalg.lstsq(rows, right, rcond=None)
        error = math.hypot(one.scale * one.error, scale * two.error, bend * neuron.error) / _independence(rows)
        miss = float(np.linalg.norm(rows @ (scale, bend) - right))
        if scale <= 0 or miss > 10 * (error + one.scale * self.tolerances.tight):
            return None
        sign = -self._side(neuron, two) * (1.0 if pair_key(one.pair) == one.pair else -1.0)
        return float(scale), Bend(float(sign * bend), math.hypot(error, one.scale_error))

    def _from_bend(self, one: Facet, two: Facet, neuron: Neuron, bend: Bend) -> bool:
        """The scales of both facets at a corner of a neuron whose bend is known; whether they fit."""
        spread = self.tolerances.spread
        turn = -1.0 if one.pair != two.pair else 1.0
        rows = np.stack([one.homogeneous(spread), -turn * two.homogeneous(spread)], axis=1)
        sign = -self._side(neuron, two) * (1.0 if pair_key(one.pair) == one.pair else -1.0)
        right = sign * bend.size * neuron.homogeneous(spread)
        scales, *_ = np.linalg.lstsq(rows, right, rcond=None)
        size = float(np.abs(scales).max())
        error = math.hypot(size * one.error, size * two.error, bend.size * neuron.error, bend.error)
        error /= _independence(rows)
        miss = float(np.linalg.norm(rows @ scales - right))
        if scales.min() <= 0 or error > FAINT * scales.min() or miss > 10 * (error + size * self.tolerances.tight):
            return False
        (one.scale, two.scale), one.scale_error, two.scale_error = scales.tolist(), error, error
        return True

    def between(self, one: Facet, two: Facet) -> Neuron | None:
        """The neuron between two facets whose scales are known; None where they do not tell it precisely."""
        if one.scale is None or two.scale is None:
            return None
        spread = self.tolerances.spread
        turn = -1.0 if one.pair != two.pair else 1.0
        row = one.scale * one.homogeneous(spread) - turn * two.scale * two.homogeneous(spread)
        size = float(np.linalg.norm(row))
        error = math.hypot(one.scale * one.error, two.scale * two.error, one.scale_error, two.scale_error)
        return Neuron.of(row / size, spread, error / size) if error < self.tolerances.loose * size else None

    def _columns(self, facet: Facet, neuron: Neuron, sign: float) -> Array:
        spread = self.tolerances.spread
        return np.stack([sign * facet.homogeneous(spread), neuron.homogeneous(spread)], axis=1)

    @staticmethod
    def _side(neuron: Neuron, facet: Facet) -> float:
        return math.copysign(1.0, float(neuron.w @ facet.base + neuron.b))

    # -- along an edge ------------------------------------------------------------------------------------------------

    def next(self, edge: Edge, facet: Facet | None, room: float) -> Prediction | None:
        """The next corner from the near point of ``edge`` along its tangent, if a known neuron makes it."""
        if not self.neurons:
            return None
        far = self._crossings(edge)
        j = int(far.argmin())
        bend = self.bends.get((pair_key(edge.pair), j))
        if bend is None:
            return None
        return self.predicted(edge, facet, float(far[j]), self.neurons[j], bend, room, index=j)

    def predicted(
        self, edge: Edge, facet: Facet | None, t: float, neuron: Neuron, bend: Bend, room: float, index: int = -1
    ) -> Prediction | None:
        """The corner that a neuron makes at distance t, if no other neuron that is known is before it or near it."""
        far = self._crossings(edge)
        if index >= 0:
            far[index] = math.inf
        following = float(far.min(initial=math.inf))
        slope = self._slope(edge, facet)
        if slope is None or t > room or following - t < NEAREST * self.tolerances.spread:
            return None
        here = edge.near + t * edge.tangent
        reach = min(FARTHEST_CHECK * self.tolerances.spread, t / 3, (following - t) / 3)
        after = self._edge_beyond(edge, here, slope + self._added(edge, neuron, bend), reach)
        after.facet = self._facet_beyond(edge, facet, bend, neuron)
        if after.facet is not None:
            after.facet.base, after.error = edge.slice.lift(after.far), after.facet.error * self.tolerances.spread
        return Prediction(here, index, after, reach)

    def resume(self, edge: Edge, after: Edge, here: Array) -> None:
        """The scale past a corner that was measured, if it is one of a known neuron: the bend gives it."""
        x, near = edge.slice.lift(here), ON_HYPERPLANE * self.tolerances.bracket
        for j, neuron in enumerate(self.neurons):
            bend = self.bends.get((pair_key(edge.pair), j))
            if bend is None or after.pair != edge.pair or abs(float(neuron.w @ x + neuron.b)) > near:
                continue
            added = self._added(edge, neuron, bend)
            before, beyond = np.linalg.solve(np.stack([edge.normal, -after.normal], axis=1), -added)
            if before > 0 and beyond > 0:
                after.slope = beyond * after.normal

    def _slope(self, edge: Edge, facet: Facet | None) -> Array | None:
        """The gradient in the plane, of the facet if that is known."""
        if facet is None or facet.scale is None:
            return edge.slope
        row = facet.scale * facet.homogeneous(self.tolerances.spread)
        return np.asarray((1.0 if facet.pair == edge.pair else -1.0) * (edge.slice.frame @ row[:-1]))

    def _added(self, edge: Edge, neuron: Neuron, bend: Bend) -> Array:
        """What crossing the neuron along the edge's tangent adds to the gradient in the plane [2]."""
        across = edge.slice.frame @ neuron.homogeneous(self.tolerances.spread)[:-1]
        sign = math.copysign(1.0, float(across @ edge.tangent)) * (1.0 if pair_key(edge.pair) == edge.pair else -1.0)
        return np.asarray(sign * bend.size * across)

    def _crossings(self, edge: Edge) -> Array:
        """How far each neuron's hyperplane is from an edge's near point [h]; inf where it is behind it or there."""
        if not self.neurons:
            return np.zeros(0)
        x, direction = edge.slice.lift(edge.near), edge.tangent @ edge.slice.frame
        W, b = np.stack([n.w for n in self.neurons]), np.array([n.b for n in self.neurons])
        with np.errstate(divide="ignore", invalid="ignore"):
            t = -(W @ x + b) / (W @ direction)
        return np.asarray(np.where(np.isfinite(t) & (t > NEAREST * self.tolerances.spread), t, np.inf))

    def _facet_beyond(self, edge: Edge, facet: Facet | None, bend: Bend, neuron: Neuron) -> Facet | None:
        """The facet past the corner; None where the facet before it is not known or all is too imprecise."""
        if facet is None or facet.scale is None:
            return None
        spread = self.tolerances.spread
        towards = float(neuron.w @ (edge.tangent @ edge.slice.frame))  # to the positive side, or to the other
        sign = math.copysign(1.0, towards) * (1.0 if pair_key(edge.pair) == edge.pair else -1.0)
        turn = 1.0 if facet.pair == edge.pair else -1.0
        row = turn * facet.scale * facet.homogeneous(spread) + sign * bend.size * neuron.homogeneous(spread)
        scale = float(np.linalg.norm(row))
        error = math.hypot(facet.scale * facet.error, bend.size * neuron.error, bend.error) / scale
        if error > self.tolerances.loose:
            return None
        size = float(np.linalg.norm(row[:-1]))
        return Facet(
            row[:-1] / size, -float(row[-1]) * spread / size, edge.pair, np.zeros((0, len(neuron.w))), 0.0, error,
            np.zeros(len(neuron.w)), scale=scale,
        )  # fmt: skip

    def _edge_beyond(self, edge: Edge, here: Array, slope: Array, reach: float) -> Edge:
        """The edge past the corner, in the direction that goes on through the neuron's hyperplane."""
        normal = unit(slope)
        left = math.copysign(1.0, float(turned(edge.tangent) @ edge.normal))
        tangent = -left * turned(normal)  # the first label stays on its side of the walk
        far = here + reach * tangent
        return Edge(
            edge.slice, here, far, edge.pair, tangent, normal, asked=[False, False], error=self.tolerances.offset,
            slope=slope,
        )  # fmt: skip


def pair_key(pair: Pair) -> Pair:
    """The two classes in order."""
    return (min(pair), max(pair))


def _independence(rows: Array) -> float:
    """The sine of the angle between the two columns."""
    cosine = float(rows[:, 0] @ rows[:, 1])
    return math.sqrt(max(1e-24, 1 - cosine**2))

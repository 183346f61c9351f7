"""All parameters at once, from all facets and boundary points that were measured: Gauss-Newton, without further labels.

At a boundary point the two logits of its pair are equal, so their difference f, divided by the length of its gradient,
is the point's distance to the model's boundary. The points of a measured facet determine its hyperplane. They count
together, as that hyperplane: along a facet the model's slope must be a multiple of the measured one. Further rows hold
what labels cannot show: the length of each neuron's weights, and the scale of the output layer.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from divulge.extraction.labels.asking import Array
from divulge.extraction.labels.boundary_points import BoundaryPoints
from divulge.extraction.labels.facet_equations import FacetEquations
from divulge.extraction.labels.network import LabelNetwork, steepness

FLATTEST = 1e-100
"""Smallest slope of logits that says where the boundary is: a copy without output weights has none."""
MOST_POINTS = 6000
"""Single points whose equations are solved together, some seconds. Points of facets that the model bends are single: a
step that bends most of them has gone astray."""


def polish(network: LabelNetwork, boundary: BoundaryPoints, spread: float, rounds: int) -> LabelNetwork:
    """The network with the least distances to the points; the best of all rounds."""
    if not len(network.W):
        return network
    best, least, last = network, np.inf, np.inf
    length = np.linalg.norm(network.W, axis=1)
    network = replace(network, W=network.W / length[:, None], b=network.b / length, V=network.V * length)
    for step in range(rounds + 1):
        value, gradient = network.difference(boundary.points, boundary.pairs)
        norm = steepness(gradient)
        if not FLATTEST < norm.min() < np.inf:
            break
        rms = float(np.linalg.norm(value / norm)) / len(norm) ** 0.5
        if rms < least:
            best, least = network, rms
        if step == rounds or (step > 1 and rms > 0.5 * last):
            break
        last = rms
        linearised = _Linearised(network, boundary, spread)
        if len(linearised.points) > MOST_POINTS:
            break
        try:
            network = linearised.moved()
        except np.linalg.LinAlgError:  # of equations that rounding has spoilt: what was best so far stays
            break
    return best


class _Linearised:
    """The distances to facets and points, as linear functions of a step.

    In coordinates X = (x, spread) a neuron is a row H = (w, b / spread), and a logit's linear part a row
    Q = (P, c / spread). D is a step of H, and of Q where there is a linear part. The numbers y are steps of V and c,
    and for each facet a multiple of its own row, which its scale leaves free.
    """

    def __init__(self, network: LabelNetwork, boundary: BoundaryPoints, spread: float) -> None:
        self.network, self.spread = network, spread
        self.affine = bool(np.abs(network.P).max() > 0)
        self.constants = 0 if self.affine else len(network.c)
        self.H = np.concatenate([network.W, network.b[:, None] / spread], axis=1)
        self.Q = np.concatenate([network.P, network.c[:, None] / spread], axis=1)
        whole, single = boundary.whole_facets(network)
        facets = [boundary.facets[i] for i in whole]
        d = network.W.shape[1]
        self.N = np.array([f.homogeneous(spread) for f in facets]).reshape(-1, d + 1)
        self.step = np.array([f.step for f in facets])
        self.bases = np.array([f.base for f in facets]).reshape(-1, d)
        self.facet_pairs = np.array([f.pair for f in facets], dtype=int).reshape(-1, 2)
        self.points = np.concatenate([boundary.points[single], self.bases])
        self.pairs = np.concatenate([boundary.pairs[single], self.facet_pairs])

    def moved(self) -> LabelNetwork:
        """The network after one Gauss-Newton step."""
        A, facets, a, b = self._facets()
        S, X, points, p = (np.concatenate(parts) for parts in zip(self._points(), self._gauge(), strict=True))
        D, y = FacetEquations(A, facets, S, X, points, a, b, p).solution()
        network, (k, h) = self.network, self.network.V.shape
        Q = D[h:] if self.affine else y[k * h : k * h + k, None] * self._last
        return LabelNetwork(
            W=network.W + D[:h, :-1], b=network.b + D[:h, -1] * self.spread, V=network.V + y[: k * h].reshape(k, h),
            P=network.P + Q[:, :-1], c=network.c + Q[:, -1] * self.spread,
        )  # fmt: skip

    @property
    def _last(self) -> Array:
        """The coordinate of the constant [1, d + 1]."""
        return np.eye(1, self.H.shape[1], self.H.shape[1] - 1)

    def _facets(self) -> tuple[Array, Array, Array, Array]:
        """Coefficients of D, minus the distances, and what y moves: the slope beside a facet's row must vanish."""
        network = self.network
        signs, on = _signs(self.facet_pairs, network.classes), self.bases @ network.W.T + network.b > 0
        A = on * (signs @ network.V)
        G = A @ self.H + signs @ self.Q
        weight = (self.step / np.linalg.norm(G, axis=1))[:, None]
        slope = weight * (G - (G * self.N).sum(axis=1, keepdims=True) * self.N)
        output = (signs[:, :, None] * on[:, None]).reshape(len(on), network.V.size)
        a = np.concatenate([weight * output, weight * signs[:, : self.constants], np.eye(len(on))], axis=1)
        b = np.concatenate([np.tile(self.H, (len(network.V), 1)), np.tile(self._last, (self.constants, 1)), self.N])
        return weight * self._with_linear(A, signs), -slope, a, b

    def _points(self) -> tuple[Array, Array, Array, Array]:
        """Coefficients of D, the points, minus their distances, and coefficients of y."""
        network = self.network
        value, gradient = network.difference(self.points, self.pairs)
        norm = steepness(gradient)
        signs = _signs(self.pairs, network.classes) / norm[:, None]
        z = np.maximum(self.points @ network.W.T + network.b, 0)
        S = self._with_linear((z > 0) * (signs @ network.V), signs)
        X = np.concatenate([self.points, np.full((len(z), 1), self.spread)], axis=1)
        output = (signs[:, :, None] * z[:, None]).reshape(len(z), network.V.size)
        p = np.concatenate([output, self.spread * signs[:, : self.constants], np.zeros((len(z), len(self.N)))], axis=1)
        return S, X, -value / norm, p

    def _gauge(self) -> tuple[Array, Array, Array, Array]:
        """Equations that hold the length of each neuron's row, and of all output weights."""
        network, h = self.network, len(self.H)
        S = self._with_linear(np.eye(h + 1, h), np.zeros((h + 1, len(network.c))))
        X = self.spread * np.concatenate([self.H, 0 * self.H[:1]])
        output = np.concatenate([network.V.reshape(-1), self.Q[:, -1][: self.constants], np.zeros(len(self.N))])
        return S, X, np.zeros(h + 1), np.concatenate([np.zeros((h, len(output))), self.spread * output[None]])

    def _with_linear(self, hidden: Array, linear: Array) -> Array:
        """Coefficients of the neurons, and of the linear part where there is one."""
        return np.concatenate([hidden, linear], axis=1) if self.affine else hidden


def _signs(pairs: Array, classes: int) -> Array:
    """One row a pair: 1 at its first class, -1 at its second, class 0 out [n, k - 1]."""
    signs = np.zeros((len(pairs), classes))
    signs[np.arange(len(pairs)), pairs[:, 0]] += 1
    signs[np.arange(len(pairs)), pairs[:, 1]] -= 1
    return signs[:, 1:]

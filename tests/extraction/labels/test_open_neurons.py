"""Neurons between one pair of facets: boundary points beyond other neurons tell the number that is left open."""

from __future__ import annotations

import numpy as np

from divulge.extraction.labels.network import LabelNetwork
from divulge.extraction.labels.open_neurons import Evidence, solved_members
from divulge.extraction.labels.pencils import Pencil
from divulge.extraction.labels.polygon import Corner, Edge, Slice
from divulge.extraction.labels.tolerances import Tolerances

INPUTS = 6
SPREAD = INPUTS**0.5


def boundary(network: LabelNetwork, count: int) -> np.ndarray:
    """Points of the network's boundary on random segments."""
    X, Y = np.random.default_rng(1).standard_normal((2, 40 * count, INPUTS)) * 2
    chosen = np.nonzero(network.labels(X) != network.labels(Y))[0][:count]
    X, Y, low, high = X[chosen], Y[chosen], np.zeros(len(chosen)), np.ones(len(chosen))
    for _ in range(60):
        middle = (low + high) / 2
        same = network.labels(X + middle[:, None] * (Y - X)) == network.labels(X)
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    return np.asarray(X + low[:, None] * (Y - X))


def pencil(network: LabelNetwork, which: int, points: np.ndarray) -> tuple[Pencil, float]:
    """The facets on both sides of a neuron, with the others as at the point nearest to it, and the true ratio."""
    nearest = points[np.abs(points @ network.W[which] + network.b[which]).argmin()]
    on = nearest @ network.W.T + network.b > 0
    rows = []
    for state in (False, True):
        on[which] = state
        weights = network.V[0] * on
        rows.append(np.append(weights @ network.W * SPREAD, weights @ network.b + network.c[0]))
    sizes = [float(np.linalg.norm(row)) for row in rows]
    units = np.stack([row / size for row, size in zip(rows, sizes, strict=True)])
    basis = np.linalg.qr(units.T)[0].T
    piece = Slice(np.zeros(INPUTS), np.eye(INPUTS)[:2])
    edge = Edge(piece, np.zeros(2), np.ones(2), (0, 1), np.array([1.0, 0.0]), np.array([0.0, 1.0]))
    corner = Corner(piece, edge, edge, "neuron", np.zeros(2))
    return Pencil(corner, basis, 1e-12, units @ basis.T), sizes[1] / sizes[0]


def test_two_open_neurons_are_solved_for_together():
    rng = np.random.default_rng(0)
    W, b = rng.standard_normal((4, INPUTS)), 0.3 * rng.standard_normal(4)
    network = LabelNetwork(W, b, rng.standard_normal((1, 4)), np.zeros((1, INPUTS)), np.zeros(1))
    network = LabelNetwork(
        W, b, network.V, network.P, -np.median(network.logits(rng.standard_normal((500, 6)))[:, 1:], 0)
    )
    points = boundary(network, 300)
    (one, first), (two, second) = pencil(network, 2, points), pencil(network, 3, points)
    evidence = Evidence(
        W[:2], b[:2], np.ones(2, dtype=bool), points, np.tile([0, 1], (len(points), 1)), 2,
        Tolerances.of(INPUTS, 1e-13, 0.0),
    )  # fmt: skip
    solved = solved_members([one, two], [1.001 * first, 0.999 * second], evidence)
    assert solved is not None
    for neuron, w in zip(solved, W[2:], strict=True):
        assert abs(float(neuron.w @ w)) / np.linalg.norm(w) > 1 - 1e-10
    none = Evidence(W[:1], b[:1], np.ones(1, dtype=bool), points, evidence.pairs, 2, evidence.tolerances)
    assert solved_members([one, two], [first, second], none) is None  # a neuron is missing: nothing is solved

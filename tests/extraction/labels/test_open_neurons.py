"""Neurons between one pair of facets: boundary points beyond other neurons tell the number that is left open."""

from __future__ import annotations

import numpy as np

from divulge.extraction.labels.discovery import Discovery
from divulge.extraction.labels.network import LabelNetwork
from divulge.extraction.labels.open_neurons import Evidence, likeliest, solved_members
from divulge.extraction.labels.pencils import Pencil, Sighting
from divulge.extraction.labels.polygon import Corner, Edge, Slice
from divulge.extraction.labels.survey import Survey
from divulge.extraction.labels.tolerances import Domain, Tolerances

from ...boundary_crossings import crossings

INPUTS = 6
SPREAD = INPUTS**0.5


def boundary(network: LabelNetwork, count: int) -> np.ndarray:
    """Points of the network's boundary on random segments."""
    X, Y = np.random.default_rng(1).standard_normal((2, 40 * count, INPUTS)) * 2
    return crossings(network, X, Y, count)[0]


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


def random_pencil(seed: int) -> Pencil:
    rows = np.random.default_rng(seed).standard_normal((2, INPUTS + 1))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    basis = np.linalg.qr(rows.T)[0].T
    piece = Slice(np.zeros(INPUTS), np.eye(INPUTS)[:2])
    edge = Edge(piece, np.zeros(2), np.ones(2), (0, 1), np.array([1.0, 0.0]), np.array([0.0, 1.0]))
    return Pencil(Corner(piece, edge, edge, "neuron", np.full(2, 1e3)), basis, 1e-12, rows @ basis.T)


def empty_survey() -> Survey:
    domain = Domain(np.full(INPUTS, -np.inf), np.full(INPUTS, np.inf), 100.0)
    return Survey(lambda X: np.zeros(len(X)), Tolerances.of(INPUTS, 1e-13, 0.0), domain, 2, np.random.default_rng(0))


def corners_on(of: Pencil, ratio: float, count: int) -> list[Sighting]:
    """Corners of the neuron that a ratio makes of a pencil."""
    neuron = of.members(np.array([ratio]), SPREAD)[0]
    X = np.random.default_rng(7).standard_normal((count, INPUTS))
    X -= (X @ neuron.w + neuron.b)[:, None] * neuron.w
    edge = of.corner.before
    return [Corner(Slice(x, np.eye(INPUTS)[:2]), edge, edge, "neuron", np.zeros(2), error=1e-9) for x in X]


def test_few_corners_choose_a_neuron_and_the_pencil_with_more_of_them_goes_first():
    one, two = random_pencil(1), random_pencil(2)
    corners = corners_on(two, 2.0, 2)
    found = likeliest([one, two], corners, empty_survey())
    assert found is not None
    assert found[0] is two
    true = two.members(np.array([2.0]), SPREAD)[0]
    assert abs(float(found[1].w @ true.w)) > 1 - 1e-12
    assert found[2] == corners


def test_a_hyperplane_that_an_edge_crosses_is_not_chosen():
    of = random_pencil(2)
    corners = corners_on(of, 2.0, 1)
    neuron = of.members(np.array([2.0]), SPREAD)[0]
    survey = empty_survey()
    across = Slice(-neuron.b * neuron.w, np.stack([neuron.w, np.linalg.qr(neuron.w[:, None], "complete")[0][:, 1]]))
    tangent, normal = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    across.edges.append(Edge(across, -tangent, tangent, (0, 1), tangent, normal))
    assert likeliest([of], corners, survey) is not None
    survey.slices.append(across)
    assert likeliest([of], corners, survey) is None


def test_neurons_that_were_chosen_wait_again_where_the_copy_is_contradicted():
    discovery = Discovery(empty_survey(), 10)
    certain, chosen = random_pencil(1), random_pencil(2)
    for pencil in (certain, chosen):
        pencil.corner.slice.corners.append(pencil.corner)
        discovery.survey.slices.append(pencil.corner.slice)
        discovery._add(pencil.members(np.array([2.0]), SPREAD)[0], [pencil.corner])
    discovery.faint.append(chosen)
    kept = discovery.neurons[0]
    discovery.reopen()
    assert discovery.neurons == [kept]
    assert discovery.pencils == [chosen]
    assert discovery.faint == []

"""The output layer from boundary points: the solutions they leave, and further points asked where those differ."""

from __future__ import annotations

import numpy as np

from divulge.extraction.labels.network import LabelNetwork
from divulge.extraction.labels.output_layer import DETERMINED, OutputLayer, solve_output, with_sign
from divulge.extraction.labels.survey import Survey
from divulge.extraction.labels.tolerances import REACH, Domain, Tolerances

from ...boundary_crossings import crossings

INPUTS, HIDDEN, CLASSES = 8, 6, 5


def survey_and_network(seed: int) -> tuple[Survey, LabelNetwork]:
    """An empty survey of a random network with five classes."""
    rng = np.random.default_rng(seed)
    W, b = rng.standard_normal((HIDDEN, INPUTS)), rng.standard_normal(HIDDEN)
    V = rng.standard_normal((CLASSES - 1, HIDDEN))
    network = LabelNetwork(W, b, V, np.zeros((CLASSES - 1, INPUTS)), -V @ np.maximum(b, 0.4))
    limit = np.full(INPUTS, np.inf)
    domain = Domain(-limit, limit, REACH * INPUTS**0.5)
    return Survey(network.labels, Tolerances.of(INPUTS, 1e-13, 0.0), domain, CLASSES, rng), network


def solved(survey: Survey, network: LabelNetwork) -> OutputLayer:
    """The output layer from the single points, with the hidden layer known."""
    points, pairs = np.stack([x for x, _ in survey.single]), np.array([pair for _, pair in survey.single])
    known = np.ones(HIDDEN, dtype=bool)
    return solve_output(
        network.W, network.b, points, pairs, CLASSES, network.W[:1], known, survey.tolerances
    )  # fmt: skip


def test_points_are_asked_where_solutions_are_left():
    unknown = (CLASSES - 1) * (HIDDEN + 1) - 1
    for seed in range(3):
        survey, network = survey_and_network(seed)
        survey.points_where(lambda points, pairs: points, 8)
        left = [len(solved(survey, network).null_space)]
        while left[-1] > 1 and len(left) < 12:
            survey.points_where(solved(survey, network).openness, left[-1] - 1)
            left.append(len(solved(survey, network).null_space))
        assert left[-1] == 1
        assert len(survey.single) <= 1.2 * unknown


def test_points_that_are_known_say_nothing_new():
    survey, network = survey_and_network(1)
    survey.points_where(lambda points, pairs: points, 8)
    points, pairs = np.stack([x for x, _ in survey.single]), np.array([pair for _, pair in survey.single])
    said = solved(survey, network).openness(points, pairs)
    assert float(np.abs(said).max()) < 1e-9


def test_a_solution_that_is_flat_at_all_points_is_left_out():
    """Neurons that are on wherever two classes are compared: relu(z) - z solves all equations, and is no part of it."""
    rng = np.random.default_rng(3)
    W, b = rng.standard_normal((4, 6)), np.array([0.0, 0.1, -0.2, 30.0])
    truth = LabelNetwork(W, b, rng.standard_normal((2, 4)), rng.standard_normal((2, 6)), np.array([0.2, -0.1]))
    points, pairs = crossings(truth, *(2 * rng.standard_normal((2, 4000, 6))), 300)
    _, normals = truth.difference(points, pairs)
    layer = solve_output(W, b, points, pairs, 3, normals, np.zeros(4, bool), Tolerances.of(6, 1e-15, 0.0))
    assert layer.flat > 0
    assert layer.gap < DETERMINED
    copy = with_sign(layer.network, points, pairs, normals)
    rows = 2 * rng.standard_normal((5000, 6))
    assert float((copy.labels(rows) != truth.labels(rows)).mean()) < 2e-3  # where the neuron is off, which no point is

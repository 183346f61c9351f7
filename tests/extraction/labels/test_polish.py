"""Gauss-Newton on a copy, with facets and with single points."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from divulge.extraction.labels.boundary_points import BoundaryPoints
from divulge.extraction.labels.facet_equations import FacetEquations
from divulge.extraction.labels.facets import Facet
from divulge.extraction.labels.network import LabelNetwork
from divulge.extraction.labels.polish import MOST_POINTS, polish

from ...boundary_crossings import crossings


def network_and_points(linear: bool = False) -> tuple[LabelNetwork, np.ndarray, np.ndarray]:
    """A random network with three classes, and points of its boundary."""
    rng = np.random.default_rng(0)
    network = LabelNetwork(
        rng.standard_normal((4, 6)), rng.standard_normal(4), rng.standard_normal((2, 4)),
        linear * rng.standard_normal((2, 6)), rng.standard_normal(2),
    )  # fmt: skip
    X, Y = 2 * rng.standard_normal((2, 4000, 6))
    return network, *crossings(network, X, Y, 300)


def with_facets(network: LabelNetwork, points: np.ndarray, pairs: np.ndarray, count: int) -> BoundaryPoints:
    """The points, and around some of them the facets that they lie on, with as many points as inputs each."""
    rng, step, facets, rows, of = np.random.default_rng(2), 1e-4, [], [points], [np.full(len(points), -1)]
    for i in range(count):
        _, gradient = network.difference(points[i : i + 1], pairs[i : i + 1])
        normal = gradient[0] / np.linalg.norm(gradient[0])
        beside = rng.standard_normal((6, 6))
        rows.append(points[i] + step * (beside - np.outer(beside @ normal, normal)))
        of.append(np.full(6, i))
        pair = (int(pairs[i, 0]), int(pairs[i, 1]))
        facets.append(Facet(normal, float(normal @ points[i]), pair, rows[-1], step, 0.0, points[i]))
    every = np.concatenate([pairs, np.repeat(pairs[:count], 6, axis=0)])
    return BoundaryPoints(np.concatenate(rows), every, np.concatenate(of), facets)


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("facets", [0, 3, 20])
def test_a_small_error_is_taken_back(linear, facets):
    network, points, pairs = network_and_points(linear)
    boundary = with_facets(network, points, pairs, facets)
    rng = np.random.default_rng(1)
    near = replace(network, W=network.W + 1e-6 * rng.standard_normal((4, 6)), V=network.V * (1 + 1e-6))
    before = float(near.distance(points, pairs, 6**0.5).max())
    after = polish(near, boundary, 6**0.5, 4)
    assert float(after.distance(points, pairs, 6**0.5).max()) < 1e-5 * before


def test_facets_alone_determine_the_neurons():
    network, points, pairs = network_and_points()
    boundary = with_facets(network, points[:30], pairs[:30], 30)
    boundary = boundary.only(boundary.facet >= 0)
    near = replace(network, W=network.W + 1e-6 * np.random.default_rng(1).standard_normal((4, 6)))
    after = polish(near, boundary, 6**0.5, 4)
    assert float(after.distance(points, pairs, 6**0.5).max()) < 1e-9


def test_a_copy_without_output_weights_is_left_as_it_is():
    network, points, pairs = network_and_points()
    flat = replace(network, V=0 * network.V)
    with np.errstate(all="raise"):
        after = polish(flat, with_facets(network, points, pairs, 0), 6**0.5, 4)
    assert np.array_equal(after.V, flat.V)


def test_a_facet_that_lost_a_point_counts_as_points():
    network, points, pairs = network_and_points()
    boundary = with_facets(network, points, pairs, 2)
    keep = np.ones(len(boundary.points), bool)
    keep[-1] = False
    left = boundary.only(keep)
    whole, single = left.whole_facets(network)
    assert whole.tolist() == [0]
    assert single.sum() == len(points) + 5
    assert boundary.first.tolist() == [len(points), len(points) + 6]


def test_equations_that_cannot_be_solved_leave_the_copy_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    network, points, pairs = network_and_points()
    boundary = with_facets(network, points, pairs, 3)
    monkeypatch.setattr(FacetEquations, "solution", lambda self: np.linalg.lstsq(np.full((2, 2), np.nan), np.ones(2)))
    kept = polish(network, boundary, 6**0.5, 4)
    rows = np.random.default_rng(4).standard_normal((1000, 6))
    assert (kept.labels(rows) == network.labels(rows)).all()
    assert kept.widths == network.widths


def test_more_points_than_can_be_solved_together_leave_the_copy_as_it_is():
    """A step that goes astray bends most facets of 784 inputs, whose 25,000 points would be single then."""
    network, points, pairs = network_and_points()
    near = replace(network, W=network.W * (1 + 1e-6 * np.random.default_rng(1).standard_normal((4, 6))))
    many = np.tile(np.arange(len(points)), MOST_POINTS // len(points) + 1)
    boundary = with_facets(network, points[many], pairs[many], 0)
    after = polish(near, boundary, 6**0.5, 4)
    assert np.allclose(after.W * np.linalg.norm(near.W, axis=1)[:, None], near.W, rtol=1e-12)

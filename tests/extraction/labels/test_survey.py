"""Searches for more of the boundary."""

from __future__ import annotations

import numpy as np

from divulge.extraction.labels.asking import Array
from divulge.extraction.labels.facets import Facet
from divulge.extraction.labels.survey import Survey
from divulge.extraction.labels.tolerances import Domain, Tolerances

INPUTS = 5
SPREAD = INPUTS**0.5


def labels(X: Array) -> Array:
    """A boundary x0 = |x1 - 0.01|, of which the piece around the origin ends at x1 = 0.01."""
    return (X[:, 0] > np.abs(X[:, 1] - 0.01)).astype(int)


def test_a_slice_through_a_facet_begins_with_an_edge_that_is_on_the_boundary():
    """The facet is taken to reach farther than it does, as where most of its directions are long and some short."""
    domain = Domain(np.full(INPUTS, -np.inf), np.full(INPUTS, np.inf), 30 * SPREAD)
    survey = Survey(labels, Tolerances.of(INPUTS, 1e-13, 0.0), domain, 2, np.random.default_rng(0))
    normal = np.array([1.0, 1.0, 0.0, 0.0, 0.0]) / 2**0.5
    base = np.array([0.01, 0.0, 0.0, 0.0, 0.0])
    facet = Facet(normal, float(normal @ base), (1, 0), np.zeros((0, INPUTS)), 1.0, 1e-13, base)
    for piece in survey.walk([survey.through(facet) for _ in range(20)]):
        for edge in piece.edges:
            X = edge.points()
            np.testing.assert_allclose(X[:, 0], np.abs(X[:, 1] - 0.01), atol=1e-7)
    assert sum(bool(piece.edges) for piece in survey.slices) >= 15

"""The hyperplane of a boundary piece, from labels."""

from __future__ import annotations

import numpy as np

from divulge.extraction.labels.asking import Array, alone
from divulge.extraction.labels.facets import measure
from divulge.extraction.labels.polygon import Edge, Slice
from divulge.extraction.labels.tolerances import Tolerances

INPUTS = 6
SPREAD = INPUTS**0.5


def test_a_facet_is_measured_beside_a_ridge_past_which_the_boundary_is_steep():
    """Rough slopes are taken past the ridge, 0.001 away: they are those of the other facet."""

    def labels(X: Array) -> Array:
        return (X[:, 1] > 3 * np.maximum(X[:, 2] - 0.001, 0)).astype(int)

    piece = Slice(np.zeros(INPUTS), np.eye(INPUTS)[:2])
    tangent, normal = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    edge = Edge(piece, -SPREAD / 2 * tangent, SPREAD / 2 * tangent, (1, 0), tangent, normal)
    for seed in range(4):
        found = alone(labels, measure(edge, Tolerances.of(INPUTS, 1e-13, 0.0), np.random.default_rng(seed)))
        assert found is not None
        np.testing.assert_allclose(found.normal, np.eye(INPUTS)[1], atol=1e-8)

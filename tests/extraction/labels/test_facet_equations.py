"""The structured least squares: the same solution as that of the whole matrix."""

from __future__ import annotations

import numpy as np
import pytest

from divulge.extraction.labels.facet_equations import FacetEquations


def dense_solution(e: FacetEquations) -> tuple[np.ndarray, np.ndarray]:
    """By the matrix of all equations."""
    m, w = e.A.shape[1], e.X.shape[1]
    facets = np.concatenate([np.kron(e.A, np.eye(w)), (e.a[:, None] * e.b.T).reshape(-1, len(e.b))], axis=1)
    points = np.concatenate([(e.S[:, :, None] * e.X[:, None]).reshape(len(e.X), m * w), e.p], axis=1)
    right = np.concatenate([e.facets.reshape(-1), e.points])
    found = np.linalg.lstsq(np.concatenate([facets, points]), right, rcond=None)[0]
    return found[: m * w].reshape(m, w), found[m * w :]


@pytest.mark.parametrize(("facets", "precise"), [(2, 1e-3), (3, 1e-8), (9, 1e-8)])
def test_it_is_the_solution_of_the_whole_matrix(facets, precise):
    """Less precisely where facets leave a direction to the points: further steps make up for that."""
    rng, m, w, n, r = np.random.default_rng(facets), 3, 5, 12, 4
    random = rng.standard_normal
    equations = FacetEquations(
        random((facets, m)), random((facets, w)), random((n, m)), random((n, w)), random(n), random((facets, r)),
        random((r, w)), random((n, r)),
    )  # fmt: skip
    for one, two in zip(equations.solution(), dense_solution(equations), strict=True):
        assert np.abs(one - two).max() < precise

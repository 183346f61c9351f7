"""A boundary point at which all neurons of two layers are on."""

from __future__ import annotations

import numpy as np
import pytest

from divulge.extraction.labels.deeper.base_point import base_point
from divulge.extraction.labels.deeper.features import Features, survey_of
from divulge.extraction.labels.survey import Survey
from divulge.extraction.labels.tolerances import Domain, Tolerances


@pytest.mark.parametrize("seed", range(5))
def test_the_base_is_on_the_boundary_and_all_neurons_are_on(seed):
    rng = np.random.default_rng(seed)
    W, V = rng.standard_normal((8, 12)), rng.standard_normal((4, 8)) + 0.5  # so that all can be on at once
    W, V = (M / np.linalg.norm(M, axis=1, keepdims=True) for M in (W, V))
    first, c = Features(W, rng.standard_normal(8), np.zeros(12)), 0.1 * rng.standard_normal(4)
    logit = lambda x: np.maximum(first(x) @ V.T + c, 0).sum(axis=1) - 3  # noqa: E731
    domain = Domain(np.full(12, -np.inf), np.full(12, np.inf), 100.0)
    ask = lambda x: (logit(x) > 0).astype(int)  # noqa: E731
    inner = survey_of(first, Survey(ask, Tolerances.of(12, 1e-13, 0.0), domain, 2, rng))
    base = base_point(V, c, inner)
    assert base is not None
    assert base.min() > 0
    assert (V @ base + c).min() > 0
    assert abs(float(logit(first.rows(base[None]))[0])) < 1e-9
    # around it, rows by their second layer's outputs stay where all neurons are on
    above = survey_of(Features(V, c, base), inner)
    rows = above.rows(100)
    assert above.domain.holds(0.999 * rows + 0.001 * (V @ base + c))
    np.testing.assert_allclose(V @ above.features.rows(rows).T + c[:, None], rows.T, atol=1e-9)
    assert above.features.rows(rows).min() > 0


def test_no_base_where_the_label_never_changes():
    rng = np.random.default_rng(0)
    first = Features(np.eye(3), np.zeros(3), np.zeros(3))
    domain = Domain(np.full(3, -np.inf), np.full(3, np.inf), 100.0)
    inner = survey_of(first, Survey(lambda x: np.zeros(len(x), int), Tolerances.of(3, 1e-13, 0.0), domain, 2, rng))
    assert base_point(np.eye(3)[:2], np.ones(2), inner) is None

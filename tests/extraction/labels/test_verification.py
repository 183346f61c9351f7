"""Where a copy is repaired: at the target's nearest boundary."""

from __future__ import annotations

import numpy as np

from divulge.extraction.labels.survey import Survey
from divulge.extraction.labels.tolerances import Domain, Tolerances
from divulge.extraction.labels.verification import nearest_change

INPUTS = 5


def _survey() -> Survey:
    """Label 1 beyond a hyperplane far away, and in a small ball."""
    centre = np.full(INPUTS, 0.5)
    ask = lambda x: ((x[:, 0] > 3) | (np.linalg.norm(x - centre, axis=1) < 0.1)).astype(int)  # noqa: E731
    domain = Domain(np.full(INPUTS, -np.inf), np.full(INPUTS, np.inf), 60.0)
    return Survey(ask, Tolerances.of(INPUTS, 1e-13, 0.0), domain, 2, np.random.default_rng(0))


def test_a_pocket_that_the_copy_lacks_is_what_the_segment_leaves():
    inside, far = np.full(INPUTS, 0.5), np.random.default_rng(1).standard_normal((8, INPUTS))
    found = nearest_change(_survey(), inside, far)
    assert found is not None
    assert found.label == 1
    assert np.linalg.norm(found.two - found.one) < 0.25  # the pocket's own boundary, not that at 3


def test_no_segment_where_the_label_does_not_change():
    rows = -np.abs(np.random.default_rng(2).standard_normal((8, INPUTS)))
    assert nearest_change(_survey(), np.full(INPUTS, -1.0), rows) is None

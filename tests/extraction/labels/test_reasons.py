"""What is said of a copy that is not equivalent: counts where few rows are wrong, and no kind of target then."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from divulge.extraction.labels import reasons
from divulge.extraction.labels.verification import Agreement


@pytest.mark.parametrize(
    ("rows", "own", "near", "sentence"),
    [
        (1.0, 1.0, 0.99, "decides like the target on all 20,000 fresh rows, and otherwise next to 22 of 2,200 points"),
        (1.0, 0.9956, 1.0, "on all 20,000 fresh rows, and otherwise on 0.44% of the rows in inputs=: it is imprecise"),
        (0.99995, 1.0, 1.0, "decides otherwise on 1 of 20,000 fresh rows: it is imprecise there or lacks a neuron"),
        (0.99995, 0.9956, 0.998, "1 of 20,000 fresh rows, on 0.44% of the rows in inputs= and next to 4 of 2,200"),
        (0.7, 0.8, 0.3, "on 30.00% of fresh rows and on 70.0% of rows near the boundary: the target is not a ReLU"),
    ],
)
def test_what_is_wrong_is_counted(rows, own, near, sentence, monkeypatch):
    monkeypatch.setattr(reasons, "along_axes", lambda facets: False)
    measured = Agreement(rows, {1e-3: near}, own, 20_000, 2_200, 0.5, [])
    discovery = SimpleNamespace(survey=SimpleNamespace(facets=[]), deep=False)
    said = reasons.disagrees(measured, discovery, SimpleNamespace(wrong=0))
    assert sentence in said
    assert " 0.00%" not in said

"""The first layer's outputs as inputs of the layers above."""

from __future__ import annotations

import numpy as np
import pytest

from divulge.extraction.labels.deeper.features import Features, FeatureSurvey, survey_of
from divulge.extraction.labels.survey import Survey
from divulge.extraction.labels.tolerances import Domain, Tolerances


@pytest.fixture
def survey() -> FeatureSurvey:
    rng = np.random.default_rng(0)
    W = rng.standard_normal((4, 9))
    features = Features(W / np.linalg.norm(W, axis=1, keepdims=True), rng.standard_normal(4), np.zeros(9))
    domain = Domain(np.full(9, -np.inf), np.full(9, np.inf), 90.0)
    ask = lambda x: (features(x).sum(axis=1) > 2).astype(int)  # noqa: E731
    return survey_of(features, Survey(ask, Tolerances.of(9, 1e-12, 0.0), domain, 2, rng))


def test_rows_have_the_outputs_that_they_are_for(survey):
    a = np.abs(np.random.default_rng(1).standard_normal((50, 4)))
    np.testing.assert_allclose(survey.features(survey.features.rows(a)), a, atol=1e-12)


def test_every_neuron_is_on_in_random_rows(survey):
    rows = survey.rows(200)
    assert rows.min() > 0
    assert (survey.features.before(survey.features.rows(rows)) > 0).all()


def test_the_target_is_asked_through_the_first_layer(survey):
    a = np.abs(np.random.default_rng(2).standard_normal((50, 4)))
    assert (survey.ask(a) == (a.sum(axis=1) > 2)).all()


def test_a_slice_needs_no_direction_across_the_segment(survey):
    """The direction towards a corner may be that of the segment itself, or none at all."""
    one, two = np.full(4, 0.1), np.full(4, 2.0)
    for aside in (two - one, np.zeros(4)):
        piece = survey.walk([survey.between(one, two, int(survey.ask(one[None])[0]), aside)])[0]
        np.testing.assert_allclose(piece.frame @ piece.frame.T, np.eye(2), atol=1e-12)


def test_the_outputs_of_a_rounding_target_are_as_coarse_as_its_inputs():
    rng = np.random.default_rng(0)
    features = Features(np.eye(4, 9), np.zeros(4), np.zeros(9))
    domain = Domain(np.full(9, -np.inf), np.full(9, np.inf), 90.0)
    below = Survey(lambda x: np.zeros(len(x), int), Tolerances.of(9, 1e-13, 2e-7), domain, 2, rng)
    assert below.tolerances.coarse
    assert survey_of(features, below).tolerances.coarse

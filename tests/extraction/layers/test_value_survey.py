"""Segments searched by values alone."""

import numpy as np

from divulge.extraction.layers.value_survey import ValueSpace, ValueSurvey


def test_a_segment_without_length_is_left_out():
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(4, 3))
    survey = ValueSurvey(ValueSpace(lambda Y: np.maximum(Y @ weight.T, 0).sum(axis=1, keepdims=True), 3, rng))
    begin, end = rng.normal(size=(2, 2, 3))
    end[0] = begin[0]
    survey.add(begin, end, [0.0, 1.0])
    assert survey.segments == 1
    assert np.isfinite(survey.data.gradient).all()

"""Segments searched by values alone."""

import numpy as np

from divulge.extraction.layers.first_layer import first_layer
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


def two_layers(seed):
    """A network 12-6-4-1 as a function of rows, and the hyperplanes of its first layer, with rows of unit length."""
    rng = np.random.default_rng(seed)
    (first, bias), (second, offset) = (
        (rng.normal(size=(b, a)), 0.3 * rng.normal(size=b)) for a, b in ((12, 6), (6, 4))
    )
    above = rng.normal(size=4)

    def ask(Y):
        return (np.maximum(np.maximum(Y @ first.T + bias, 0) @ second.T + offset, 0) @ above)[:, None]

    size = np.linalg.norm(first, axis=1)
    return ask, first / size[:, None], bias / size


def test_the_first_layer_takes_the_gradients_of_one_line_alone():
    ask, weight, bias = two_layers(160_000)
    survey = ValueSurvey(ValueSpace(ask, 12, np.random.default_rng(0)))
    found, offset = first_layer(survey, 1e3, np.random.default_rng(1))
    assert survey.segments == 1
    order = (weight @ found.T).argmax(axis=1)
    assert sorted(order) == list(range(6))
    assert np.allclose(found[order], weight, atol=1e-7)
    assert np.allclose(offset[order], bias, atol=1e-7)


def test_kinks_of_a_line_that_are_not_precise_are_not_taken_for_a_layer():
    ask, _, _ = two_layers(160_000)
    survey = ValueSurvey(ValueSpace(ask, 12, np.random.default_rng(0)))
    origin, direction = np.random.default_rng(2).normal(size=(2, 1, 12))
    survey.add(origin, origin + direction, [-1e3, -1.0, 1.0, 1e3])
    survey.data.weight[:] = 1e-6
    first_layer(survey, 1e3, np.random.default_rng(1))
    assert survey.segments > 1

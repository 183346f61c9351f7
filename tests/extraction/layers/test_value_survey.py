"""Segments searched by values alone."""

import numpy as np

from divulge.extraction.layers.first_layer import first_layer
from divulge.extraction.layers.value_survey import ValueSpace, ValueSurvey
from divulge.extraction.values.cell_gradients import Cells, Measurement
from divulge.extraction.values.line_scan import Line, run_together, scan
from divulge.extraction.values.search_state import SearchedLine


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


def assert_is_layer(found, weight, bias, atol):
    order = (weight @ found[0].T).argmax(axis=1)
    assert sorted(order) == list(range(len(bias)))
    assert np.allclose(found[0][order], weight, atol=atol, rtol=0)
    assert np.allclose(found[1][order], bias, atol=atol, rtol=0)


def test_the_first_layer_takes_the_gradients_of_one_line_alone():
    ask, weight, bias = two_layers(160_000)
    survey = ValueSurvey(ValueSpace(ask, 12, np.random.default_rng(0)))
    found = first_layer(survey, 1e3, np.random.default_rng(1))
    assert survey.segments == 1
    assert_is_layer(found, weight, bias, 1e-7)


def test_kinks_of_a_line_that_are_not_precise_are_not_taken_for_a_layer():
    ask, _, _ = two_layers(160_000)
    survey = ValueSurvey(ValueSpace(ask, 12, np.random.default_rng(0)))
    origin, direction = np.random.default_rng(2).normal(size=(2, 1, 12))
    survey.add(origin, origin + direction, [-1e3, -1.0, 1.0, 1e3])
    survey.data.weight[:] = 1e-6
    first_layer(survey, 1e3, np.random.default_rng(1))
    assert survey.segments > 1


def test_a_hyperplane_beside_a_narrow_cell_is_measured_again_on_a_further_line():
    ask, weight, bias = two_layers(160_000)
    rng = np.random.default_rng(2)
    survey = ValueSurvey(ValueSpace(ask, 12, np.random.default_rng(0)))
    origin, direction = rng.normal(size=(2, 1, 12))
    survey.add(origin, origin + direction, [-1e3, -1.0, 1.0, 1e3])
    data = survey.data
    spoilt = int(np.flatnonzero(data.kinked)[np.abs(data.normal[data.kinked] @ weight[0]).argmax()])
    data.normal[spoilt] += 1e-7 * rng.normal(size=12)
    data.weight[spoilt] = 1e-5
    assert_is_layer(first_layer(survey, 1e3, np.random.default_rng(1)), weight, bias, 1e-9)
    assert survey.segments == 1


def test_a_line_that_was_searched_before_is_taken_over_with_its_narrow_cells():
    ask, weight, bias = two_layers(160_000)
    asked = []

    def counted(Y):
        asked.append(len(Y))
        return ask(Y)

    space = ValueSpace(counted, 12, np.random.default_rng(0))
    before, survey = ValueSurvey(space), ValueSurvey(space)
    origin, direction = np.random.default_rng(2).normal(size=(2, 12))
    line, t_far = Line(origin, direction), 1e3
    noise = space.precision().noise
    (found,) = run_together(
        space.values,
        [scan(line, -t_far, t_far, noise=noise, smallest=lambda t: 1e-7, start=24, rng=np.random.default_rng(3))],
    )
    (cut,) = before.cut(origin[None], direction[None], t_far)
    wide = np.setdiff1d(np.arange(len(found.pieces)), [2, 5])  # two cells were not measured
    base, length = line.at(cut.middles[wide]), float(np.linalg.norm(direction))
    cells = Cells(
        base=base, value=ask(base), noise=noise(base), direction=direction / length,
        slope=np.stack([found.pieces[i].slope for i in wide]) / length, room=0.5 * np.diff(cut.edges)[wide] * length,
    )  # fmt: skip
    work = Measurement(cells, frame=np.eye(12), precision=space.precision(), rng=np.random.default_rng(4))
    (gradients,) = run_together(space.values, [work.run()])
    asked.clear()
    survey.take_over(SearchedLine(line, found, cut.middles, wide, cells, gradients))
    assert sum(asked) < 4 * 12  # of the two cells alone
    assert survey.data.kinked.sum() == len(found.kinks)
    assert_is_layer(first_layer(survey, 1e3, np.random.default_rng(1)), weight, bias, 1e-7)
    assert survey.segments == 1

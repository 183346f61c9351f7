"""A neuron that is seldom on is found from a single kink that the other neurons leave unexplained."""

import numpy as np

from divulge.extraction.layers import leftover_kinks, partial_rows
from divulge.extraction.layers.candidate_test import is_neuron
from divulge.extraction.layers.known_layers import KnownLayers
from divulge.extraction.layers.leftover_kinks import seldom_on
from divulge.extraction.layers.query_space import QuerySpace
from divulge.extraction.layers.survey import Survey


class TwoLayers(QuerySpace):
    """f(y) = sum of c relu(V relu(W y + b) + e), asked in inputs."""

    def __init__(self) -> None:
        super().__init__(6)
        rng = np.random.default_rng(3)
        self.first_layer = KnownLayers(6).with_layer(rng.normal(size=(6, 6)), rng.normal(size=6))
        V, e = rng.normal(size=(4, 6)), rng.normal(size=4)
        V[0], e[0] = -np.abs(V[0]) * np.array([-1, 1, 1, 1, 1, 1]), -1.5  # on where unit 0 dominates
        self.both = self.first_layer.with_layer(V, e)
        self.weight = rng.normal(size=(1, 4))

    def maps(self, Y):
        activation, _, jacobian = self.both.maps(Y)
        return activation @ self.weight.T, np.einsum("kh,nhd->nkd", self.weight, jacobian)

    def without_the_rare_neuron(self) -> KnownLayers:
        weight, bias, _ = self.both.stack[1]
        return self.first_layer.with_layer(weight[1:], bias[1:])


def survey_of(space: TwoLayers) -> Survey:
    survey, rng = Survey(space), np.random.default_rng(0)
    begin, end = 2 * rng.normal(size=(2, 40, 6))
    survey.add(begin, end, [0.0, 1.0])
    return survey


def open_kinks(survey: Survey, layers: KnownLayers) -> np.ndarray:
    data = survey.data
    return data.kinked & ~layers.cross(data.Y[data.left], data.Y[data.right])


def test_segments_show_more_entries_of_a_neuron_that_was_missed():
    space = TwoLayers()
    survey, layers = survey_of(space), space.without_the_rare_neuron()
    left = open_kinks(survey, layers)
    single = np.zeros_like(left)
    single[np.flatnonzero(left)[0]] = True
    depth, pairs = seldom_on(survey, layers, single, 0, np.random.default_rng(0))
    assert depth == 1
    row, bias = space.both.weights[1][0], space.both.biases[1][0]
    crossed = [np.sign(space.first_layer(np.array(pair)) @ row + bias) for pair in pairs]
    assert pairs
    assert np.mean([side[0] != side[1] for side in crossed]) > 0.8


def test_more_kinks_than_are_compared_are_looked_at_in_part(monkeypatch):
    monkeypatch.setattr(partial_rows, "MOST_COMPARED", 30)
    monkeypatch.setattr(leftover_kinks, "MOST_KINKS", 8)
    space = TwoLayers()
    survey = survey_of(space)
    every = survey.data.kinked
    assert every.sum() > 60
    depth, _ = seldom_on(survey, space.without_the_rare_neuron(), every, 0, np.random.default_rng(0))
    assert depth in (None, 0, 1)


def test_nothing_is_left_where_all_neurons_are_known():
    space = TwoLayers()
    survey = survey_of(space)
    assert not open_kinks(survey, space.both).any()
    assert seldom_on(survey, space.both, open_kinks(survey, space.both), 0, np.random.default_rng(0)) == (None, [])


def test_a_hyperplane_that_is_no_neuron_is_refused():
    from divulge.extraction.layers.neuron import Neuron

    space, rng = TwoLayers(), np.random.default_rng(1)
    row = rng.normal(size=6)
    guess = Neuron(row / np.linalg.norm(row), 0.1, np.ones(6, bool), np.zeros(0, bool), 1.0)
    weight, bias, _ = space.both.stack[1]
    true = Neuron(weight[1] / np.linalg.norm(weight[1]), bias[1] / np.linalg.norm(weight[1]), np.ones(6, bool),
                  np.zeros(0, bool), 1.0)  # fmt: skip
    others = weight[2:], bias[2:]
    assert is_neuron(space, space.first_layer, true, *others, rng)
    assert not is_neuron(space, space.first_layer, guess, *others, rng)

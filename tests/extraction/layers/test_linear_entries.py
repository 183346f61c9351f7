"""Entries that no kink of their neuron shows: the layer above tells them, or a program finds where it switches."""

import numpy as np
import pytest

from divulge.extraction.layers.entry_segments import segment_with_unit_on
from divulge.extraction.layers.known_layers import KnownLayers
from divulge.extraction.layers.linear_entries import Passing
from divulge.extraction.layers.neuron import Neuron
from divulge.extraction.layers.query_space import QuerySpace


class Inputs(QuerySpace):
    def maps(self, Y):
        raise NotImplementedError


def neuron(row, bias=0.0, known=None):
    known = np.ones(len(row), bool) if known is None else known
    return Neuron(np.asarray(row, float), bias, known, np.zeros(0, bool), 1.0)


@pytest.fixture
def always_on_together():
    """Unit 2 is on where unit 0 is larger than 1, and neuron 0 is on with it; its entry there, 0.7, was not seen."""
    first = np.array([[1.0, 0, 0], [0, 1.0, 0], [1.0, 0, 0], [0, 0, 1.0]]), np.array([0.0, 0, -1, 0])
    weight = np.array([[1.0, -0.02, 0.7, 0.1], [-0.5, 1.0, 0.2, 0.3], [0.4, 0.2, -0.6, 1.0]])
    bias = np.array([-0.2, 0.1, 0.0])
    layers = KnownLayers(3).with_layer(*first).with_layer(weight, bias)
    unseen = np.zeros(weight.shape, bool)
    unseen[0, 2] = True
    Y = np.random.default_rng(0).normal(size=(500, 3))
    return layers, unseen, Y


def without(layers, unseen):
    weight, bias, linear = layers.stack[-1]
    return layers.first(1).with_layer(np.where(unseen, 0.0, weight), bias, linear)


def test_a_passing_unit_carries_an_entry_and_the_layer_above_tells_it(always_on_together):
    layers, unseen, Y = always_on_together
    passing = Passing.of(without(layers, unseen), unseen, Y)
    assert [entry.below for entry in passing.entries] == [2]
    above = np.random.default_rng(1).normal(size=(4, 3))
    put_in = passing.layers.weights[-1][0, 2]
    carried = np.c_[above, above[:, 0] * (0.7 - put_in)]
    assert np.allclose(passing.layers(Y) @ carried.T, layers(Y) @ above.T)
    told, found = passing.told([neuron(row) for row in carried])
    assert np.allclose(told.weights[-1], layers.weights[-1])
    assert all(len(other.row) == 3 for other in found)


def test_neurons_that_contradict_each_other_tell_no_entry(always_on_together):
    layers, unseen, Y = always_on_together
    passing = Passing.of(without(layers, unseen), unseen, Y)
    assert passing.told([neuron(row) for row in np.random.default_rng(2).normal(size=(4, 4))]) is None


def test_one_neuron_alone_confirms_no_entry(always_on_together):
    layers, unseen, Y = always_on_together
    passing = Passing.of(without(layers, unseen), unseen, Y)
    assert passing.told([neuron([1.0, 0.5, 0.2, 0.3])]) is None


def test_an_entry_of_a_neuron_that_is_off_wherever_its_unit_is_on_keeps_it_off(always_on_together):
    layers, unseen, Y = always_on_together
    weight, bias, _ = layers.stack[-1]
    turned = layers.first(1).with_layer(weight * [[-1], [1], [1]], bias * [-1, 1, 1])
    passing = Passing.of(without(turned, unseen), unseen, Y)
    assert not passing.entries
    unit_on = layers.first(1)(Y)[:, 2] > 0
    assert unit_on.any()
    assert (passing.layers(Y)[unit_on, 0] == 0).all()


def test_a_program_finds_a_segment_on_which_the_neuron_switches_with_the_unit_on():
    rng = np.random.default_rng(4)
    layers = KnownLayers(5).with_layer(rng.normal(size=(6, 5)), np.append(rng.normal(size=5), -4.0))
    row, bias = rng.normal(size=6), 0.2
    known = np.arange(6) < 5
    lacking = neuron(np.where(known, row, 0.0), bias, known)
    begin, end = segment_with_unit_on(Inputs(5), layers, lacking, 5, rng.normal(size=(200, 5)))
    activation = layers(np.array([begin, end]))
    assert (activation[:, 5] > 0).all()
    before = activation @ row + bias
    assert before[0] > 0 > before[1]


def test_there_is_no_segment_where_the_neuron_is_always_on_with_the_unit():
    first = np.array([[1.0, 0], [1.0, 0]]), np.array([0.0, -1.0])
    layers = KnownLayers(2).with_layer(*first)
    lacking = neuron([1.0, 0.0], 0.0, np.array([True, False]))
    assert segment_with_unit_on(Inputs(2), layers, lacking, 1, np.random.default_rng(0).normal(size=(200, 2))) is None

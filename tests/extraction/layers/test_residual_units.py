"""Neurons of the last layer that almost never switch, from samples that contradict the copy."""

import numpy as np

from divulge.extraction.layers.directed_rows import rows_for_units
from divulge.extraction.layers.known_layers import KnownLayers
from divulge.extraction.layers.output_fit import OutputFit
from divulge.extraction.layers.query_space import QuerySpace
from divulge.extraction.layers.residual_units import Explained, ResidualUnit, largest, residual_units, with_units
from divulge.extraction.layers.survey import Survey


class Network(QuerySpace):
    """Layers and an output that are asked directly."""

    def __init__(self, layers, output):
        super().__init__(layers.inputs)
        self.layers, self.output = layers, output

    def maps(self, Y):
        activation, _, jacobian = self.layers.maps(Y)
        value = activation @ self.output.weight.T + self.output.bias
        return value, np.einsum("kh,nhd->nkd", self.output.weight, jacobian)


def without_last_neuron(outputs, seed):
    """A survey of a network, and a copy of it that lacks the last neuron."""
    rng = np.random.default_rng(seed)
    first = KnownLayers(8).with_layer(rng.normal(size=(6, 8)), rng.normal(size=6))
    weight, bias = rng.normal(size=(5, 6)), rng.normal(size=5)
    above = OutputFit(rng.normal(size=(outputs, 5)), rng.normal(size=outputs), np.zeros(0, int))
    whole = first.with_layer(weight, bias)
    survey = Survey(Network(whole, above))
    survey.add_points(rng.normal(size=(60, 8)))
    copy = OutputFit(above.weight[:, :4], above.bias, np.zeros(0, int))
    return survey, whole, first.with_layer(weight[:4], bias[:4]), copy


def test_a_missing_neuron_is_found_from_samples_alone():
    for outputs in (1, 3):
        survey, whole, layers, output = without_last_neuron(outputs, seed=outputs)
        units = residual_units(survey, layers, output)
        assert len(units) == 1
        row = whole.weights[-1][4]
        assert np.allclose(units[0].row, row / np.linalg.norm(row))
        assert units[0].known.all()
        wider, fit = with_units(layers, output, units, 4)
        Y = np.random.default_rng(9).normal(size=(200, 8))
        assert np.allclose(wider(Y) @ fit.weight.T + fit.bias, survey.space.maps(Y)[0])


def test_nothing_is_added_to_a_copy_that_is_right():
    survey, whole, _, _ = without_last_neuron(1, seed=5)
    assert residual_units(survey, whole, survey.space.output) == []


def test_a_missing_neuron_of_a_layer_below_is_not_taken_for_one_of_the_last():
    survey, whole, _, _ = without_last_neuron(1, seed=6)
    (weight, bias, _), (above, offset, _) = whole.stack
    less = KnownLayers(8).with_layer(weight[:5], bias[:5]).with_layer(above[:, :5], offset)
    assert residual_units(survey, less, survey.space.output) == []


def on_at_unit_0_alone():
    """A unit whose entries at units 1 and 2 are open: on at unit 0 alone, off where unit 1 is on too."""
    unit = ResidualUnit(np.array([1.0, 0, 0]), -0.1, np.ones(1), np.eye(4)[1:3])
    rng = np.random.default_rng(0)
    activation = np.c_[rng.random((50, 2)), np.zeros(50)]
    return unit, activation[activation @ [1.0, -2.0, 0] < 0.1]


def test_entries_that_no_sample_tells_are_as_large_as_all_rows_allow():
    unit, activation = on_at_unit_0_alone()
    *row, bias = largest(unit, np.array([0.0, 1, 1, 0]), Explained(activation, np.zeros(len(activation))))
    assert row[0] == 1
    assert bias == -0.1
    assert (activation @ row - 0.1 < 1e-9).all()
    assert -2.0 < row[1] < 0
    assert np.abs(row).max() <= 3


def test_a_unit_that_is_on_where_the_copy_is_right_is_no_neuron_of_the_layer():
    unit, activation = on_at_unit_0_alone()
    activation = np.concatenate([activation, [[0.5, 0, 0]]])
    assert largest(unit, np.ones(4), Explained(activation, np.zeros(len(activation)))) is None


def seldom_on():
    """A layer of five units, and a neuron on it that is on at few of 2,000 rows, seen where units 3 and 4 are off."""
    rng = np.random.default_rng(3)
    below = KnownLayers(6).with_layer(rng.normal(size=(5, 6)), rng.normal(size=5))
    row, bias = np.array([-0.6, -0.5, 0.5, -0.2, 0.3]), -1.0
    return below, row, bias, rng.normal(size=(2000, 6))


def test_rows_that_programs_find_tell_the_open_entries():
    below, row, bias, samples = seldom_on()
    activation = below(samples)
    off = activation[activation @ row + bias <= 0]
    unit = ResidualUnit(np.where(np.arange(5) < 3, row, 0.0), bias, np.ones(1), np.eye(6)[3:5])
    rng = np.random.default_rng(0)
    Y = rows_for_units(QuerySpaceOfInputs(6), below, [unit], samples, Explained(off, np.zeros(len(off))), rng)
    found = below(Y)
    for entry in (3, 4):
        assert ((found[:, entry] > 0) & (found @ row + bias > 0)).any()


def test_no_row_is_asked_for_a_unit_that_has_no_open_entry():
    below, row, bias, samples = seldom_on()
    unit = ResidualUnit(row, bias, np.ones(1), np.zeros((0, 6)))
    none = Explained(np.zeros((0, 5)), np.zeros(0))
    assert not len(rows_for_units(QuerySpaceOfInputs(6), below, [unit], samples, none, np.random.default_rng(0)))


class QuerySpaceOfInputs(QuerySpace):
    def maps(self, Y):
        raise NotImplementedError

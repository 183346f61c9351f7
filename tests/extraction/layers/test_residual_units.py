"""Neurons of the last layer that almost never switch, from samples that contradict the copy."""

import numpy as np

from divulge.extraction.layers.known_layers import KnownLayers
from divulge.extraction.layers.output_fit import OutputFit
from divulge.extraction.layers.query_space import QuerySpace
from divulge.extraction.layers.residual_units import ResidualUnit, bounded, residual_units, with_units
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


def test_entries_that_no_sample_tells_are_as_large_as_all_rows_allow():
    """On at unit 0 alone; where unit 1 is on too it is off, and unit 2 is on at no row."""
    unit = ResidualUnit(np.array([1.0, 0, 0]), -0.1, np.ones(1), np.array([True, False, False]))
    rng = np.random.default_rng(0)
    activation = np.c_[rng.random((50, 2)), np.zeros(50)]
    activation = activation[activation @ [1.0, -2.0, 0] < 0.1]
    row = bounded([unit], activation)[0].row
    assert row[0] == 1
    assert (activation @ row - 0.1 < 1e-9).all()
    assert -2.0 < row[1] < 0
    assert np.abs(row).max() <= 3

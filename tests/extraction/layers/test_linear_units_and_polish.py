"""Parts of the attack on deep networks: linear units, the last layer's fewest units, and the Gauss-Newton finish."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from divulge.extraction.layers.copy_on_layers import _without_idle
from divulge.extraction.layers.deep_copy import DeepCopy
from divulge.extraction.layers.deep_verification import _linear_extremes
from divulge.extraction.layers.known_layers import KnownLayers
from divulge.extraction.layers.layer_search import has_identity, with_identity
from divulge.extraction.layers.output_fit import OutputFit, with_fewest_units
from divulge.extraction.layers.polish import outputs, polish
from divulge.extraction.layers.query_space import QuerySpace


class Inputs(QuerySpace):
    """A space of inputs in which nothing is asked."""

    def maps(self, Y):
        raise NotImplementedError


def layers(rng, inputs=5, width=6):
    return KnownLayers(inputs).with_layer(rng.normal(size=(width, inputs)), rng.normal(size=width))


def test_linear_units_become_relu_units_of_the_same_function():
    rng = np.random.default_rng(0)
    mask = np.array([False, False, True, False])
    known = layers(rng).with_layer(rng.normal(size=(4, 6)), rng.normal(size=4), mask)
    output = OutputFit(rng.normal(size=(2, 4)), rng.normal(size=2), np.zeros(0, int))
    X = 3 * rng.normal(size=(500, 5))
    copy = DeepCopy.of(Inputs(5), known, output, X)
    truth = known(X) @ output.weight.T + output.bias
    assert np.abs(copy(X) - truth).max() < 1e-12
    assert copy.widths == [6, 4]


@pytest.mark.parametrize("always_on", [False, True])
def test_identity_units_are_replaced_by_turned_neurons_or_few_linear_units(always_on):
    rng = np.random.default_rng(1)
    wider = with_identity(layers(rng).with_layer(rng.normal(size=(4, 6)), rng.normal(size=4)))
    above = rng.normal(size=(2, 4))
    carried = -np.outer(above[:, 1], wider.weights[-1][1])  # neuron 1 is turned the wrong way
    if always_on:
        carried = carried + np.outer(rng.normal(size=2), rng.normal(size=6))
    output = OutputFit(np.concatenate([above, carried], axis=1), rng.normal(size=2), np.zeros(0, int))
    assert has_identity(wider)
    fewer, fitted, _ = with_fewest_units(wider, output, np.zeros((4, 6), bool))
    X = rng.normal(size=(300, 5))
    before, after = (a(X) @ o.weight.T + o.bias for a, o in ((wider, output), (fewer, fitted)))
    assert np.abs(before - after).max() < 1e-10
    assert fewer.width == 4 + 2 * always_on


def test_a_neuron_that_is_turned_shows_the_entries_that_no_kink_has_shown():
    rng = np.random.default_rng(4)
    truth = rng.normal(size=(4, 4)), rng.normal(size=4)
    seen, unseen = truth[0].copy(), np.zeros((4, 4), bool)
    seen[1, 2], unseen[1, 2] = 0, True
    first = KnownLayers(5).with_layer(rng.normal(size=(4, 5)), rng.normal(size=4))
    wider = with_identity(first.with_layer(seen, truth[1]))
    above = rng.normal(size=(1, 4))
    carried = -np.outer(above[:, 1], truth[0][1])  # neuron 1 is turned the wrong way; one output, 3 inputs seen by all
    output = OutputFit(np.concatenate([above, carried], axis=1), rng.normal(size=1), np.zeros(0, int))
    fewer, _, left = with_fewest_units(wider, output, unseen)
    assert fewer.width == 4
    assert not left.any()
    assert np.allclose(fewer.weights[-1][1], -truth[0][1])


def test_polishing_finds_weights_that_values_determine_and_is_never_worse():
    rng = np.random.default_rng(2)
    truth = [(rng.normal(size=(o, i)) / i**0.5, 0.3 * rng.normal(size=o)) for i, o in ((6, 5), (5, 4), (4, 1))]
    X = rng.normal(size=(600, 6))
    rough = [(weight + 1e-5 * rng.normal(size=weight.shape), bias) for weight, bias in truth]
    refined = polish(rough, X, outputs(truth, X))
    fresh = rng.normal(size=(2000, 6))
    assert np.abs(outputs(refined, fresh) - outputs(truth, fresh)).max() < 1e-10
    other = rng.normal(size=(600, 1))  # no network explains these
    error = [float(((outputs(stack, X) - other) ** 2).sum()) for stack in (rough, polish(rough, X, other))]
    assert error[1] <= error[0]


def test_what_linear_units_pass_on_is_compared_far_out():
    rng = np.random.default_rng(3)
    known = layers(rng).with_layer(rng.normal(size=(4, 6)), rng.normal(size=4), np.array([False, False, True, False]))
    output = OutputFit(rng.normal(size=(1, 4)), np.zeros(1), np.zeros(0, int))
    copy = DeepCopy.of(Inputs(5), known, output, rng.normal(size=(500, 5)))
    rows = _linear_extremes(copy, 1, 120, 30.0, rng)
    size = np.linalg.norm(rows, axis=1)
    assert (size[240:].reshape(-1, 6).max(axis=1) > 29 * size[:120].reshape(-1, 6).min(axis=1)).all()
    assert not len(_linear_extremes(copy, 0, 120, 30.0, rng))


def test_a_neuron_found_twice_is_left_out_and_a_rare_one_is_not():
    rng = np.random.default_rng(5)
    known = layers(rng).with_layer(rng.normal(size=(4, 6)), rng.normal(size=4))
    rare = known.first(1).with_layer(known.weights[1], np.where(np.arange(4) == 2, -1e3, known.biases[1]))
    output = OutputFit(np.array([[1.0, 0.0, 0.0, 2.0]]), np.zeros(1), np.zeros(0, int))
    unseen = np.zeros((4, 6), bool)
    unseen[1, 3] = unseen[2, 1] = True
    search = SimpleNamespace(
        unseen={1: unseen}, survey=SimpleNamespace(data=SimpleNamespace(Y=rng.normal(size=(900, 5))))
    )
    fewer, fitted = _without_idle(search, rare, output)
    assert fewer.width == 3
    assert (fitted.weight == [[1.0, 0.0, 2.0]]).all()
    assert search.unseen[1].sum() == 1
    assert search.unseen[1][1, 1]

"""Weights that no kink has shown: rows where they act are found, and values determine them or are said not to."""

from __future__ import annotations

import numpy as np
import pytest

from divulge.extraction.layers.both_on import rows_with_both_on
from divulge.extraction.layers.deep_copy import DeepCopy
from divulge.extraction.layers.determined_entries import determined, mark_determined
from divulge.extraction.layers.known_layers import KnownLayers
from divulge.extraction.layers.output_fit import OutputFit
from divulge.extraction.layers.polish import outputs
from divulge.extraction.layers.query_space import QuerySpace


class Inputs(QuerySpace):
    def maps(self, Y):
        raise NotImplementedError


def rare(threshold):
    """Unit 0 is on above ``threshold``; the neuron above it is on below it, by 1 less what unit 1 takes away."""
    first = np.array([[1.0, 0, 0], [1.0, 0, 0], [0, 1, 0]]), np.array([-threshold, 0, 0])
    return KnownLayers(3).with_layer(*first).with_layer(np.array([[0.0, -1.0, 0.5]]), np.array([1.0]))


@pytest.mark.parametrize("threshold", [0.999, 3.0])
def test_rows_with_both_on_are_found_however_rare(threshold):
    layers, rng = rare(threshold), np.random.default_rng(0)
    samples = rng.normal(size=(200, 3))
    Y = rows_with_both_on(Inputs(3), layers, 1, 0, 0, samples, rng)
    assert len(Y) > 0
    hidden = layers.first(1)(Y)
    assert (hidden[:, 0] > 0).all()
    assert (hidden @ layers.weights[1][0] + layers.biases[1][0] > 0).all()


def test_where_both_are_never_on_there_are_no_rows():
    """Unit 0 is on above 2, and the neuron below 1."""
    first = np.array([[1.0, 0, 0], [1.0, 0, 0]]), np.array([-2.0, 0])
    layers = KnownLayers(3).with_layer(*first).with_layer(np.array([[0.0, -1.0]]), np.array([1.0]))
    rng = np.random.default_rng(0)
    assert len(rows_with_both_on(Inputs(3), layers, 1, 0, 0, rng.normal(size=(200, 3)), rng)) == 0


@pytest.fixture
def network():
    rng = np.random.default_rng(1)
    widths = [4, 6, 5, 1]
    return [(rng.normal(size=(b, a)) / np.sqrt(a), 0.3 * rng.normal(size=b)) for a, b in zip(widths, widths[1:])]  # noqa: B905, RUF007


def test_entries_that_values_depend_on_are_determined_and_others_are_not(network):
    X = np.random.default_rng(2).normal(size=(2000, 4))
    entries = [(1, neuron, unit) for neuron in range(5) for unit in range(6)]
    told = determined(network, X, np.full(len(X), 1e-14), np.ones(len(X)), entries)
    hidden = np.maximum(X @ network[0][0].T + network[0][1], 0)
    on = hidden @ network[1][0].T + network[1][1] > 0
    act = np.array([((hidden[:, unit] > 0) & on[:, neuron]).sum() for _, neuron, unit in entries])
    assert told[act > 50].all()
    assert not told[act == 0].any()
    assert told.sum() > 20


def test_an_entry_is_off_by_no_more_than_is_stated(network):
    """Answers that the copy misses by 1e-3 do not determine its entries to 1e-5; without a row nothing does."""
    X = np.random.default_rng(2).normal(size=(500, 4))
    entries = [(1, 0, unit) for unit in range(6)]
    wrong = [(weight.copy(), bias) for weight, bias in network]
    wrong[1][0][0, 2] += 1e-2
    off = np.abs(outputs(wrong, X) - outputs(network, X)).max(axis=1)
    assert not determined(wrong, X, off, np.ones(len(X)), entries)[2]
    assert not determined(network, X[:0], off[:0], np.ones(0), entries).any()
    dead = [(network[0][0], network[0][1] - 100), *network[1:]]
    assert not determined(dead, X, off, np.ones(len(X)), entries).any()


def test_a_linear_unit_may_carry_what_is_wrong_with_an_entry():
    """A neuron that is on wherever the unit is: only the sum of its entry and the linear unit's shows."""
    rng = np.random.default_rng(3)
    first, above = (rng.normal(size=(6, 4)) / 2, 0.3 * rng.normal(size=6)), rng.normal(size=(2, 6)) / 3
    layers = KnownLayers(4).with_layer(*first)
    for linear in (False, True):
        whole = layers.with_layer(above, np.array([50.0, 0.0]), np.array([False, linear]))
        output = OutputFit(np.ones((1, 2)), np.zeros(1), np.zeros(0, int))
        X = rng.normal(size=(500, 4))
        copy = DeepCopy.of(Inputs(4), whole, output, X)
        unseen = {1: np.zeros((2, 6), bool)}
        unseen[1][0, 2] = True
        mark_determined(unseen, copy, X, np.full(len(X), 1e-14), np.ones(len(X)))
        assert unseen[1][0, 2] == linear

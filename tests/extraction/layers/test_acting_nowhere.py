"""Weights that were never seen: those that act nowhere are told from those that act at rare rows."""

import numpy as np
import pytest

from divulge.extraction.layers.acting_nowhere import acting_nowhere
from divulge.extraction.layers.deep_copy import DeepCopy
from divulge.extraction.layers.known_layers import KnownLayers
from divulge.extraction.layers.output_fit import OutputFit
from divulge.extraction.layers.query_space import QuerySpace


class Inputs(QuerySpace):
    def maps(self, Y):
        raise NotImplementedError


def network(threshold, entry):
    """Unit 0 is on where x0 is above ``threshold``, and the neuron, without its entry there, where x0 is below 1."""
    first = np.array([[1.0, 0, 0], [1.0, 0, 0], [0, 1, 0]]), np.array([-threshold, 0, 0])
    layers = KnownLayers(3).with_layer(*first).with_layer(np.array([[entry, -1.0, 0.0]]), np.array([1.0]))
    output = OutputFit(np.ones((1, 1)), np.zeros(1), np.zeros(0, int))
    return DeepCopy.of(Inputs(3), layers, output, np.zeros((1, 3)))


def attacked(target, copy):
    """How many entries were shown to act nowhere, what stays unseen, and the rows asked for it."""
    asked = []

    def agree(Y):
        asked.append(Y)
        return np.isclose(target(Y), copy(Y), rtol=0, atol=1e-9).all(axis=1)

    unseen = {1: np.array([[True, False, False]])}
    rng = np.random.default_rng(0)
    Y = np.clip(rng.normal(size=(500, 3)), None, 2.5)
    assert np.allclose(target(Y), copy(Y))
    return acting_nowhere(unseen, copy, Y, agree, rng), unseen[1], np.concatenate([*asked, np.zeros((0, 3))])


def test_an_entry_that_acts_nowhere_needs_no_value():
    """Above 2 the neuron gets at most -1, and an entry of 0.3 brings it no nearer to zero than -0.85 x0 + 0.4."""
    count, unseen, _ = attacked(network(2.0, 0.3), network(2.0, 0.0))
    assert count == 1
    assert not unseen.any()


@pytest.mark.parametrize(("threshold", "entry"), [(2.0, 1.5), (2.0, 1.05), (0.5, 0.3)])
def test_an_entry_that_acts_somewhere_stays_unseen(threshold, entry):
    """An entry of 1.05 acts from x0 = 22 on, ten times as far out as the samples go."""
    target, copy = network(threshold, entry), network(threshold, entry if threshold < 1 else 0.0)
    count, unseen, asked = attacked(target, copy)
    assert count == 0
    assert unseen[0, 0]
    if threshold > 1:
        assert not np.allclose(target(asked), copy(asked))  # the rows that were asked show it


def test_a_unit_that_is_never_on_is_told():
    count, unseen, asked = attacked(network(1e4, 5.0), network(1e4, 0.0))
    assert count == 1
    assert not unseen.any()
    assert not len(asked)

"""Entries of several neurons at one unit: told apart where one is on without the other, or right in their sum."""

from __future__ import annotations

import numpy as np
import pytest

from divulge.extraction.layers.both_on import rows_with_one_on
from divulge.extraction.layers.deep_copy import DeepCopy
from divulge.extraction.layers.determined_entries import determined, mark_determined
from divulge.extraction.layers.known_layers import KnownLayers
from divulge.extraction.layers.open_entries import OpenEntries
from divulge.extraction.layers.output_fit import OutputFit
from divulge.extraction.layers.query_space import QuerySpace

OUTPUT = np.array([[2.0, -1.0]])


class Inputs(QuerySpace):
    def maps(self, Y):
        raise NotImplementedError


def network(entries, slope, linear=False):
    """Unit 0 is on where x0 is above 2. Without their entries there the neurons get 1 + slope x0, and 1 + x0."""
    layers = KnownLayers(3).with_layer(np.array([[1.0, 0, 0], [1.0, 0, 0], [0, 1, 0]]), np.array([-2.0, 0, 0]))
    above = np.array([[entries[0], slope, 0.2], [entries[1], 1.0, 0.3]])
    layers = layers.with_layer(above, np.array([1.0, 1.0]), np.array([False, linear]))
    return DeepCopy.of(Inputs(3), layers, OutputFit(OUTPUT, np.zeros(1), np.zeros(0, int)), np.zeros((1, 3)))


def settled(target, copy):
    """How many entries need not be known, which stay open, and the rows where the copy was found wrong."""
    rng = np.random.default_rng(0)
    asked, unseen = [rng.normal(size=(500, 3)) + np.array([1.0, 0, 0])], {1: np.zeros((2, 3), bool)}
    unseen[1][:, 0] = True
    wrong = []

    def agree(Y):
        asked.append(Y)
        right = np.isclose(target(Y), copy(Y), rtol=0, atol=1e-9).all(axis=1)
        wrong.append(Y[~right])
        return right

    def undetermined(summed):
        X = np.concatenate(asked)
        mark_determined(unseen, copy, X, np.full(len(X), 1e-14), np.ones(len(X)), summed)
        return int(unseen[1].sum())

    questions = OpenEntries(
        unseen=unseen, samples=asked[0], copy=lambda: copy, asked=lambda: np.concatenate(asked), agree=agree,
        undetermined=undetermined, refine=lambda: False, rng=rng,
    )  # fmt: skip
    return questions.settle(), unseen[1], np.concatenate(wrong)


def test_entries_that_act_in_one_sum_alone_need_not_be_known():
    """Both neurons are on wherever the unit is: 2 * 0.5 - 1 * 0.4 is 2 * 0.3 - 1 * 0."""
    target, copy = network((0.5, 0.4), 1.0), network((0.3, 0.0), 1.0)
    count, unseen, wrong = settled(target, copy)
    assert count == 2
    assert not unseen.any()
    assert not len(wrong)
    far = 20 * np.random.default_rng(1).normal(size=(20_000, 3))
    assert np.allclose(target(far), copy(far))


def test_a_sum_that_is_wrong_is_found():
    _, unseen, wrong = settled(network((0.5, 0.4), 1.0), network((0.3, 0.1), 1.0))
    assert unseen.any()
    assert len(wrong) > 0


def test_entries_are_told_apart_where_one_neuron_is_off():
    """The first neuron is off from x0 = 20 on, where no sample lies; its entry is known then, and so is the other."""
    right = network((0.0, 0.4), -0.05)
    count, unseen, wrong = settled(right, right)
    assert count == 0
    assert not unseen.any()
    assert not len(wrong)
    _, unseen, wrong = settled(right, network((-0.01, 0.38), -0.05))
    assert unseen.any()
    assert len(wrong) > 0


@pytest.mark.parametrize("linear", [False, True])
def test_rows_with_one_neuron_on_and_another_off(linear):
    copy, rng = network((0.0, 0.4), -0.05, linear), np.random.default_rng(0)
    unseen = np.array([[True, False, False], [not linear, False, False]])
    Y = rows_with_one_on(copy.space, copy.layers, 1, unseen, rng.normal(size=(200, 3)), rng)
    assert len(Y) > 0
    hidden = copy.layers.first(1)(Y)
    assert (hidden[:, 0] > 0).all()
    on = hidden @ copy.layers.weights[1].T + copy.layers.biases[1] > 0
    assert not on[:, 0].any()
    assert on[:, 1].all()


def test_an_entry_is_determined_though_others_beside_it_are_not():
    """Three entries of one unit: two neurons are always on together, and the third is on at other rows."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 2))
    first = np.array([[1.0, 0.0], [0.0, 1.0]]), np.zeros(2)
    stack = [first, (np.array([[0.1, 0.0], [0.2, 0.0], [0.3, -1.0]]), np.array([1.0, 1.0, 0.0])),
             (np.array([[1.0, 1.0, 1e-3]]), np.zeros(1))]  # fmt: skip
    told = determined(stack, X, np.full(len(X), 1e-15), np.ones(len(X)), [(1, n, 0) for n in range(3)])
    assert told.tolist() == [False, False, True]

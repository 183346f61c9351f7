"""Kinks that are followed from cell to cell, and derivatives by activations that neighbouring cells tell together."""

from __future__ import annotations

import numpy as np

from divulge.extraction.layers.activation_slopes import asked_slopes
from divulge.extraction.layers.facets import Facet, facets
from divulge.extraction.layers.followed_kinks import _ends, follow
from divulge.extraction.layers.known_layers import KnownLayers
from divulge.extraction.layers.orientation import orientation
from divulge.extraction.layers.partial_rows import PartialRows
from divulge.extraction.layers.peeling import next_layer
from divulge.extraction.layers.query_points import segments
from divulge.extraction.layers.query_space import QuerySpace
from divulge.extraction.layers.survey import Survey

INPUTS, WIDTH = 10, 8


class Network(QuerySpace):
    """A space of inputs with the gradients of a network of four hidden layers."""

    def __init__(self, seed: int) -> None:
        super().__init__(INPUTS)
        rng = np.random.default_rng(seed)
        layers = KnownLayers(INPUTS)
        for _ in range(4):
            layers = layers.with_layer(
                rng.normal(size=(WIDTH, layers.width)) / layers.width**0.5, 0.3 * rng.normal(size=WIDTH)
            )
        self.layers, self.above = layers, rng.normal(size=(1, WIDTH))

    def maps(self, Y):
        activation, _, jacobian = self.layers.maps(Y)
        return activation @ self.above.T, np.einsum("kh,nhd->nkd", self.above, jacobian)


class QueryCells(QuerySpace):
    """Activations of a first layer."""

    def __init__(self, width: int) -> None:
        super().__init__(width, (np.eye(width), np.zeros(width)))

    def maps(self, Y):
        raise NotImplementedError


def searched(space: Network, known: int, count: int = 12) -> tuple[Survey, KnownLayers, np.ndarray]:
    survey, layers = Survey(space), space.layers.first(known)
    survey.add(*segments(space, layers, count, np.random.default_rng(1)), [0.0, 1.0])
    data = survey.data
    return survey, layers, data.kinked & ~layers.cross(data.Y[data.left], data.Y[data.right])


def owners(space: Network, survey: Survey, known: int) -> tuple[np.ndarray, np.ndarray]:
    """The neuron of the next layer that is nearest to zero at each kink, and how near."""
    row, bias, _ = space.layers.stack[known]
    before = np.abs(space.layers.first(known)(survey.data.kink) @ row.T + bias)
    return before.argmin(axis=1), before.min(axis=1)


def test_a_single_kink_tells_more_of_a_row_than_the_units_that_are_on_there():
    space = Network(0)
    survey, layers, open_ = searched(space, 2)
    neuron, off = owners(space, survey, 2)
    own = np.flatnonzero(open_ & (off < 1e-9))[:20]
    assert len(own) > 5
    before = PartialRows(survey, layers, open_)
    told_before = (before.on * before.full[:, None]).sum(axis=1)[np.isin(before.index, own)]
    follow(survey, layers, own.tolist(), np.random.default_rng(2))
    told = []
    for interval in own.tolist():
        found = survey.followed[interval].row(layers)
        if found is None:
            told.append(0)
            continue
        row, bias, known = found
        truth = np.where(known, space.layers.weights[2][neuron[interval]], 0.0)
        size = np.linalg.norm(truth) * np.sign(truth @ row)
        assert np.abs(row - truth / size).max() < 1e-9
        assert abs(bias - space.layers.biases[2][neuron[interval]] / size) < 1e-9
        told.append(int(known.sum()))
    assert np.mean(told) > np.mean(told_before) + 1.5


def test_followed_kinks_are_not_taken_for_neurons_of_a_lower_layer():
    space = Network(0)
    survey, layers, open_ = searched(space, 1, 20)
    _, off = owners(space, survey, 1)
    deeper = np.flatnonzero(open_ & (off > 1e-3))[:20]
    follow(survey, layers, deeper.tolist(), np.random.default_rng(2))
    found, _ = next_layer(survey, layers, open_)
    for candidate in (candidate for candidate in found if candidate.count >= 8 and not candidate.doubtful):
        truth = np.where(candidate.known, space.layers.weights[1], 0.0)
        cosine = np.abs(truth @ candidate.row) / np.linalg.norm(truth, axis=1)
        assert cosine.max() > 1 - 1e-6


def test_facets_lie_on_the_hyperplane_of_one_unit_and_no_other_is_crossed_on_the_way():
    space, rng = Network(3), np.random.default_rng(0)
    layers, y = space.layers.first(2), rng.normal(size=INPUTS)
    found = facets(space, layers, y, rng)
    assert len(found) > 4
    for facet in found:
        near, far = facet.point - 1e-6 * facet.room * facet.along, facet.point + 0.5 * facet.room * facet.along
        assert not layers.cross(y[None], near[None])[0]
        change = layers.maps(far[None])[2][0] - layers.maps(y[None])[2][0]
        assert np.linalg.norm(np.abs(change) - np.abs(np.outer(facet.effect, facet.normal))) < 1e-12


def test_there_is_no_room_beside_an_activation_that_rounding_left_below_zero():
    space, axis = QueryCells(3), np.eye(3)
    facet = Facet(np.array([1.0, -1e-17, 1.0]), axis[2], 0.1, axis[0], np.ones(3))
    assert _ends(space, KnownLayers(3), axis[0] + axis[1], facet) is None


def test_derivatives_from_neighbouring_cells_agree_and_tell_the_sides():
    space = Network(6)
    survey, layers, _ = searched(space, 2)
    weight, bias, _ = space.layers.stack[2]
    rng = np.random.default_rng(4)
    slopes = asked_slopes(survey, layers, weight, bias, 12, rng)
    alone = layers.units(survey.data.Y[[part.sample for part in slopes]])[2]
    more = np.array([len(part.seen) for part in slopes]) - alone
    assert (more >= 0).all()
    assert (more > 0).sum() >= 4
    for part in slopes:
        y = survey.data.Y[part.sample]
        above, on = space.above, space.layers.masks(y[None])[1]
        for depth in (3, 2):
            above = (above * on[depth]) @ space.layers.weights[depth]
        assert np.abs(part.seen @ above[0] - part.told[0]).max() < 1e-9
    turn = np.where(np.arange(WIDTH) % 2, 1.0, -1.0)
    sign = orientation(survey, layers, weight * turn[:, None], bias * turn, rng, None, slopes)
    assert (sign[sign != 0] == turn[sign != 0]).all()
    assert (sign != 0).sum() >= WIDTH - 1

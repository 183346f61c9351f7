"""Sides of neurons, and a neuron that is always on, from gradients inside single cells."""

from __future__ import annotations

import numpy as np
import pytest

from divulge.extraction.layers.cell_spans import sides_from_cells
from divulge.extraction.layers.known_layers import KnownLayers
from divulge.extraction.layers.query_space import QuerySpace
from divulge.extraction.layers.survey import Survey


class Network(QuerySpace):
    """A space of inputs with the gradients of a network."""

    def __init__(self, layers: KnownLayers, above: np.ndarray) -> None:
        super().__init__(layers.inputs)
        self.layers, self.above = layers, above

    def maps(self, Y):
        activation, _, jacobian = self.layers.maps(Y)
        return activation @ self.above.T, np.einsum("kh,nhd->nkd", self.above, jacobian)


@pytest.mark.parametrize("always_on", [False, True])
def test_sides_and_a_neuron_that_is_always_on_are_found(always_on):
    rng = np.random.default_rng(3)
    below = KnownLayers(10).with_layer(rng.normal(size=(12, 10)), 0.3 * rng.normal(size=12))
    weight, bias = rng.normal(size=(6, 12)), rng.normal(size=6)
    whole = below.with_layer(weight, bias)
    hidden = np.abs(rng.normal(size=12))  # positive on all activations
    if always_on:
        whole = below.with_layer(np.r_[weight, hidden[None]], np.append(bias, 1.0))
    deeper = whole.with_layer(rng.normal(size=(40, whole.width)), rng.normal(size=40))
    survey = Survey(Network(deeper, rng.normal(size=(1, 40))))
    survey.add_points(rng.normal(size=(400, 10)))
    turn = np.array([1.0, -1, 1, -1, -1, 1])
    found = sides_from_cells(survey, below, weight * turn[:, None], bias * turn, rng)
    assert found is not None
    assert (found.sign == turn).all()
    assert len(found.rows) == always_on
    if always_on:
        cosine = abs(found.rows[0] @ hidden) / np.linalg.norm(found.rows[0]) / np.linalg.norm(hidden)
        assert cosine > 1 - 1e-9

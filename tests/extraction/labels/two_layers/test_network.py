"""A copy with two hidden layers: its decisions, its orientation, and Gauss-Newton."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from divulge.extraction.labels.two_layers.network import TwoLayerNetwork, polish
from divulge.oracles.region import Region


@pytest.fixture
def network() -> TwoLayerNetwork:
    rng = np.random.default_rng(0)
    network = TwoLayerNetwork(
        rng.standard_normal((5, 7)), rng.standard_normal(5), rng.standard_normal((3, 5)), rng.standard_normal(3),
        rng.standard_normal(3), np.zeros(5), 0.0,
    )  # fmt: skip
    return replace(network, c=-float(np.median(network.value(rng.standard_normal((500, 7))))))


def boundary(network: TwoLayerNetwork, count: int) -> np.ndarray:
    """Points of the network's boundary, on random segments."""
    rng = np.random.default_rng(1)
    X, Y = rng.standard_normal((2, 40 * count, 7)) * 2
    chosen = np.nonzero(network.labels(X) != network.labels(Y))[0][:count]
    X, Y, low, high = X[chosen], Y[chosen], np.zeros(len(chosen)), np.ones(len(chosen))
    for _ in range(60):
        middle = (low + high) / 2
        same = network.labels(X + middle[:, None] * (Y - X)) == network.labels(X)
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    return X + low[:, None] * (Y - X)


def test_the_gradient_is_that_of_the_difference(network):
    x, pairs = np.random.default_rng(2).standard_normal((20, 7)), np.array([[0, 1], [1, 0]] * 10)
    value, gradient = network.difference(x, pairs)
    for i in range(7):
        step = 1e-7 * np.eye(7)[i]
        np.testing.assert_allclose((network.difference(x + step, pairs)[0] - value) / 1e-7, gradient[:, i], atol=1e-5)


def test_neurons_that_were_found_the_wrong_way_round_are_turned(network):
    turned = replace(
        network, W2=network.W2 * [[-1], [1], [-1]], b2=network.b2 * [-1, 1, -1],
        s=(network.v * [1, 0, 1]) @ network.W2, c=network.c + float((network.v * [1, 0, 1]) @ network.b2),
    )  # fmt: skip
    x = np.random.default_rng(3).standard_normal((50, 7))
    np.testing.assert_allclose(turned.value(x), network.value(x), atol=1e-12)
    right = turned.oriented()
    assert not right.s.any()
    np.testing.assert_allclose(right.W2, network.W2)
    np.testing.assert_allclose(right.value(x), network.value(x), atol=1e-12)


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("linear", [False, True])
def test_the_module_decides_alike_in_the_targets_units(network, outputs, linear):
    network = replace(network, s=np.ones(5)) if linear else network
    region = Region(torch.arange(7).double(), torch.full((7,), 3.0).double())
    x = np.random.default_rng(4).standard_normal((200, 7))
    out = network.model(region, outputs)(region.to_inputs(torch.from_numpy(x)))
    label = (out[:, 0] > 0).long() if outputs == 1 else out.argmax(dim=1)
    assert (label.numpy() == network.labels(x)).all()


def test_polish_takes_back_a_small_error(network):
    points = boundary(network, 400)
    rng = np.random.default_rng(5)
    near = replace(
        network, W1=network.W1 + 1e-5 * rng.standard_normal((5, 7)), W2=network.W2 + 1e-5 * rng.standard_normal((3, 5))
    )
    assert np.abs(near.value(points)).max() > 1e-6
    assert np.abs(polish(near, points, 7**0.5, 5).value(points)).max() < 1e-11

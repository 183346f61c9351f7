"""A copy with several hidden layers: its decisions, its derivatives, and Gauss-Newton."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from divulge.extraction.labels.deeper.network import DeepNetwork, polish
from divulge.extraction.labels.network import LabelNetwork
from divulge.oracles.region import Region

from ....boundary_crossings import crossings


@pytest.fixture(params=[(2, 1), (3, 1), (2, 2), (3, 3)])
def network(request) -> DeepNetwork:
    """A random network of so many classes, with so many layers of five neurons below the highest."""
    rng, (classes, depth) = np.random.default_rng(0), request.param
    k = classes - 1
    upper = LabelNetwork(
        rng.standard_normal((3, 5)), rng.standard_normal(3), rng.standard_normal((k, 3)), np.zeros((k, 5)), np.zeros(k)
    )
    widths = [7] + depth * [5]
    lower = tuple((rng.standard_normal((5, d)), rng.standard_normal(5)) for d in widths[:-1])
    network = DeepNetwork(lower, upper)
    logits = upper.logits(network.outputs(rng.standard_normal((500, 7)))[-1])
    return replace(network, upper=replace(upper, c=-logits[:, 1:].mean(axis=0)))


def boundary(network: DeepNetwork, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Points of the network's boundary on random segments, and the labels on both sides."""
    rng = np.random.default_rng(1)
    X, Y = rng.standard_normal((2, 40 * count, 7)) * 2
    return crossings(network, X, Y, count)


def test_the_gradient_is_that_of_the_difference(network):
    x, pairs = np.random.default_rng(2).standard_normal((20, 7)), np.array([[0, 1], [1, 0]] * 10)
    value, gradient = network.difference(x, pairs)
    for i in range(7):
        step = 1e-7 * np.eye(7)[i]
        np.testing.assert_allclose((network.difference(x + step, pairs)[0] - value) / 1e-7, gradient[:, i], atol=1e-5)


@pytest.mark.parametrize("linear", [False, True])
def test_the_module_decides_alike_in_the_targets_units(network, linear):
    if linear:
        network = replace(network, upper=replace(network.upper, P=np.ones((network.classes - 1, 5))))
    region = Region(torch.arange(7).double(), torch.full((7,), 3.0).double())
    x = np.random.default_rng(4).standard_normal((200, 7))
    for outputs in {network.classes, 1 if network.classes == 2 else network.classes}:
        out = network.model(region, outputs)(region.to_inputs(torch.from_numpy(x)))
        label = (out[:, 0] > 0).long() if outputs == 1 else out.argmax(dim=1)
        assert (label.numpy() == network.labels(x)).all()


def test_polish_takes_back_a_small_error(network):
    points, pairs = boundary(network, 400)
    rng = np.random.default_rng(5)
    upper = replace(network.upper, W=network.upper.W + 1e-5 * rng.standard_normal((3, 5)))
    lower = tuple((W + 1e-5 * rng.standard_normal(W.shape), b) for W, b in network.lower)
    near = replace(network, lower=lower, upper=upper)
    assert near.distance(points, pairs, 7**0.5).max() > 1e-6
    assert polish(near, points, pairs, 7**0.5, 5).distance(points, pairs, 7**0.5).max() < 1e-11

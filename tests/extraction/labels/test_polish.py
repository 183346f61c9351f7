"""Gauss-Newton on a copy: the step without the matrix is that with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from divulge.extraction.labels import polish as polishing
from divulge.extraction.labels.network import LabelNetwork


def network_and_points() -> tuple[LabelNetwork, np.ndarray, np.ndarray]:
    """A random network with three classes, and points of its boundary."""
    rng = np.random.default_rng(0)
    network = LabelNetwork(
        rng.standard_normal((4, 6)), rng.standard_normal(4), rng.standard_normal((2, 4)), np.zeros((2, 6)),
        rng.standard_normal(2),
    )  # fmt: skip
    X, Y = 2 * rng.standard_normal((2, 4000, 6))
    chosen = np.nonzero(network.labels(X) != network.labels(Y))[0][:300]
    X, Y, low, high = X[chosen], Y[chosen], np.zeros(len(chosen)), np.ones(len(chosen))
    for _ in range(60):
        middle = (low + high) / 2
        same = network.labels(X + middle[:, None] * (Y - X)) == network.labels(X)
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    one, two = (X + t[:, None] * (Y - X) for t in (low, high))
    return network, one, np.stack([network.labels(one), network.labels(two)], axis=1)


def test_both_steps_take_back_a_small_error(monkeypatch):
    network, points, pairs = network_and_points()
    rng = np.random.default_rng(1)
    near = replace(network, W=network.W + 1e-5 * rng.standard_normal((4, 6)))
    before = float(near.distance(points, pairs, 6**0.5).max())
    for largest in (polishing.LARGEST_DIRECT, 0.0):
        monkeypatch.setattr(polishing, "LARGEST_DIRECT", largest)
        after = polishing.polish(near, points, pairs, 6**0.5, 4)
        assert float(after.distance(points, pairs, 6**0.5).max()) < 1e-6 * before


def test_a_copy_without_output_weights_is_left_as_it_is():
    network, points, pairs = network_and_points()
    flat = replace(network, V=0 * network.V)
    with np.errstate(all="raise"):
        after = polishing.polish(flat, points, pairs, 6**0.5, 4)
    assert np.array_equal(after.V, flat.V)


def test_normal_equations_that_rounding_makes_indefinite_are_damped_more():
    normal = np.diag([1.0, -1e-12])
    factor, lower = polishing._factor(normal)
    assert lower
    assert np.allclose(np.tril(factor) @ np.tril(factor).T, np.diag([1.0, 0.0]), atol=1e-10)

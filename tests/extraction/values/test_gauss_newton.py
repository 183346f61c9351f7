"""Gauss-Newton on a copy: its derivatives, and where it leads."""

from __future__ import annotations

import numpy as np
import pytest

from divulge.extraction.relu_network import NetworkEstimate
from divulge.extraction.values.gauss_newton import jacobian, parameters, polish, shifted


def estimate_of(inputs: int, width: int, outputs: int, seed: int) -> NetworkEstimate:
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(width, inputs))
    A /= np.linalg.norm(A, axis=1, keepdims=True)
    return NetworkEstimate.of(
        A,
        rng.normal(size=width),
        rng.normal(size=(outputs, width)),
        rng.normal(size=(outputs, inputs)),
        rng.normal(size=outputs),
    )


@pytest.mark.parametrize("outputs", [1, 3])
def test_the_jacobian_is_the_derivative(outputs):
    estimate = estimate_of(4, 5, outputs, 0)
    rows = np.random.default_rng(1).normal(size=(20, 4))
    J = jacobian(estimate, rows)
    assert J.shape == (20 * outputs, parameters(estimate))
    change = 1e-7 * np.random.default_rng(2).normal(size=parameters(estimate))
    moved = (shifted(estimate, change)(rows) - shifted(estimate, -change)(rows)).reshape(-1) / 2
    np.testing.assert_allclose(moved, J @ change, atol=1e-12)


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_rough_copy_is_polished_to_the_last_digits(outputs):
    truth = estimate_of(6, 5, outputs, 3)
    rng = np.random.default_rng(4)
    rough = shifted(truth, 1e-3 * rng.normal(size=parameters(truth)))
    rows = rng.normal(size=(400, 6))
    done = polish(rough, rows, truth(rows))
    assert done.after < 1e-10 < done.before
    fresh = rng.normal(size=(200, 6))
    np.testing.assert_allclose(done.estimate(fresh), truth(fresh), atol=1e-8)


def test_what_cannot_be_improved_is_left_alone():
    truth = estimate_of(6, 5, 1, 3)
    rows = np.random.default_rng(4).normal(size=(200, 6))
    done = polish(truth, rows, truth(rows))
    assert done.after <= done.before < 1e-12

"""The outer weights of a network whose hyperplanes are known: fitted by least squares, and ranked."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from divulge.extraction.relu_network import NetworkEstimate

Array = NDArray[Any]


def _features(estimate: NetworkEstimate, rows: Array) -> Array:
    A, b, *_ = estimate.arrays()
    return np.concatenate([np.maximum(rows @ A.T + b, 0.0), rows, np.ones((len(rows), 1))], axis=1)


def least_squares(estimate: NetworkEstimate, rows: Array, values: Array) -> NetworkEstimate:
    """The same hyperplanes with outer weights and affine part fitted to values."""
    h, d = estimate.width, estimate.inputs
    A, b, W, P, q = estimate.arrays()
    correction = np.linalg.lstsq(_features(estimate, rows), values - estimate(rows), rcond=1e-11)[0]
    return NetworkEstimate.of(A, b, W + correction[:h].T, P + correction[h : h + d].T, q + correction[h + d])


def bend_strength(estimate: NetworkEstimate, rows: Array) -> Array:
    """How much each neuron bends the function on these rows: its spread beyond an affine function."""
    A, b, W, *_ = estimate.arrays()
    z = rows @ A.T + b
    bend = np.abs(z) - np.abs(z).mean(axis=0)
    return np.asarray(bend.std(axis=0) * np.linalg.norm(W, axis=0))

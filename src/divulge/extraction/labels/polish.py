"""All parameters at once, from all boundary points that were asked: Gauss-Newton, without further labels.

At a boundary point the two logits of its pair are equal, so their difference f, divided by the length of its gradient,
is the point's distance to the model's boundary. Further rows hold what labels cannot show: the length of each neuron's
weights, and the scale of the output layer.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.linalg

from divulge.extraction.labels.asking import Array
from divulge.extraction.labels.network import LabelNetwork
from divulge.extraction.labels.output_layer import equations

DAMPING = 1e-13
"""Added to the diagonal of the normal equations, whose columns have unit length."""


def polish(network: LabelNetwork, points: Array, pairs: Array, spread: float, rounds: int) -> LabelNetwork:
    """The network with the least distances to the points; the best of all rounds."""
    if not len(network.W):
        return network
    best, least, last = network, np.inf, np.inf
    length = np.linalg.norm(network.W, axis=1)
    network = replace(network, W=network.W / length[:, None], b=network.b / length, V=network.V * length)
    for step in range(rounds + 1):
        value, gradient = network.difference(points, pairs)
        norm = np.maximum(np.linalg.norm(gradient, axis=1), 1e-300)
        distance = value / norm
        rms = float(np.sqrt(np.mean(distance**2)))
        if rms < least:
            best, least = network, rms
        if step == rounds or (step > 1 and rms > 0.5 * last):
            break
        last = rms
        network = _moved(network, points, pairs, spread, distance, norm)
    return best


def _moved(
    network: LabelNetwork, points: Array, pairs: Array, spread: float, distance: Array, norm: Array
) -> LabelNetwork:
    """One Gauss-Newton step."""
    h, d = network.W.shape
    affine = bool(np.abs(network.P).max() > 0)
    J = np.concatenate([_jacobian(network, points, pairs, spread, norm, affine), _gauge(network, spread, affine)])
    right = np.concatenate([-distance, np.zeros(h + 1)])
    size = np.linalg.norm(J, axis=0)
    size[size == 0] = 1
    J /= size
    normal = J.T @ J
    normal[np.diag_indices_from(normal)] += DAMPING
    factor = scipy.linalg.cho_factor(normal, lower=True, overwrite_a=True, check_finite=False)
    delta = scipy.linalg.cho_solve(factor, J.T @ right)
    for _ in range(3):
        delta += scipy.linalg.cho_solve(factor, J.T @ (right - J @ delta))
    delta /= size
    hidden = delta[: h * (d + 1)].reshape(h, d + 1)
    output = delta[h * (d + 1) :].reshape(network.classes - 1, -1)
    return LabelNetwork(
        W=network.W + hidden[:, :-1],
        b=network.b + hidden[:, -1] * spread,
        V=network.V + output[:, :h],
        P=network.P + output[:, h + 1 :] if affine else network.P,
        c=network.c + output[:, h] * spread,
    )


def _jacobian(network: LabelNetwork, points: Array, pairs: Array, spread: float, norm: Array, affine: bool) -> Array:
    """Derivatives of the distances by (W, b) row by row, then by (V, c, P) class by class."""
    n, (h, d) = len(points), network.W.shape
    active, weight = network.activity(points, pairs)
    scaled = weight * active / norm[:, None]
    constant = np.full((n, 1), spread)
    rows = np.concatenate([points, constant], axis=1)
    hidden = (scaled[:, :, None] * rows[:, None, :]).reshape(n, h * (d + 1))
    z = np.maximum(points @ network.W.T + network.b, 0)
    features = np.concatenate([z, constant, *([points] if affine else [])], axis=1) / norm[:, None]
    return np.concatenate([hidden, equations(features, pairs, network.classes)], axis=1)


def _gauge(network: LabelNetwork, spread: float, affine: bool) -> Array:
    """Rows that hold the length of each neuron's weights, and of all output weights."""
    h, d = network.W.shape
    rows = np.concatenate([network.W, (network.b / spread)[:, None]], axis=1)
    parts = [network.V, (network.c / spread)[:, None], *([network.P] if affine else [])]
    output = np.concatenate(parts, axis=1).reshape(-1)
    gauge = np.zeros((h + 1, h * (d + 1) + len(output)))
    for j in range(h):
        gauge[j, j * (d + 1) : (j + 1) * (d + 1)] = rows[j]
    gauge[h, h * (d + 1) :] = output
    return gauge * spread

"""All parameters at once, from all boundary points that were asked: Gauss-Newton, without further labels.

At a boundary point the two logits of its pair are equal, so their difference f, divided by the length of its gradient,
is the point's distance to the model's boundary. Further rows hold what labels cannot show: the length of each neuron's
weights, and the scale of the output layer.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.linalg
import scipy.sparse.linalg

from divulge.extraction.labels.asking import Array
from divulge.extraction.labels.network import LabelNetwork, steepness
from divulge.extraction.labels.output_layer import equations

LARGEST_DIRECT = 2.5e8
"""Entries of the largest Jacobian that is written out."""
ITERATIONS = 60
"""Of LSMR, for larger ones."""
FLATTEST = 1e-100
"""Smallest slope of logits that says where the boundary is: a copy without output weights has none."""
DAMPINGS = (1e-13, 1e-11, 1e-8)
"""Added to the diagonal of the normal equations, whose columns have unit length: the first that makes them positive."""


def polish(network: LabelNetwork, points: Array, pairs: Array, spread: float, rounds: int) -> LabelNetwork:
    """The network with the least distances to the points; the best of all rounds."""
    if not len(network.W):
        return network
    best, least, last = network, np.inf, np.inf
    length = np.linalg.norm(network.W, axis=1)
    network = replace(network, W=network.W / length[:, None], b=network.b / length, V=network.V * length)
    for step in range(rounds + 1):
        value, gradient = network.difference(points, pairs)
        norm = steepness(gradient)
        if not FLATTEST < norm.min() < np.inf:
            break
        distance = value / norm
        rms = float(np.linalg.norm(distance)) / len(distance) ** 0.5
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
    affine = bool(np.abs(network.P).max() > 0)
    entries = len(points) * (network.W.size + network.V.size)
    solve = _direct_step if entries < LARGEST_DIRECT else _iterative_step
    return _added(network, solve(network, points, pairs, spread, distance, norm, affine), spread, affine)


def _direct_step(
    network: LabelNetwork, points: Array, pairs: Array, spread: float, distance: Array, norm: Array, affine: bool
) -> Array:
    """The least-squares step, from the normal equations."""
    h = len(network.W)
    J = np.concatenate([_jacobian(network, points, pairs, spread, norm, affine), _gauge(network, spread, affine)])
    right = np.concatenate([-distance, np.zeros(h + 1)])
    size = np.linalg.norm(J, axis=0)
    size[size == 0] = 1
    J /= size
    normal = J.T @ J
    factor = _factor(normal)
    delta = scipy.linalg.cho_solve(factor, J.T @ right)
    for _ in range(3):
        delta += scipy.linalg.cho_solve(factor, J.T @ (right - J @ delta))
    return np.asarray(delta / size)


def _factor(normal: Array) -> tuple[Array, bool]:
    """The Cholesky factor, with as much damping as rounding makes necessary."""
    for damping in DAMPINGS:
        damped = normal.copy()
        damped[np.diag_indices_from(damped)] += damping
        try:
            factor, lower = scipy.linalg.cho_factor(damped, lower=True, overwrite_a=True, check_finite=False)
            return np.asarray(factor), bool(lower)
        except np.linalg.LinAlgError:
            continue
    return np.eye(len(normal)), True


def _iterative_step(
    network: LabelNetwork, points: Array, pairs: Array, spread: float, distance: Array, norm: Array, affine: bool
) -> Array:
    """The same step by LSMR, without the matrix: a step of least length leaves the free scales alone."""
    h = len(network.W)
    scaled, rows, output = _factors(network, points, pairs, spread, norm, affine)
    split = h * rows.shape[1]
    size = np.sqrt(np.concatenate([((scaled**2).T @ rows**2).reshape(-1), (output**2).sum(axis=0)]))
    size[size == 0] = 1

    def forward(step: Array) -> Array:
        step = step / size
        hidden = step[:split].reshape(h, -1)
        return np.asarray(((rows @ hidden.T) * scaled).sum(axis=1) + output @ step[split:])

    def backward(residual: Array) -> Array:
        hidden = (scaled * residual[:, None]).T @ rows
        return np.asarray(np.concatenate([hidden.reshape(-1), output.T @ residual]) / size)

    J = scipy.sparse.linalg.LinearOperator((len(points), len(size)), matvec=forward, rmatvec=backward)
    found = scipy.sparse.linalg.lsmr(J, -distance, atol=1e-15, btol=1e-15, maxiter=ITERATIONS)
    return np.asarray(found[0] / size)


def _added(network: LabelNetwork, delta: Array, spread: float, affine: bool) -> LabelNetwork:
    h, d = network.W.shape
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
    scaled, rows, output = _factors(network, points, pairs, spread, norm, affine)
    hidden = (scaled[:, :, None] * rows[:, None, :]).reshape(len(points), -1)
    return np.concatenate([hidden, output], axis=1)


def _factors(
    network: LabelNetwork, points: Array, pairs: Array, spread: float, norm: Array, affine: bool
) -> tuple[Array, Array, Array]:
    """The derivatives in parts: by (W, b) products of [n, h] and [n, d + 1], and by the output layer a matrix."""
    active, weight = network.activity(points, pairs)
    constant = np.full((len(points), 1), spread)
    rows = np.concatenate([points, constant], axis=1)
    z = np.maximum(points @ network.W.T + network.b, 0)
    features = np.concatenate([z, constant, *([points] if affine else [])], axis=1) / norm[:, None]
    return weight * active / norm[:, None], rows, equations(features, pairs, network.classes)


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

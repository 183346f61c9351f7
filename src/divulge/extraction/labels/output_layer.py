"""The orientation of the neurons, and the output layer.

With the hidden layer known, every boundary point is one homogeneous linear equation in the output weights: the two
logits of its pair are equal there. The output layer is the null vector of all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from divulge.extraction.labels.asking import Array
from divulge.extraction.labels.facets import Facet
from divulge.extraction.labels.network import LabelNetwork
from divulge.extraction.labels.tolerances import Tolerances

DETERMINED = 1e-8
"""Ratio of singular values up to which the output layer is taken as determined."""
UNSEEN = 1e-12
"""Columns of the equations smaller than this share of the largest are of neurons that no point sees on."""
OPEN = 1e-9
"""Singular value of equations with unit columns up to which its solution is left open."""
ABSENT = 1e-7
"""Coefficient of a neuron in a facet's normal, relative to the largest, below which the neuron is off."""
PRESENT = 1e-4
"""Coefficient above which it is on."""
FLAT, MOST_OPEN, LOOKED_AT = 1e-6, 32, 256
"""Solutions whose slopes at the points are below this share of the largest are flat there. They are told from others
where no more than so many solutions are left, at so many points."""


@dataclass(frozen=True, eq=False)
class OutputLayer:
    """The network with its output layer, and how well the points determine it."""

    network: LabelNetwork
    gap: float
    """Ratio of the last two singular values: small where the null vector is the only one."""
    outside: int
    """Dimensions of the measured normals that the neurons do not span: some neuron is missing."""
    null_space: Array
    """Solutions that the points leave, orthonormal in the scale of the columns [m, (k - 1) width]."""
    size: Array
    """The scale of the columns [(k - 1) width]."""
    affine: Array
    """Directions of the linear part [n, d]."""
    flat: int = 0
    """Solutions that were left out because they are flat at all points: points elsewhere may need them."""

    def openness(self, points: Array, pairs: Array) -> Array:
        """What equations of further points [n, d] would say of the solutions that are left [n, m]."""
        network = self.network
        spread = float(np.sqrt(points.shape[1]))
        rows = equations(_features(network.W, network.b, self.affine, points, spread), pairs, network.classes)
        return np.asarray(rows / self.size @ self.null_space.T)


def orientations(W: Array, b: Array, facets: Sequence[Facet], tolerances: Tolerances) -> Array:
    """Which neurons to turn round (-1) and which not (1); 0 where it is not known [h].

    A facet's normal is a sum over the neurons that are on, and over no others: in the basis of the rows of W a
    coefficient is zero exactly where a neuron is off. One facet settles all, the others vote. That needs all neurons,
    and no more of them than inputs.
    """
    h, d = W.shape
    if h > d or not h:
        return np.zeros(h)
    normals = np.stack([f.normal for f in facets])
    coefficients = np.linalg.lstsq(W.T, normals.T, rcond=None)[0]  # [h, facets]
    fits = np.linalg.norm(normals.T - W.T @ coefficients, axis=0) < tolerances.loose
    if not fits.any():
        return np.zeros(h)
    error = np.array([f.error for f in facets]) / np.linalg.svd(W, compute_uv=False)[-1]
    side = np.sign(W @ np.stack([f.base for f in facets]).T + b[:, None])
    size = np.abs(coefficients) / np.abs(coefficients).max(axis=0)
    off = size < max(ABSENT, 0.1 * tolerances.loose) + 30 * error
    votes = np.where(size > max(PRESENT, 10 * tolerances.loose), side, np.where(off, -side, 0.0))[:, fits]
    total = votes.sum(axis=1)
    clear = (np.abs(total) == np.abs(votes).sum(axis=1)) & (total != 0)
    return np.where(clear, np.sign(total), 0.0)


def solve_output(
    W: Array, b: Array, points: Array, pairs: Array, classes: int, normals: Array, known: Array, tolerances: Tolerances
) -> OutputLayer:
    """The output layer from boundary points [n, d] and their pairs [n, 2].

    ``known`` marks the neurons whose orientation is known. The others may add any multiple of w x + b.
    """
    h, spread = len(W), tolerances.spread
    extra = _outside(W, normals, tolerances)
    affine = _row_space(np.concatenate([W[~known], extra]))
    features = _features(W, b, affine, points, spread)
    width = features.shape[1]
    rows = equations(features, pairs, classes)
    size = np.linalg.norm(rows, axis=0)
    size[size <= UNSEEN * size.max(initial=0.0)] = 1
    rows /= size
    if len(rows) > rows.shape[1]:
        rows = np.asarray(np.linalg.qr(rows, mode="r"))
    _, singular, vt = np.linalg.svd(rows, full_matrices=True)
    full = len(singular) == (classes - 1) * width
    gap = math.inf
    if full:
        gap = float(singular[-1] / singular[-2]) if len(singular) > 1 else 0.0
    left = max(1 + (gap > DETERMINED), int((singular < OPEN).sum())) if full else len(vt) - len(singular)

    def network(solution: Array) -> LabelNetwork:
        null = (solution / size).reshape(classes - 1, width)
        return LabelNetwork(W.copy(), b.copy(), null[:, :h], null[:, h:-1] @ affine, null[:, -1] * spread)

    solutions = vt[len(vt) - left :]
    open_ = int((singular < OPEN).sum()) if full else left
    flat = 0
    if 1 < open_ <= MOST_OPEN and len(points):
        steep = _steepest(solutions, [network(one) for one in solutions], points, pairs)
        flat, solutions = open_ - len(steep), steep
        if len(solutions) == 1 and full and len(singular) > open_:
            gap = float(np.linalg.norm(rows @ solutions[0]) / singular[-open_ - 1])
    best = solutions[-1] / np.linalg.norm(solutions[-1] / size)
    return OutputLayer(network(best), gap, len(extra), solutions, size, affine, flat)


def _steepest(solutions: Array, networks: Sequence[LabelNetwork], points: Array, pairs: Array) -> Array:
    """The solutions [m, n] that are left, without those that are flat at all points, the steepest last.

    A neuron that is on wherever some class is compared with others adds relu(z) - z to it there, which is zero. Labels
    say nothing of such a part, so that the solution has none of it.
    """
    chosen = np.linspace(0, len(points) - 1, min(len(points), LOOKED_AT)).astype(int)
    slopes = np.stack([n.difference(points[chosen], pairs[chosen])[1].ravel() for n in networks], axis=1)
    _, size, mixing = np.linalg.svd(slopes, full_matrices=False)
    return np.asarray(mixing[size > FLAT * size[0]][::-1] @ solutions) if size[0] > 0 else solutions


def _features(W: Array, b: Array, affine: Array, points: Array, spread: float) -> Array:
    """What the output layer gets: the neurons, the linear part and a constant [n, width]."""
    constant = np.full((len(points), 1), spread)
    return np.concatenate([np.maximum(points @ W.T + b, 0), points @ affine.T, constant], axis=1)


def equations(features: Array, pairs: Array, classes: int) -> Array:
    """One row for each point: its features for the first class of the pair, less those for the second, class 0 out."""
    index = np.arange(len(features))
    rows = np.zeros((len(features), classes, features.shape[1]))
    rows[index, pairs[:, 0]] += features
    rows[index, pairs[:, 1]] -= features
    return rows[:, 1:].reshape(len(features), -1)


def with_sign(network: LabelNetwork, points: Array, pairs: Array, normals: Array) -> LabelNetwork:
    """The network or its negative: the gradient at a point must be on the side of the first label of its pair."""
    _, gradient = network.difference(points, pairs)
    return network if float((gradient * normals).sum()) > 0 else network.signed(-1.0)


def _outside(W: Array, normals: Array, tolerances: Tolerances) -> Array:
    """An orthonormal basis of what the normals have outside of the neurons' span; empty if there are many neurons."""
    h, d = W.shape
    if h >= d:
        return np.zeros((0, d))
    rest = normals - normals @ np.linalg.pinv(W) @ W if h else normals
    _, singular, vt = np.linalg.svd(rest, full_matrices=False)
    return np.asarray(vt[singular > tolerances.loose * math.sqrt(len(normals))])


def _row_space(rows: Array) -> Array:
    if not len(rows):
        return rows
    _, singular, vt = np.linalg.svd(rows, full_matrices=False)
    return np.asarray(vt[singular > 1e-9])

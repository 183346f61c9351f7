"""Candidates that rest on few kinks are asked again: their hyperplane must be a kink in other cells too."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from divulge.extraction.layers.known_layers import Array, KnownLayers
from divulge.extraction.layers.neuron import Neuron
from divulge.extraction.layers.query_points import hyperplane_points
from divulge.extraction.layers.query_space import QuerySpace

POINTS = 5
STARTS = 200
REAL = 0.7
"""Share of the points that must be kinks."""


def confirmed(
    space: QuerySpace, layers: KnownLayers, found: list[Neuron], seldom: int, rng: np.random.Generator
) -> list[Neuron]:
    """The neurons without those that are doubtful, seldom seen or missed some kinks, and fail a test of 5 points."""
    kept = []
    for neuron in found:
        if neuron.count >= seldom and neuron.share == 1.0 and not neuron.doubtful:
            kept.append(neuron)
            continue
        Y = hyperplane_points(space, layers, neuron, STARTS, rng)
        if len(Y) < 2:
            kept += [] if neuron.doubtful else [neuron]
        else:
            row, bias = np.array([other.row for other in found]), np.array([other.bias for other in found])
            if _kinks(space, layers, neuron, _apart(layers, row, bias, Y, rng)).mean() >= REAL:
                kept.append(replace(neuron, doubtful=False))
    return kept


def is_neuron(
    space: QuerySpace, layers: KnownLayers, neuron: Neuron, row: Array, bias: Array, rng: np.random.Generator
) -> bool:
    """Whether 5 points of a hyperplane are kinks, in cells of the layer's other neurons ``row``, ``bias`` far apart."""
    Y = hyperplane_points(space, layers, neuron, STARTS, rng)
    return len(Y) > 1 and bool(_kinks(space, layers, neuron, _apart(layers, row, bias, Y, rng)).mean() >= REAL)


def _apart(layers: KnownLayers, row: Array, bias: Array, Y: Array, rng: np.random.Generator) -> Array:
    """Few of the points, in cells of units below and neurons of the layer that differ most from each other."""
    if len(Y) <= POINTS:
        return Y
    activation, on, _ = layers.units(Y)
    cell = np.concatenate([on, activation @ row.T + bias > 0], axis=1)
    chosen = [int(rng.integers(len(Y)))]
    distance = (cell != cell[chosen[0]]).sum(axis=1)
    while len(chosen) < POINTS:
        chosen.append(int(np.argmax(distance + rng.random(len(Y)))))
        distance = np.minimum(distance, (cell != cell[chosen[-1]]).sum(axis=1))
    return Y[chosen]


def _kinks(space: QuerySpace, layers: KnownLayers, neuron: Neuron, Y: Array) -> Array:
    """Whether the gradient jumps along the neuron's normal at each point [n]; two queries a point."""
    normal = neuron.row @ layers.maps(Y)[2]
    normal /= np.linalg.norm(normal, axis=1, keepdims=True)
    step = space.beside * np.median(np.abs(Y), axis=1, keepdims=True) * normal
    _, gradient = space.maps(np.concatenate([Y + step, Y - step]))
    jump = gradient[: len(Y)] - gradient[len(Y) :]
    along = np.einsum("nkd,nd->nk", jump, normal)
    across = jump - along[:, :, None] * normal[:, None]
    size = np.linalg.norm(jump, axis=(1, 2))
    flat = np.linalg.norm(gradient, axis=(1, 2)).reshape(2, -1).max(axis=0) == 0  # all is off above: nothing shows
    level = np.abs(gradient).max()
    error = 10 * space.accuracy.error * level * np.sqrt(space.dim)
    real = (size > 1e-9 * level + 3 * error) & (np.linalg.norm(across, axis=(1, 2)) < 1e-3 * size + error)
    return np.asarray(real[~flat] if not flat.all() else real)

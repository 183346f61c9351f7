"""Candidates that rest on few kinks are asked again: their hyperplane must be a kink in other cells too."""

from __future__ import annotations

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
    """The neurons without those that have fewer than ``seldom`` kinks, or missed some, and fail a test of 5 points."""
    kept = []
    for neuron in found:
        if neuron.count >= seldom and neuron.share == 1.0:
            kept.append(neuron)
            continue
        Y = hyperplane_points(space, layers, neuron, STARTS, rng)
        if len(Y) < 2 or _kinks(space, layers, neuron, _in_distinct_cells(layers, Y, rng)).mean() >= REAL:
            kept.append(neuron)
    return kept


def _in_distinct_cells(layers: KnownLayers, Y: Array, rng: np.random.Generator) -> Array:
    Y = Y[rng.permutation(len(Y))]
    if len(Y) <= POINTS:
        return Y
    _, first = np.unique(layers.units(Y)[1], axis=0, return_index=True)
    return Y[np.sort(first)[:POINTS]]


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
    level = np.abs(gradient).max()
    return np.asarray((size > 1e-9 * level) & (np.linalg.norm(across, axis=(1, 2)) < 1e-3 * size))

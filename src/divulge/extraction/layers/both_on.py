"""Rows where a neuron and a unit below it are both on, by mixed-integer programming.

The entry between them acts at such rows only. Where random rows meet none, they may be rare rather than absent. In the
program of the known layers (``relu_program.py``) the unit is made as large as it can be while the neuron stays on,
whatever the entry between them is.
"""

from __future__ import annotations

import numpy as np

from divulge.core.progress import report
from divulge.extraction.layers.known_layers import Array, KnownLayers
from divulge.extraction.layers.query_space import QuerySpace
from divulge.extraction.layers.relu_program import MOST_UNITS, SEARCH, ReluProgram

LARGEST_ENTRY = 2.0
"""How large the unknown entry may be, as a multiple of the largest of its row."""
FARTHEST = 30.0
"""Rows lie at most so many times as far out as typical samples."""
AROUND, NEAR = 64, 0.05
"""Rows around the one that is found, and how far they lie from it, as a share of it."""


def rows_with_both_on(
    space: QuerySpace, layers: KnownLayers, depth: int, neuron: int, unit: int, samples: Array, rng: np.random.Generator
) -> Array:
    """Rows [n, dim] where a unit and a neuron of the layer ``depth`` above it are on; none if there are none."""
    below = layers.first(depth)
    if sum(below.widths) > MOST_UNITS:
        return np.zeros((0, space.dim))
    report("weights that were never seen", None, None)
    row, bias = layers.weights[depth][neuron].copy(), float(layers.biases[depth][neuron])
    row[unit] = -LARGEST_ENTRY * np.abs(row).max()
    reach = FARTHEST * float(np.median(np.abs(samples).max(axis=1)))
    found = _largest_unit(below, row, bias, unit, 0.0 if space.positive else -reach, reach)
    if found is None:
        return np.zeros((0, space.dim))
    size = NEAR * rng.random((AROUND, 1)) * np.maximum(np.abs(found), np.abs(found).mean())
    Y = np.concatenate([found[None], found + size * rng.normal(size=(AROUND, len(found)))])
    Y = np.maximum(Y, 0.0) if space.positive else Y
    activation = below(Y)
    return np.asarray(Y[(activation[:, unit] > 0) & (activation @ row + bias > 0)])


def _largest_unit(layers: KnownLayers, row: Array, bias: float, unit: int, low: float, high: float) -> Array | None:
    """The row in [low, high] with the largest unit of the last layer, where ``row @ activations + bias`` is above 0."""
    program = ReluProgram(layers, low, high)
    program.keep_above(row, -bias)
    found = program.maximum(np.eye(layers.width)[unit], SEARCH).row
    return found if found is not None and layers(found[None])[0, unit] > 0 else None

"""Rows where a neuron and a unit below it are both on, by mixed-integer programming.

The entry between them acts at such rows only. Where random rows meet none, they may be rare rather than absent. In the
program of the known layers (``relu_program.py``) the unit is made as large as it can be while the neuron stays on,
whatever the entry between them is. Where entries of several neurons at one unit are unknown, rows with all of these
neurons on tell one combination of them; rows where one is on and another off tell them apart.
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
AROUND, FAR, NEAR = 64, 0.05, 5e-5
"""Rows around the one that is found, and how far from it the farthest and the nearest lie, as a share of it: the cell
in which both are on may be small."""


def rows_with_both_on(
    space: QuerySpace, layers: KnownLayers, depth: int, neuron: int, unit: int, samples: Array, rng: np.random.Generator
) -> Array:
    """Rows [n, dim] where a unit and a neuron of the layer ``depth`` above it are on; none if there are none."""
    row, bias = layers.weights[depth][neuron].copy(), float(layers.biases[depth][neuron])
    row[unit] = -LARGEST_ENTRY * np.abs(row).max()
    return _rows(space, layers.first(depth), unit, row[None], np.array([bias]), samples, rng)


def rows_with_one_on(
    space: QuerySpace, layers: KnownLayers, depth: int, unseen: Array, samples: Array, rng: np.random.Generator
) -> Array:
    """Rows [n, dim] where a unit and one neuron of the layer ``depth`` are on, and another neuron is off.

    All pairs of neurons are tried whose entries at the same unit are ``unseen`` [neurons, units]. Linear units may
    carry what an entry is off by: beside them rows where the unit is on and a neuron is off tell.
    """
    weight, bias, linear = layers.weights[depth], layers.biases[depth], layers.linear[depth]
    found = [np.zeros((0, space.dim))]
    for unit in np.flatnonzero(unseen.any(axis=0)).tolist():
        neurons = np.flatnonzero(unseen[:, unit]).tolist()
        for off in neurons:
            for on in neurons:
                if on != off:
                    rows, offset = np.stack([weight[on], -weight[off]]), np.array([bias[on], -bias[off]])
                    found.append(_rows(space, layers.first(depth), unit, rows, offset, samples, rng))
            if linear.any():
                rows, offset = -weight[off][None], -bias[off][None]
                found.append(_rows(space, layers.first(depth), unit, rows, offset, samples, rng))
    return np.concatenate(found)


def _rows(
    space: QuerySpace, below: KnownLayers, unit: int, weight: Array, bias: Array, samples: Array,
    rng: np.random.Generator,
) -> Array:  # fmt: skip
    """Rows with a unit as large as it can be where ``weight @ activations + bias`` [m] are all above 0."""
    if sum(below.widths) > MOST_UNITS:
        return np.zeros((0, space.dim))
    report("weights that were never seen", None, None)
    reach = FARTHEST * float(np.median(np.abs(samples).max(axis=1)))
    program = ReluProgram(below, 0.0 if space.positive else -reach, reach)
    for row, offset in zip(weight, bias.tolist(), strict=True):
        program.keep_above(row, -offset)
    found = program.maximum(np.eye(below.width)[unit], SEARCH).row
    if found is None:
        return np.zeros((0, space.dim))
    size = FAR * (NEAR / FAR) ** rng.random((AROUND, 1)) * np.maximum(np.abs(found), np.abs(found).mean())
    Y = np.concatenate([found[None], found + size * rng.normal(size=(AROUND, len(found)))])
    Y = np.maximum(Y, 0.0) if space.positive else Y
    activation = below(Y)
    return np.asarray(Y[(activation[:, unit] > 0) & (activation @ weight.T + bias > 0).all(axis=1)])

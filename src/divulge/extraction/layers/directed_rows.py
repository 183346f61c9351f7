"""Rows that tell more of neurons of the last layer that are seldom on, by mixed-integer programming.

The samples at which such a neuron was seen on leave entries of its row open, or combinations of them
(``residual_units.py``). It is off wherever the copy without it agrees. Among the rows and biases that all of this
allows the one with the largest open entry is taken, and a mixed-integer program (``relu_program.py``) finds the input
at which the neuron would be farthest on with the unit of that entry on. The answer there either tells the entry, or
lowers the largest that it can be. An entry that no such input is left for acts nowhere in the box.
"""

from __future__ import annotations

import numpy as np

from divulge.core.progress import report
from divulge.extraction.layers.known_layers import Array, KnownLayers
from divulge.extraction.layers.query_space import QuerySpace
from divulge.extraction.layers.relu_program import MOST_UNITS, box_program, typical_size
from divulge.extraction.layers.residual_units import Explained, ResidualUnit, largest

BOX = 30.0
"""How many times as large as at typical samples the coordinates of rows may be."""
PROGRAMS = 12
"""Open entries that are looked at, at most."""
ON = 1e-3
"""Least activation of the unit of an open entry, as a share of typical coordinates."""
ZERO = 1e-6
"""Pre-activations below this share of typical ones are zero: the solver's own tolerance."""
AROUND, NEAR, ASKED = 32, 1e-2, 3
"""Rows around each that a program finds, how far from it they lie, as a share of typical coordinates, and how many of
them are asked: those where the neuron is farthest on."""


def rows_for_units(
    space: QuerySpace, below: KnownLayers, units: list[ResidualUnit], samples: Array, off: Explained,
    rng: np.random.Generator,
) -> Array:  # fmt: skip
    """Rows [n, dim] at which open entries of the units would act; none if there are none.

    ``samples`` are typical rows, ``off`` others at which all units are off.
    """
    rows = [np.zeros((0, space.dim))]
    if sum(below.widths) > MOST_UNITS:
        return rows[0]
    typical = typical_size(samples)
    open_ = [(unit, entry) for unit in units for entry in np.flatnonzero(~unit.known).tolist()]
    for pick in rng.permutation(len(open_))[:PROGRAMS].tolist():
        unit, entry = open_[pick]
        report("neurons that are seldom on", None, None)
        theta = largest(unit, np.eye(len(unit.row) + 1)[entry], off)
        if theta is None:
            continue
        program = box_program(space, below, typical, BOX)
        program.keep_above(np.eye(below.width)[entry], ON)
        best = program.maximum(theta[:-1])
        if best.row is None or best.bound + theta[-1] / typical <= ZERO:
            continue
        Y = _around(space, typical * best.row, typical, rng)
        activation = below(Y)
        height = np.where(activation[:, entry] > 0, activation @ theta[:-1] + theta[-1], -np.inf)
        order = np.argsort(-height)[:ASKED]
        rows.append(Y[order[height[order] > 0]])
    return np.concatenate(rows)


def _around(space: QuerySpace, row: Array, typical: float, rng: np.random.Generator) -> Array:
    """Rows beside the one of a program, which lies where several units have just come on."""
    Y = row + NEAR * typical * rng.random((AROUND, 1)) * rng.normal(size=(AROUND, len(row)))
    return np.asarray(space.kept_inside(Y, rng, NEAR * typical))

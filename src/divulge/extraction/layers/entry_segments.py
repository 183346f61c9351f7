"""Segments that cross a neuron's hyperplane where a unit below is on, by mixed-integer programming.

``unseen_entries.py`` looks for such places by projections, which meet few cells. In the program of the known layers
(``relu_program.py``) one end of the segment is where the neuron is farthest on, and the other where it is farthest off,
each with the unit on, and whatever the entry between them is. The neuron switches between them; where the unit is on
there too, the kink shows the entry.
"""

from __future__ import annotations

import numpy as np

from divulge.core.progress import report
from divulge.extraction.layers.known_layers import Array, KnownLayers
from divulge.extraction.layers.neuron import Neuron
from divulge.extraction.layers.query_space import QuerySpace
from divulge.extraction.layers.relu_program import MOST_UNITS, SEARCH, box_program, typical_size

BOXES = (3.0, 30.0)
"""How many times as large as at typical samples the coordinates of a segment's ends may be: near ones first."""
LARGEST_ENTRY = 1.0
"""How large the unknown entry may be, as a multiple of the largest of its row."""
ON = 1e-2
"""Least activation of the unit, as a share of typical coordinates."""
ABOVE_ZERO = 1e-3
"""Activations of the first layer stay above this share of typical ones: its own kinks lie at zero."""


def segment_with_unit_on(
    space: QuerySpace, layers: KnownLayers, neuron: Neuron, unit: int, samples: Array
) -> tuple[Array, Array] | None:
    """Begin and end of a segment between which the neuron switches, both with ``unit`` on; None if none is found."""
    if sum(layers.widths) > MOST_UNITS:
        return None
    report("weights that were never seen", None, None)
    typical = typical_size(samples)
    entry = LARGEST_ENTRY * float(np.abs(neuron.row).max())
    for box in BOXES:
        ends = []
        for side in (1.0, -1.0):
            program = box_program(space, layers, typical, box)
            program.keep_above(np.eye(layers.width)[unit], ON)
            row = side * neuron.row
            row[unit] = -entry
            best = program.maximum(row, SEARCH)
            if best.row is None:
                break
            Y = typical * (np.maximum(best.row, ABOVE_ZERO) if space.positive else best.row)
            if layers(Y[None])[0] @ row + side * neuron.bias <= 0:
                break
            ends.append(Y)
        if len(ends) == 2:
            return ends[0], ends[1]
    return None

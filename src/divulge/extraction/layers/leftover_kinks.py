"""Neurons that are seldom on, from the few kinks that all layers found so far leave unexplained.

A neuron that is on at one input in a hundred shows two or three kinks, in cells where few units below are on. They
share too few entries to be recognised as one neuron. Once all other neurons of its layer are known, its kinks are among
the few that are left. A single one of them tells the entries of the row at the units that are on there, and more if it
is followed into the cells around it (``followed_kinks.py``). Whether it is a neuron of that layer is asked at other
points of its hyperplane; segments that show its other entries follow.
"""

from __future__ import annotations

import numpy as np

from divulge.extraction.layers.candidate_test import is_neuron
from divulge.extraction.layers.followed_kinks import follow
from divulge.extraction.layers.known_layers import Array, KnownLayers
from divulge.extraction.layers.neuron import Neuron
from divulge.extraction.layers.partial_rows import PartialRows
from divulge.extraction.layers.query_points import hyperplane_points
from divulge.extraction.layers.survey import Survey
from divulge.extraction.layers.unseen_entries import segment_for_entry

MOST_KINKS = 24
"""Kinks that are looked at, the strongest first."""
FEWEST_UNITS = 2
"""Units that must be on at a kink."""
STARTS, KINKS = 60, 4
"""Points moved towards the hyperplane of a neuron that is known, and kinks asked for there."""


def seldom_on(
    survey: Survey, layers: KnownLayers, open_: Array, fewest: int, rng: np.random.Generator
) -> tuple[int | None, list[tuple[Array, Array]]]:
    """Segments that show more of neurons that were missed, and the depth of the lowest of them; None if there is none.

    ``open_`` are the intervals with kinks that ``layers`` do not explain; the first ``fewest`` layers are not doubted.
    """
    index = np.flatnonzero(open_)
    if len(index) > MOST_KINKS:  # most are of deeper layers: those that fit the layers found so far
        rows = PartialRows(survey, layers, open_)
        index = rows.index[rows.outside]
        index = index[np.argsort(-survey.data.strength[index])[:MOST_KINKS]]
    left = np.zeros(len(open_), bool)
    left[index] = True
    lowest, pairs = None, []
    for depth in range(fewest, len(layers)):
        below, row, bias, _ = layers.first(depth), *layers.stack[depth]
        if depth and survey.has_gradients:
            known = survey.followed
            fresh = [k for k in index.tolist() if left[k] and not (k in known and known[k].depth >= depth)]
            follow(survey, below, fresh, rng)
        rows = PartialRows(survey, below, left)
        for neuron in _candidates(rows):
            if not is_neuron(survey.space, below, neuron, row, bias, rng):
                continue
            ends = [
                segment_for_entry(survey, below, neuron, unit, rng) for unit in np.flatnonzero(~neuron.known).tolist()
            ]
            found = [pair for pair in ends if pair is not None and (pair[0] != pair[1]).any()]
            found += _across(survey, below, neuron, rng) if not neuron.unseen else []
            pairs += found
            if found and lowest is None:
                lowest = depth
            left &= ~neuron.kinks
    return lowest, pairs


def _across(
    survey: Survey, below: KnownLayers, neuron: Neuron, rng: np.random.Generator
) -> list[tuple[Array, Array]]:  # fmt: skip
    """Short segments across the hyperplane of a neuron whose entries are all known, so that it has some kinks."""
    Y = hyperplane_points(survey.space, below, neuron, STARTS, rng)[:KINKS]
    normal = neuron.row @ below.maps(Y)[2]
    normal /= np.maximum(np.linalg.norm(normal, axis=1, keepdims=True), np.finfo(float).tiny)
    step = survey.space.beside * np.median(np.abs(Y), axis=1, keepdims=True) * normal
    return list(zip(Y - step, Y + step, strict=True))


def _candidates(rows: PartialRows) -> list[Neuron]:
    """Neurons from single kinks whose predicted crossings are all kinks; each kink is used once."""
    found: list[Neuron] = []
    for k in np.flatnonzero(rows.full & ~rows.outside & (rows.on.sum(axis=1) >= FEWEST_UNITS)):
        if any(neuron.kinks[rows.index[k]] for neuron in found):
            continue
        size = float(np.linalg.norm(rows.row[k]))
        if size == 0:  # the normal is not seen through the units that are on
            continue
        row, bias, known = rows.row[k] / size, float(rows.bias[k] / size), rows.shown[k]
        kinks, missing = rows.crossings(row, bias, known)
        if kinks[rows.index[k]] and not missing.any():
            found.append(Neuron(row, bias, known, kinks, 1.0))
    return found

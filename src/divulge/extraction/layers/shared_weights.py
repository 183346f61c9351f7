"""The active sides of a first layer that shares weights between its units, as a convolution does.

A convolution often has more units than inputs, so that gradients alone do not tell which units they combine
(``orientation.py``). But the units of one filter have the same weights at other places, and the same side: their rows
hold the same numbers in the same order. So few signs are open, one for each filter, and all combinations are tried. The
right one explains every gradient by the rows of the units that are on, where these are too few to span all inputs. This
holds for any stride and shape of the input; units at padded borders lack some weights and count as filters of their
own.
"""

from __future__ import annotations

import itertools

import numpy as np

from divulge.extraction.layers.known_layers import Array
from divulge.extraction.layers.survey import Survey

MOST_FILTERS = 8
UNITS_A_FILTER = 3
"""Units that share weights, on average, for a layer to count as a convolution."""
NOTHING, EQUAL = 1e-6, 1e-5
"""Entries below the first share of a row's largest are zero; those that differ by less than the second are equal."""
SAMPLES, FIRST = 40, 6
EXPLAINED = 1e-7
"""Gradients that leave the span of the rows by less than this share of their length lie in it."""
SPARE = 3
"""Dimensions that must be left over for a sample to count."""
SHARE = 0.95


def shared_signs(survey: Survey, weight: Array, bias: Array) -> Array | None:
    """Signs [h] that turn each unit to its active side; None if the rows do not share weights or do not explain all."""
    group, turn = _filters(weight, bias)
    count = int(group.max()) + 1
    if count > MOST_FILTERS or len(weight) < UNITS_A_FILTER * count:
        return None
    data = survey.data
    size = np.linalg.norm(data.gradient, axis=(1, 2))
    acting = size > 1e-6 * np.median(size)
    gradient, before = data.gradient[acting], data.Y[acting] @ weight.T + bias
    rank = int(np.linalg.matrix_rank(weight))
    found = []
    for choice in itertools.product((1.0, -1.0), repeat=count):
        sign = turn * np.array(choice)[group]
        on = sign * before > 0
        fewest = np.argsort(on.sum(axis=1), kind="stable")[:SAMPLES]  # rows that are on span least there
        if _explained(gradient[fewest[:FIRST]], weight, on[fewest[:FIRST]], rank) < SHARE:
            continue
        if _explained(gradient[fewest], weight, on[fewest], rank) >= SHARE:
            found.append(sign)
    return found[0] if len(found) == 1 else None


def _filters(weight: Array, bias: Array) -> tuple[Array, Array]:
    """Which filter each unit belongs to [h], and its sign relative to the filter's first weight [h]."""
    known: list[Array] = []
    group, turn = np.zeros(len(weight), int), np.ones(len(weight))
    for unit, (row, offset) in enumerate(zip(weight, bias, strict=True)):
        entries = row[np.abs(row) > NOTHING * np.abs(row).max()]
        turn[unit] = np.sign(entries[0])
        numbers = turn[unit] * np.append(entries, offset)
        same = [k for k, other in enumerate(known) if _equal(numbers, other)]
        if not same:
            known.append(numbers)
        group[unit] = same[0] if same else len(known) - 1
    return group, turn


def _equal(one: Array, other: Array) -> bool:
    return len(one) == len(other) and bool(np.abs(one - other).max() < EQUAL * np.abs(one).max())


def _explained(gradient: Array, weight: Array, on: Array, rank: int) -> float:
    """Share of the gradients [n, k, d] that lie in the span of the rows that are on [n, h]; 0 if none can tell."""
    told, good = 0, 0
    for rows, active in zip(gradient, on, strict=True):
        U, s, _ = np.linalg.svd(weight[active].T, full_matrices=False)
        basis = U[:, s > 1e-9 * s.max()] if len(s) else U
        if basis.shape[1] > rank - SPARE:
            continue
        off = np.linalg.norm(rows.T - basis @ (basis.T @ rows.T))
        told, good = told + 1, good + int(off < EXPLAINED * np.linalg.norm(rows))
    return good / told if told else 0.0

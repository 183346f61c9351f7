"""Entries that no kink has shown, and that values determine all the same.

Where a neuron and a unit below it are both on, and the neuron reaches an output, the answer changes with the entry
between them. A copy that meets the answers at enough such rows has that entry right, unless errors of several unseen
entries cancel at all of these rows: the derivatives of the answers by all unseen entries together tell how far each can
be off (least squares; the other weights are known). An entry that no row depends on is not determined.
"""

from __future__ import annotations

import numpy as np

from divulge.extraction.layers.deep_copy import DeepCopy
from divulge.extraction.layers.known_layers import Array
from divulge.extraction.layers.polish import Stack, passes

Entry = tuple[int, int, int]
"""A layer of the stack, a neuron of it, and a unit below."""
LARGEST_ERROR = 1e-5
"""An entry is determined if it is off by no more than this share of its neuron's largest entry."""
FEWEST_ROWS = 5
"""Rows that must depend on an entry, each at least by ``NOTICEABLE`` of the row that depends on it most."""
NOTICEABLE = 1e-2
RANK, OPEN = 1e-14, 1e-6
"""Directions of entries that change the answers' squares by less than the first share of others are open, and with them
the entries that have a larger part in one than the second."""
MOST_ENTRIES = 500
ROWS_AT_ONCE = 4_096


def mark_determined(
    unseen: dict[int, Array], copy: DeepCopy, X: Array, off: Array, weight: Array, summed: Array | None = None
) -> None:
    """Take the entries that answers at rows X determine from those that are ``unseen``, by layer [neurons, units].

    Linear units were fitted to the same answers, and may carry what is wrong with an entry of another neuron that is on
    at all of these rows: their entries at the same units are unknowns too. Entries of the last layer that act in
    ``summed`` with others (``acting_nowhere.py``) are one unknown a unit, linear units' included.
    """
    below = len(copy.stack) - 1 - len(copy.layers)  # layers of the stack under those that were peeled
    last = len(copy.layers) - 1
    units = [] if summed is None else [int(unit) for unit in np.flatnonzero(summed.any(axis=0))]
    sums = {unit: np.flatnonzero(summed[:, unit]) for unit in units} if summed is not None else {}
    places = [
        (depth, neuron, unit)
        for depth, entries in unseen.items() if depth < len(copy.layers)
        for neuron, unit in np.argwhere(entries).tolist()
        if depth != last or unit not in sums or neuron not in sums[unit][1:]
    ]  # fmt: skip
    carried = [
        (depth, neuron, unit)
        for depth, unit in sorted({(depth, unit) for depth, _, unit in places})
        for neuron in np.flatnonzero(copy.layers.linear[depth]).tolist()
        if depth != last or unit not in sums
    ]
    entries = [(below + depth, neuron, unit) for depth, neuron, unit in [*places, *carried]]
    told = determined(copy.stack, X, off, weight, entries)[: len(places)]
    for (depth, neuron, unit), seen in zip(places, told.tolist(), strict=True):
        together = sums[unit] if depth == last and unit in sums and neuron in sums[unit] else neuron
        unseen[depth][together, unit] = not seen


def determined(stack: Stack, X: Array, off: Array, weight: Array, entries: list[Entry]) -> Array:
    """Which entries are determined by answers at rows X [n, d].

    ``off`` [n] is how far the copy is from the answers, both as they are compared: times ``weight`` [n].
    """
    if not entries or len(entries) > MOST_ENTRIES or not len(X):
        return np.zeros(len(entries), bool)
    parts = [_derivatives(stack, X[rows], entries) * weight[rows, None, None] for rows in _slices(len(X))]
    derivative = np.concatenate(parts)  # [n, k, m]
    by_row = np.abs(derivative).max(axis=1)
    enough = (by_row > NOTICEABLE * np.maximum(by_row.max(axis=0), np.finfo(float).tiny)).sum(axis=0) >= FEWEST_ROWS
    size = np.sqrt((derivative**2).sum(axis=(0, 1)))
    acting, error = size > 0, np.full(len(entries), np.inf)
    if not acting.any():
        return np.zeros(len(entries), bool)
    scaled = (derivative[:, :, acting] / size[acting]).reshape(-1, int(acting.sum()))
    values, vectors = np.linalg.eigh(scaled.T @ scaled)
    told = values > RANK * values[-1]
    reach = np.linalg.norm(off) / np.sqrt(values[told])  # along each eigenvector
    error[acting] = np.abs(vectors[:, told]) @ reach / size[acting]
    error[acting] += np.where(np.abs(vectors[:, ~told]).max(axis=1, initial=0.0) > OPEN, np.inf, 0.0)
    allowed = np.array([LARGEST_ERROR * np.abs(stack[layer][0][neuron]).max() for layer, neuron, _ in entries])
    return np.asarray(enough & (error <= allowed))


def _slices(n: int) -> list[slice]:
    return [slice(start, start + ROWS_AT_ONCE) for start in range(0, n, ROWS_AT_ONCE)]


def _derivatives(stack: Stack, X: Array, entries: list[Entry]) -> Array:
    """Derivatives of the outputs by these entries [n, k, m]."""
    activations, slopes = passes(stack, X)
    parts = [slopes[layer][:, :, neuron] * activations[layer][:, None, unit] for layer, neuron, unit in entries]
    return np.stack(parts, axis=2)

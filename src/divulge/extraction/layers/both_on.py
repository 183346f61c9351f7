"""Rows where a neuron and a unit below it are both on, by mixed-integer programming.

The entry between them acts at such rows only. Where random rows meet none, they may be rare rather than absent. The
layers that are known are piecewise linear: which units are on are zeros and ones, and all else is linear in them and in
the row (Tjeng, Xiao and Tedrake 2019, "Evaluating robustness of neural networks with mixed integer programming"). The
unit is made as large as it can be while the neuron stays on, whatever the entry between them is.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from divulge.core.progress import report
from divulge.extraction.layers.known_layers import Array, KnownLayers
from divulge.extraction.layers.query_space import QuerySpace

LARGEST_ENTRY = 2.0
"""How large the unknown entry may be, as a multiple of the largest of its row."""
MOST_UNITS, NODES, SECONDS = 200, 2_000, 2.0
"""Units of all layers of a program, nodes of its search tree, and its time: the solver is not interrupted by others."""
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
    program = _Program(layers.inputs, low, high)
    for weight, offset, linear in layers.stack:
        program.add_layer(weight, offset, linear)
    program.constrain(np.array([0]), row[None], program.units[None], np.array([-bias]), np.array([np.inf]))
    cost = np.zeros(program.size)
    cost[program.units[unit]] = -1.0
    bounds = Bounds(np.concatenate(program.low), np.concatenate(program.high))
    solved = milp(
        cost, constraints=program.constraints(), bounds=bounds,
        integrality=np.concatenate(program.whole), options={"node_limit": NODES, "time_limit": SECONDS},
    )  # fmt: skip
    if solved.x is None or solved.x[program.units[unit]] <= 0:
        return None
    return np.asarray(solved.x[: layers.inputs])


class _Program:
    """Layers of ReLU units as a mixed-integer program: a unit is its pre-activation where its switch is 1, else 0."""

    def __init__(self, inputs: int, low: float, high: float) -> None:
        self.low, self.high, self.whole = [np.full(inputs, low)], [np.full(inputs, high)], [np.zeros(inputs)]
        self.units, self.size = np.arange(inputs), inputs
        self._rows: list[tuple[Array, Array, Array]] = []  # values, rows, columns
        self._least: list[Array] = []
        self._most: list[Array] = []
        self._count = 0

    def add_layer(self, weight: Array, bias: Array, linear: Array) -> None:
        low, high = self._reach
        least = np.minimum(weight * low, weight * high).sum(axis=1) + bias
        most = np.maximum(weight * low, weight * high).sum(axis=1) + bias
        h, below = len(bias), self.units
        units, switches = np.arange(self.size, self.size + h), np.arange(self.size + h, self.size + 2 * h)
        self.size += 2 * h
        self.low += [np.where(linear, least, np.maximum(least, 0)), np.zeros(h)]
        self.high += [np.where(linear, most, np.maximum(most, 0)), np.ones(h)]
        self.whole += [np.zeros(h), np.ones(h)]
        down, up = np.where(linear, 0.0, np.minimum(least, 0)), np.where(linear, 0.0, np.maximum(most, 0))
        every = np.arange(h)
        terms = np.concatenate([np.ones((h, 1)), -weight], axis=1)  # unit - weight @ below
        columns = np.concatenate([units[:, None], np.broadcast_to(below, (h, len(below)))], axis=1)
        self.constrain(every, terms, columns, bias, np.where(linear, bias, np.inf))
        switched = np.concatenate([terms, -down[:, None]], axis=1)
        self.constrain(every, switched, np.concatenate([columns, switches[:, None]], axis=1),
                       np.full(h, -np.inf), bias - down)  # fmt: skip
        relu = np.flatnonzero(~linear)
        self.constrain(np.arange(len(relu)), np.stack([np.ones(len(relu)), -up[relu]], axis=1),
                       np.stack([units[relu], switches[relu]], axis=1), np.full(len(relu), -np.inf),
                       np.zeros(len(relu)))  # fmt: skip
        self.units = units

    @property
    def _reach(self) -> tuple[Array, Array]:
        """Bounds of the units of the last layer."""
        place = -1 if len(self.low) == 1 else -2
        return self.low[place], self.high[place]

    def constrain(self, rows: Array, terms: Array, columns: Array, least: Array, most: Array) -> None:
        """least <= sum of terms [m, k] times variables [m, k] <= most, for each of the rows."""
        self._rows.append((terms.reshape(-1), np.repeat(rows + self._count, terms.shape[1]), columns.reshape(-1)))
        self._least.append(least)
        self._most.append(most)
        self._count += len(rows)

    def constraints(self) -> LinearConstraint:
        values, rows, columns = (np.concatenate(part) for part in zip(*self._rows, strict=True))
        matrix = coo_array((values, (rows, columns)), shape=(self._count, self.size)).tocsc()
        return LinearConstraint(matrix, np.concatenate(self._least), np.concatenate(self._most))

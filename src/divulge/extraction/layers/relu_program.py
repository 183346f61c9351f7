"""Known layers as a mixed-integer program: which units are on are zeros and ones, and all else is linear.

Tjeng, Xiao and Tedrake 2019, "Evaluating robustness of neural networks with mixed integer programming". Rows lie in a
box; bounds of the units follow from it layer by layer. ``both_on.py`` looks for rows with it, and ``acting_nowhere.py``
shows that there are none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from divulge.core.library_output import silent_libraries
from divulge.extraction.layers.known_layers import Array, KnownLayers
from divulge.extraction.layers.query_space import QuerySpace

MOST_UNITS = 100
"""Units of all layers of a program, at most: with more the work that it may take proves nothing."""
WORK, SEARCH = 1.5e6, 0.3
"""Nodes of a program's search tree, times the square of its variables: some 2 seconds, but the same work on a busy
machine. Programs that look for a row and prove nothing take this share of it."""
INFEASIBLE = 2
"""The status of a program that no row fulfils."""


@dataclass(frozen=True)
class Optimum:
    """The best row that was found, None if none was, and a bound that no row of the box exceeds."""

    row: Array | None
    bound: float


class ReluProgram:
    """Rows in [low, high] and the units of all layers: a unit is its pre-activation where its switch is 1, else 0."""

    def __init__(self, layers: KnownLayers, low: float, high: float) -> None:
        inputs = self._inputs = layers.inputs
        self.low, self.high, self.whole = [np.full(inputs, low)], [np.full(inputs, high)], [np.zeros(inputs)]
        self.units, self.size = np.arange(inputs), inputs
        self._rows: list[tuple[Array, Array, Array]] = []  # values, rows, columns
        self._least: list[Array] = []
        self._most: list[Array] = []
        self._count = 0
        for weight, bias, linear in layers.stack:
            self._add_layer(weight, bias, linear)

    def maximum(self, cost: Array, share: float = 1.0) -> Optimum:
        """The row with the largest ``cost @ activations`` of the last layer, with a ``share`` of the work at most."""
        nodes = max(1, int(share * WORK / self.size**2))
        costs = np.zeros(self.size)
        costs[self.units] = -cost
        bounds = Bounds(np.concatenate(self.low), np.concatenate(self.high))
        with silent_libraries():
            solved = milp(
                costs, constraints=self._constraints(), bounds=bounds, integrality=np.concatenate(self.whole),
                options={"node_limit": nodes},
            )  # fmt: skip
        if solved.status == INFEASIBLE:
            return Optimum(None, -np.inf)
        bound = np.inf if solved.mip_dual_bound is None else -float(solved.mip_dual_bound)
        return Optimum(None if solved.x is None else np.asarray(solved.x[: self._inputs]), bound)

    def keep_above(self, row: Array, least: float) -> None:
        """Only rows at which ``row @ activations`` of the last layer is at least this much."""
        self._constrain(np.array([0]), row[None], self.units[None], np.array([least]), np.array([np.inf]))

    def keep_on(self, unit: int) -> None:
        """Only rows at which this unit of the last layer is on, or just comes on."""
        self.low[-1][unit] = 1.0

    def _add_layer(self, weight: Array, bias: Array, linear: Array) -> None:
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
        self._constrain(every, terms, columns, bias, np.where(linear, bias, np.inf))
        switched = np.concatenate([terms, -down[:, None]], axis=1)
        self._constrain(every, switched, np.concatenate([columns, switches[:, None]], axis=1),
                       np.full(h, -np.inf), bias - down)  # fmt: skip
        relu = np.flatnonzero(~linear)
        self._constrain(np.arange(len(relu)), np.stack([np.ones(len(relu)), -up[relu]], axis=1),
                       np.stack([units[relu], switches[relu]], axis=1), np.full(len(relu), -np.inf),
                       np.zeros(len(relu)))  # fmt: skip
        self.units = units

    @property
    def _reach(self) -> tuple[Array, Array]:
        """Bounds of the units of the last layer."""
        place = -1 if len(self.low) == 1 else -2
        return self.low[place], self.high[place]

    def _constrain(self, rows: Array, terms: Array, columns: Array, least: Array, most: Array) -> None:
        """least <= sum of terms [m, k] times variables [m, k] <= most, for each of the rows."""
        self._rows.append((terms.reshape(-1), np.repeat(rows + self._count, terms.shape[1]), columns.reshape(-1)))
        self._least.append(least)
        self._most.append(most)
        self._count += len(rows)

    def _constraints(self) -> LinearConstraint:
        values, rows, columns = (np.concatenate(part) for part in zip(*self._rows, strict=True))
        matrix = coo_array((values, (rows, columns)), shape=(self._count, self.size)).tocsc()
        return LinearConstraint(matrix, np.concatenate(self._least), np.concatenate(self._most))


def typical_size(samples: Array) -> float:
    """The largest coordinate of a typical sample [n, dim]."""
    return float(np.median(np.abs(samples).max(axis=1)))


def box_program(space: QuerySpace, layers: KnownLayers, typical: float, box: float) -> ReluProgram:
    """The program of ``layers`` with rows up to ``box`` times as large as typical ones, in units of ``typical``."""
    biases = tuple(bias / typical for bias in layers.biases)
    scaled = KnownLayers(layers.inputs, layers.weights, biases, layers.linear)
    return ReluProgram(scaled, 0.0 if space.positive else -box, box)

"""The domain that a copy of trees is claimed on: a box, and in every column the numbers that may be asked.

A column that is whole in all example rows is asked whole numbers only. Other columns are asked float64 numbers, or
float32 numbers where the target rounds to them (or takes no others): between two neighbours of that lattice no
threshold can be told apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from divulge.core.errors import InvalidInput
from divulge.oracles.base import Oracle
from divulge.oracles.rows import as_rows, check_finite_rows

Array = NDArray[np.float64]
GAUSSIAN = 4.0
"""Standard deviations that the domain reaches where no example rows are given."""
BEYOND = 0.25
"""How far the domain goes beyond the example rows, in lengths of their range: the rows may be a part of the data."""
FINEST = {True: 2.0**-40, False: 2.0**-60}
"""Distance between two numbers, in lengths of the range, that is not divided further (by ``single``)."""


@dataclass(frozen=True)
class Domain:
    """A box [low, high] and the lattice of numbers in it."""

    low: Array
    high: Array
    whole: NDArray[np.bool_]
    """Columns of whole numbers."""
    single: bool
    """Whether numbers are rounded to float32."""
    rows: Array | None = None
    """Example rows."""

    @staticmethod
    def of(oracle: Oracle, inputs: Any) -> Domain:
        """The domain of example rows; without any, a box around the origin."""
        single = oracle.dtype == torch.float32
        d = oracle.input_dim
        if inputs is None:
            edge = np.full(d, GAUSSIAN)
            return Domain(-edge, edge, np.zeros(d, dtype=bool), single)
        rows = check_finite_rows(as_rows(inputs, d, torch.float64, torch.device("cpu"))).numpy()
        if len(rows) < 2:
            raise InvalidInput("inputs are rows like the target's data, at least two; got one.")
        low, high = rows.min(axis=0), rows.max(axis=0)
        whole = (rows == np.round(rows)).all(axis=0)
        more = np.where(whole, 0.0, BEYOND * np.where(high > low, high - low, np.maximum(np.abs(low), 1.0)))
        return Domain(low - more, high + more, whole, single, rows).on_lattice()

    def on_lattice(self) -> Domain:
        """The same with its corners on the lattice."""
        return replace(self, low=self.rounded(self.low), high=self.rounded(self.high))

    def in_single(self) -> Domain:
        """The same with numbers rounded to float32."""
        return replace(self, single=True).on_lattice()

    def rounded(self, X: Array) -> Array:
        """The nearest points of the lattice."""
        X = X.astype(np.float32).astype(np.float64) if self.single else X
        return np.asarray(np.where(self.whole, np.round(X), X))

    def above(self, j: int, number: float) -> float:
        """The next number of the lattice in a column."""
        if self.whole[j]:
            return number + 1
        return float(
            np.nextafter(np.float32(number), np.float32(np.inf)) if self.single else np.nextafter(number, np.inf)
        )

    def middle(self, j: NDArray[np.int64], a: Array, b: Array) -> tuple[Array, NDArray[np.bool_]]:
        """Numbers between a and b in the columns j, and where there are none that matter."""
        whole = self.whole[j]
        between = a + (b - a) / 2
        between = between.astype(np.float32).astype(np.float64) if self.single else between
        between = np.where(whole, np.floor((a + b) / 2), between)
        close = np.abs(b - a) <= FINEST[self.single] * (self.high - self.low)[j]
        done = np.where(whole, np.abs(b - a) <= 1, close | (between == a) | (between == b))
        return between, done

    def draw(self, n: int, rng: np.random.Generator) -> Array:
        """Rows of the box, uniform."""
        return self.rounded(rng.uniform(self.low, self.high, (n, len(self.low))))

    def typical(self, n: int, rng: np.random.Generator) -> Array:
        """Rows as they come: example rows with some entries of others; uniform ones where there are none."""
        if self.rows is None:
            return self.draw(n, rng)
        d = len(self.low)
        mixed = self.rows[rng.integers(len(self.rows), size=(n, d)), np.arange(d)]
        keep = rng.random((n, d)) < rng.random((n, 1))
        return self.rounded(np.where(keep, self.rows[rng.integers(len(self.rows), size=n)], mixed))

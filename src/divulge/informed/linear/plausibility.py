"""Which of several records that explain a model equally well can be excluded, because no record can look like that.

Three tests, each on the record in the units of the known rows: declared bounds, columns that hold whole numbers only,
and columns that hold a few known values only. A test is applied to a column only where the attack is precise enough
there to fail it. Whatever the known rows merely make improbable is not excluded: the wrong root of Balle 2022,
Theorem 8, is often the more probable one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from divulge.informed.linear.models import Array

_MOST_VALUES = 12  # different values of a column that still counts as categories
_REPEATS = 5  # how often each must occur on average
_DEVIATIONS = 6  # of the expected error, which a value may be off
_COARSEST = 0.1  # of the step between allowed values: a larger expected error tells nothing


@dataclass(frozen=True)
class Plausibility:
    """What the known rows [n, d] say a record can look like."""

    known: Array
    bounds: tuple[float, float] | None

    def excluded(self, x: Array, error: Array) -> str:
        """Why the row ``x`` [d], expected to be off by ``error`` [d], can be no record; empty where it may be one."""
        slack = _DEVIATIONS * error + 1e-9 * np.abs(self.known).max(axis=0)
        if self.bounds is not None:
            low, high = self.bounds
            if bool(((x < low - slack) | (x > high + slack)).any()):
                return "out of bounds"
        for column in range(self.known.shape[1]):
            allowed = self._nearest_allowed(column, float(x[column]))
            if allowed is None:
                continue
            value, step = allowed
            if slack[column] <= _COARSEST * step and abs(x[column] - value) > slack[column]:
                return f"column {column} holds no such value"
        return ""

    def _nearest_allowed(self, column: int, x: float) -> tuple[float, float] | None:
        """The nearest value that the column may hold and the step between such values; None for any number."""
        values = np.unique(self.known[:, column])
        if len(values) < 2:
            return None  # a constant column may be one that the unknown record alone fills
        if len(values) <= _MOST_VALUES and len(self.known) >= _REPEATS * len(values):
            return float(values[np.abs(values - x).argmin()]), float(np.diff(values).min())
        if bool((self.known[:, column] == np.round(self.known[:, column])).all()):
            return float(np.round(x)), 1.0
        return None

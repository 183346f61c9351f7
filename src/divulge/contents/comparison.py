"""Rows that stand in a model beside the rows of the training data: which are equal, to rounding.

Rows are equal if every column is, to a millionth of its spread or the rounding of float32, whichever is more. Equal
rows are found by one random projection: rows that are equal have neighbouring projections.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from divulge.contents.result import Holding

SPREAD, ROUNDING = 1e-6, 4 * float(np.finfo(np.float32).eps)
_NEIGHBOURS = 2
"""Training rows on each side, by projection, that a row is compared with."""


_SAMPLED = 10_000
"""Training rows, about, that show how far a column spreads."""


class TrainingRows:
    """The training inputs, to compare rows with: an array of numbers, or a table of mixed columns."""

    def __init__(self, inputs: object) -> None:
        frame = inputs.detach().cpu().numpy() if hasattr(inputs, "detach") else inputs
        table = np.asarray(frame)
        self.table = table.reshape(len(table), -1)
        self.numbers = _as_numbers(self.table)

    @property
    def width(self) -> int:
        """Columns."""
        return int(self.table.shape[1])

    def equal(self, rows: NDArray[Any]) -> NDArray[np.bool_]:
        """Which of the rows [m, d] equal a training row; columns that are unknown (NaN) are left out."""
        if self.numbers is None or rows.dtype == object:
            return _equal_as_text(rows, self.table)
        known = ~np.isnan(rows).all(axis=0)
        if known.all():  # a large table is not copied
            return _equal_numbers(rows, self.numbers)
        return _equal_numbers(rows[:, known], self.numbers[:, known])

    def holders(self, column: int, value: object) -> int:
        """How many records have this value in this column."""
        return int((self.table[:, column] == value).sum())

    def shuffled(self, seed: int = 0) -> TrainingRows:
        """The same columns, each in an order of its own: rows that are equal to these are equal by chance."""
        draw = np.random.default_rng(seed)
        return TrainingRows(np.stack([draw.permutation(column) for column in self.table.T], axis=1))


def compared(holding: Holding, known: TrainingRows | None) -> Holding:
    """The holding with how many of its rows are training rows; if none is, the rows are not verbatim."""
    if known is None or holding.rows is None or holding.in_training_data is not None:
        return holding
    if holding.rows.shape[1] != known.width:
        return holding
    equal = int(known.equal(holding.rows).sum())
    return replace(holding, in_training_data=equal, verbatim=equal > 0)


def found_by_comparing(where: str, array: NDArray[Any], known: TrainingRows) -> Holding | None:
    """A holding, if rows of this array are training rows, more of them than chance explains."""
    if array.ndim < 2 or array.size == 0 or known.numbers is None or known.width < 2:
        return None
    if int(np.prod(array.shape[1:])) != known.width or not np.issubdtype(array.dtype, np.number):
        return None
    rows = np.asarray(array, dtype=np.float64).reshape(len(array), -1)
    if np.isnan(rows).any():
        return None
    equal = known.equal(rows) & (rows != rows[:, :1]).any(axis=1)
    by_chance = int(known.shuffled().equal(rows[equal]).sum()) if equal.any() else 0
    if int(equal.sum()) <= 2 * by_chance:
        return None
    return Holding(
        where, "records", int(equal.sum()), f"{int(equal.sum()):,} of its {len(rows):,} rows equal a training row.",
        rows[equal], verbatim=True, in_training_data=int(equal.sum()),
    )  # fmt: skip


def _as_numbers(table: NDArray[Any]) -> NDArray[np.float64] | None:
    try:
        return table.astype(np.float64, copy=False)
    except (TypeError, ValueError):
        return None


def _equal_numbers(rows: NDArray[Any], training: NDArray[np.float64]) -> NDArray[np.bool_]:
    if len(rows) == 0 or len(training) == 0 or rows.shape[1] == 0:
        return np.zeros(len(rows), dtype=bool)
    rows = np.asarray(rows, dtype=np.float64)
    some = training[:: max(1, len(training) // _SAMPLED)]
    spread = some.std(axis=0)
    tolerance = np.maximum(SPREAD * spread, ROUNDING * np.maximum(np.abs(some).max(axis=0), np.abs(rows)))
    unit = np.where(spread > 0, spread, 1.0)
    direction = np.random.default_rng(0).standard_normal(rows.shape[1]) / unit
    places = training @ direction
    order = np.argsort(places)
    at = np.searchsorted(places[order], rows @ direction)
    found = np.zeros(len(rows), dtype=bool)
    for offset in range(-_NEIGHBOURS, _NEIGHBOURS):
        candidates = training[order[np.clip(at + offset, 0, len(order) - 1)]]
        found |= (np.abs(candidates - rows) <= tolerance).all(axis=1)
    return found


def _equal_as_text(rows: NDArray[Any], training: NDArray[Any]) -> NDArray[np.bool_]:
    known = {tuple(map(_text, row)) for row in training}
    return np.array([tuple(map(_text, row)) in known for row in rows], dtype=bool)


def _text(value: object) -> str:
    return f"{float(value):.6g}" if isinstance(value, int | float | np.number) else str(value)

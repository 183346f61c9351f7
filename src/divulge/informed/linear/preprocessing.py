"""The steps of a Pipeline in front of a linear model, and the way back through them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from divulge.core.errors import UnsupportedModel
from divulge.informed.linear.models import Array
from divulge.informed.linear.scale import column_spread
from divulge.oracles.local.sklearn_steps import UNCHANGED

_COMES_BACK = 1e-3  # of a column's spread: what a known row may be off after all steps there and back
_LEAK = "the fitted StandardScaler alone gives the record away: n * mean - sum of the known rows"


@dataclass(frozen=True)
class Preprocessing:
    """The known rows, the model's features of a row, and the row of features."""

    known: Array
    """The known rows, in their own units [n, d]."""
    forward: Callable[[Array], Array]
    """Rows [m, d] to the model's features."""
    back: Callable[[Array], Array]
    """Features of one row to the row."""
    notes: tuple[str, ...] = ()
    from_scaler: Array | None = None
    """The record as the scaler's mean gives it away."""
    loss: Array | None = None
    """The mean squared error [d], in units of each column's spread, of the known rows there and back; None for none."""

    @property
    def lost(self) -> list[int]:
        """The columns that do not come back: a step selects, projects or bins, or its inverse is not its inverse."""
        return [] if self.loss is None else np.flatnonzero(self.loss > _COMES_BACK**2).tolist()

    @cached_property
    def scale(self) -> Array:
        """The unit of each column: its spread over the known rows [d]."""
        return column_spread(self.known)

    @property
    def scaler_error(self) -> float:
        """The error that rounding leaves of the scaler's record, in units of each column's spread."""
        return float(scaler_rounding(self.known).mean())

    @classmethod
    def of(cls, steps: list[tuple[str, Any]], X: Array) -> Preprocessing:
        """From the steps of a fitted Pipeline, without its last one."""
        steps = [(name, step) for name, step in steps if step is not None and step != "passthrough"]
        for name, step in steps:
            if not (hasattr(step, "inverse_transform") or _only_fills(step)):
                raise UnsupportedModel(
                    f"The pipeline's step {name!r} ({type(step).__name__}) cannot be undone; give the last step itself "
                    "with the known rows already transformed, to get the record in its features."
                )

        def forward(rows: Array) -> Array:
            for _, step in steps:
                rows = np.asarray(step.transform(rows), dtype=np.float64)
            return rows

        def undone(rows: Array) -> Array:
            for _, step in reversed(steps):
                rows = rows if _only_fills(step) else np.asarray(step.inverse_transform(rows), dtype=np.float64)
            return rows

        def back(row: Array) -> Array:
            first: Array = undone(row[None])[0]
            return first

        leak = scaler_record(steps[0][1], X) if steps else None
        loss = np.square((undone(forward(X)) - X) / column_spread(X)).mean(axis=0) if steps else None
        return cls(X, forward, back, () if leak is None else (_LEAK,), leak, loss)


def without_gaps(steps: list[tuple[str, Any]], known: Any) -> tuple[list[tuple[str, Any]], Any]:
    """The steps after imputers that come first, and what those make of the known rows: what the model was fitted to."""
    while steps and _only_fills(steps[0][1]):
        known, steps = steps[0][1].transform(known), steps[1:]
    return steps, known


def _only_fills(step: Any) -> bool:
    """Whether a step only replaces missing values, of which known rows have none."""
    return type(step).__name__ in UNCHANGED and not getattr(step, "add_indicator", False)


def scaler_record(step: Any, X: Array) -> Array | None:
    """The unknown record from the mean of a StandardScaler that saw the known rows and one more."""
    if type(step).__name__ != "StandardScaler" or step.mean_ is None:
        return None
    seen = np.asarray(step.n_samples_seen_)
    if not np.all(seen == len(X) + 1):
        return None
    record: Array = step.mean_ * seen - X.sum(axis=0)
    return record


def scaler_rounding(X: Array) -> Array:
    """The squared error of each column [d] that rounding leaves of such a record, in units of the column's spread.

    The mean and the sum of n rows are good to n units in the last place.
    """
    off = np.finfo(float).eps * len(X) * np.abs(X).max(axis=0)
    return np.asarray(np.square(off / column_spread(X)))

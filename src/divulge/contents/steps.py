"""The steps that rows went through before a fitted part saw them, and the way back.

A step is undone only where that gives back what went in: scalers, encoders, a PCA with as many components as columns,
selections (whose dropped columns stay unknown), and imputers (which change missing values only). Through any other step
the rows stay as features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from divulge.oracles.local.sklearn_steps import EXACT, UNCHANGED, column_places


@dataclass(frozen=True)
class Step:
    """A transformer; with ``columns`` the ColumnTransformer of which a part sees these columns alone."""

    transformer: Any
    columns: Any = None


@dataclass(frozen=True)
class Undone:
    """Rows before the steps, and what could not be undone."""

    rows: NDArray[Any]
    obstacle: str = ""


def undone(rows: NDArray[Any], steps: tuple[Step, ...]) -> Undone:
    """The rows before the steps, undone from the last to the first; features from a step that has no way back."""
    for step in reversed(steps):
        if step.columns is not None:
            continue  # the rows of one part of a ColumnTransformer stay in that part's columns
        name = type(step.transformer).__name__
        try:
            rows = _before(rows, step.transformer)
        except _NoWayBack:
            return Undone(rows, f"{name} cannot be undone")
        except Exception:  # a transformer of another package, or rows that are not its own
            return Undone(rows, f"{name} did not undo them")
    return Undone(rows)


def input_columns(steps: tuple[Step, ...], width: int) -> list[int] | None:
    """The columns of the input that a part sees, one for one; None where the steps before it mix them."""
    places = list(range(width))
    for step in steps:
        if step.columns is not None:
            names = list(getattr(step.transformer, "feature_names_in_", range(len(places))))
            places = [places[place] for place in column_places(step.columns, names)]
        elif type(step.transformer).__name__ not in UNCHANGED:
            return None
    return places


class _NoWayBack(Exception):
    """This transformer loses what went in."""


def _before(rows: NDArray[Any], transformer: Any) -> NDArray[Any]:
    name = type(transformer).__name__
    if transformer is None or transformer == "passthrough":
        return rows
    if isinstance(getattr(transformer, "steps", None), list):
        for _, step in reversed(transformer.steps):
            rows = _before(rows, step)
        return rows
    if hasattr(transformer, "transformers_"):
        return _before_columns(rows, transformer)
    if name in EXACT:
        return np.asarray(transformer.inverse_transform(rows))
    if name in UNCHANGED and rows.shape[1] == transformer.n_features_in_:
        return rows
    if name == "FunctionTransformer" and transformer.func is None:
        return rows
    if name == "PCA" and transformer.n_components_ == transformer.n_features_in_:
        return np.asarray(transformer.inverse_transform(rows))
    if hasattr(transformer, "get_support"):
        kept = transformer.get_support()
        whole = np.full((len(rows), len(kept)), np.nan)
        whole[:, kept] = rows
        return whole
    raise _NoWayBack


def _before_columns(rows: NDArray[Any], transformer: Any) -> NDArray[Any]:
    """The columns that each part of a ColumnTransformer saw; those that it dropped are unknown."""
    whole = np.full((len(rows), transformer.n_features_in_), np.nan, dtype=object)
    names = list(getattr(transformer, "feature_names_in_", range(transformer.n_features_in_)))
    for name, part, columns in transformer.transformers_:
        if part == "drop" or name not in transformer.output_indices_:
            continue
        inside = _before(rows[:, transformer.output_indices_[name]], part)
        whole[:, column_places(columns, names)] = inside
    numbers = _numbers(whole)
    return whole if numbers is None else numbers


def _numbers(whole: NDArray[Any]) -> NDArray[np.float64] | None:
    try:
        return whole.astype(np.float64)
    except (TypeError, ValueError):
        return None

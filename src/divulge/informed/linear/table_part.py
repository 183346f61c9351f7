"""One transformer of a fitted ``ColumnTransformer``, and the way back from its features to the columns that it reads.

The codes of all values of a column of categories are asked from the transformer itself, so that every encoder that
works column by column is undone. Numbers go back through scalers. A column that is handed over as a list of texts (a
vectorizer's) is not rebuilt: several texts have the same words.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from divulge.informed.linear.models import Array
from divulge.informed.linear.preprocessing import scaler_record, scaler_rounding
from divulge.oracles.local.sklearn_steps import EXACT, UNCHANGED

_SAME = 1e-9  # of their size or of 1: so near, features are the same
Kept = NDArray[np.bool_]
"""Which features come back from the steps after the ColumnTransformer [f]."""


class TablePart:
    """One transformer, or pipeline of transformers, with the known rows of its columns.

    Parameters
    ----------
    transformer : transformer or None
        As it was fitted; None for columns that are passed through.
    table : DataFrame [n, c]
        The known rows of its columns.
    output : slice
        The places of its features among those of the ColumnTransformer.
    named : bool
        Whether it takes a DataFrame, or an array.
    single : bool
        Whether it takes one column as a list of values.
    """

    def __init__(self, transformer: Any, table: Any, output: slice, named: bool, single: bool) -> None:
        self.transformer, self.table, self.output, self.named, self.single = transformer, table, output, named, single
        self.names = [str(name) for name in table.columns]
        self.steps = [] if transformer is None else steps_of(transformer)

    @cached_property
    def _encoder(self) -> Any:
        return next((step for step in self.steps if hasattr(step, "categories_")), None)

    @cached_property
    def coded(self) -> list[int]:
        """The places of the columns of categories: those that are no numbers, and all of an encoder."""
        from pandas.api.types import is_bool_dtype, is_numeric_dtype

        if self.single:
            return []
        if self._encoder is not None:
            return list(range(len(self.names)))
        kinds = [self.table.iloc[:, place] for place in range(len(self.names))]
        return [place for place, own in enumerate(kinds) if not is_numeric_dtype(own) or is_bool_dtype(own)]

    @cached_property
    def _numeric(self) -> bool:
        """Whether all columns are numbers, or true and false, to the transformer."""
        from pandas.api.types import is_numeric_dtype

        columns = (self.table.iloc[:, place] for place in range(len(self.names)))
        return not self.single and self._encoder is None and all(map(is_numeric_dtype, columns))

    @cached_property
    def _scaled(self) -> tuple[Array, Array] | None:
        """The record by the mean of a StandardScaler with nothing but imputers before it, and the known rows there."""
        if not self._numeric:
            return None
        rows: Any = self.table if self.named else self.table.to_numpy()
        for step in self.steps:
            if type(step).__name__ not in UNCHANGED:
                plain = dense(rows)
                found = None if np.isnan(plain).any() else scaler_record(step, plain)
                return None if found is None else (found, plain)
            rows = step.transform(rows)
        return None

    @property
    def from_scaler(self) -> bool:
        """Whether a scaler gives the numbers away."""
        return self._scaled is not None

    @property
    def exact(self) -> bool:
        """Whether a scaler gives the numbers away, or there are none."""
        return self.single or len(self.coded) == len(self.names) or self.from_scaler

    @property
    def rounding(self) -> float:
        """The squared error, in units of each column's spread, that rounding leaves of the scaler's numbers."""
        return 0.0 if self._scaled is None else float(scaler_rounding(self._scaled[1]).sum())

    def numbers(self, z: Array, kept: Kept) -> dict[str, float]:
        """The columns of numbers that lead to these features; none where a step cannot be undone."""
        if not self._numeric:
            return {}
        if self._scaled is not None:
            return self._by_column(self._scaled[0], np.ones(len(self._scaled[0]), dtype=bool))
        rows = z[None]
        for step in reversed(self.steps):
            kind = type(step).__name__
            if kind in UNCHANGED or (kind == "FunctionTransformer" and step.func is None):
                continue
            if kind not in EXACT:
                return {}
            rows = np.asarray(step.inverse_transform(rows), dtype=np.float64)
        return self._by_column(rows[0], kept & np.isfinite(rows[0])) if rows.shape[1] == len(kept) else {}

    def _by_column(self, row: Array, known: Kept) -> dict[str, float]:
        """Numbers by column, without those of categories; NaN where an imputer's own column says "missing"."""
        width, flagged = len(self.names), self._flagged
        if len(row) != width + len(flagged):
            return {}
        missing = {place for place, flag in zip(flagged, row[width:], strict=True) if flag > 1 / 2}
        return {
            name: float("nan") if place in missing else float(row[place])
            for place, name in enumerate(self.names)
            if place not in self.coded and known[place]
        }

    @cached_property
    def _flagged(self) -> list[int]:
        """The columns for which an imputer adds one that says "missing"."""
        indicator = getattr(self.steps[0], "indicator_", None) if self.steps else None
        return [] if indicator is None else [int(place) for place in indicator.features_]

    def imputed(self, values: dict[str, Any]) -> list[str]:
        """The columns whose value an imputer would put there, too, if it were missing."""
        from pandas.api.types import is_bool_dtype

        own = {name: values[name] for name in self.names}
        if not any(type(step).__name__ in UNCHANGED for step in self.steps) or None in own.values():
            return []
        features, found = self.code(own, np.empty(0)), []
        for place, name in enumerate(self.names):
            if own[name] != own[name] or is_bool_dtype(self.table.iloc[:, place]):  # NaN alone differs from itself
                continue
            with suppress(ValueError, TypeError):  # a column of whole numbers, or a step, that takes no gaps
                gap = self.code(own | {name: float("nan")}, features)
                found += [name] if np.allclose(gap, features, rtol=_SAME, atol=_SAME) else []
        return found

    def categories(self, z: Array, kept: Kept) -> dict[str, tuple[Any, float]]:
        """The value of each column of categories whose code is nearest, with how far it is off."""
        found = {}
        for place in self.coded:
            values, codes = self._codes[place]
            own = (codes.std(axis=0) > 0) & kept  # the features that this column moves
            away = np.linalg.norm((codes - z)[:, own], axis=1)
            best = int(away.argmin())
            gaps = np.linalg.norm((codes - codes[best])[:, own], axis=1)
            gap = float(gaps[gaps > 0].min(initial=np.inf))
            shared = int((gaps == 0).sum()) > 1  # rare values that the encoder takes together
            found[self.names[place]] = None if shared else values[best], float(away[best]) / gap
        return found

    @cached_property
    def _codes(self) -> dict[int, tuple[list[Any], Array]]:
        """For each column of categories its values, None for one that the encoder does not know, and their features."""
        import pandas as pd

        found = {}
        for place in self.coded:
            column = self.table.iloc[:, place]
            values = [float("nan") if pd.isna(value) else value for value in column.unique()]
            codes = self._coded(place, values)
            if self._encoder is not None:
                listed = [float("nan") if pd.isna(value) else value for value in self._encoder.categories_[place]]
                if self._encoder is self.steps[0]:
                    values = [value if _holds(listed, value) else None for value in values]
                more = [value for value in listed if not _holds(values, value)]
                if more:
                    added = self._coded(place, more)
                    new = ~(added[:, None] == codes[None]).all(axis=2).any(axis=1)  # not what an imputer puts in
                    new |= self._encoder is self.steps[0]
                    values += [value for value, fresh in zip(more, new, strict=True) if fresh]
                    codes = np.concatenate([codes, added[new]])
            found[place] = values, codes
        return found

    def _coded(self, place: int, values: list[Any]) -> Array:
        """The features of the first known row with each of these values in one column."""
        import pandas as pd
        from pandas.api.types import is_bool_dtype, is_numeric_dtype

        rows = self.table.iloc[[0] * len(values)].reset_index(drop=True)
        column = rows.iloc[:, place]
        numbers = is_numeric_dtype(column) and not is_bool_dtype(column)
        rows[rows.columns[place]] = pd.Series(values, dtype=None if numbers else object)
        return self._forward(rows)

    def code(self, values: dict[str, Any], otherwise: Array) -> Array:
        """The features of these values; ``otherwise`` where one of them is not known."""
        if any(value is None for value in values.values()):
            return otherwise
        rows = self.table.iloc[[0]].astype(object)
        for place, value in enumerate(values.values()):
            rows.iloc[0, place] = value
        rows = rows.astype({name: self.table[name].dtype for k, name in enumerate(rows) if k in self.coded})
        features: Array = self._forward(rows)[0]
        return features

    def _forward(self, rows: Any) -> Array:
        rows = rows if self.named else rows.to_numpy()
        return dense(rows if self.transformer is None else self.transformer.transform(rows))


def _holds(values: list[Any], value: Any) -> bool:
    """Whether a value is among others, one that is missing included."""
    return value in values or (value != value and any(other != other for other in values))


def steps_of(transformer: Any) -> list[Any]:
    """The steps of a pipeline inside a ColumnTransformer, or the transformer alone."""
    if isinstance(getattr(transformer, "steps", None), list):
        return [step for _, step in transformer.steps if step is not None and step != "passthrough"]
    return [transformer]


def all_inside(transformer: Any) -> Iterator[Any]:
    """A transformer and every one inside it: of pipelines, unions and other ColumnTransformers."""
    yield transformer
    for parts in ("steps", "transformer_list", "transformers_"):
        for part in getattr(transformer, parts, ()):
            yield from all_inside(part[1])


def dense(features: Any) -> Array:
    """Features as an array of numbers, NaN for what is missing."""
    if hasattr(features, "iloc"):  # a DataFrame of pandas
        return np.asarray(features.to_numpy(dtype=np.float64, na_value=np.nan))
    return np.asarray(features.toarray() if hasattr(features, "toarray") else features, dtype=np.float64)

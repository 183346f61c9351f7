"""A record of a table of mixed columns, from the features that a fitted ``ColumnTransformer`` makes of it.

The insider solves for the record's features (``divulge.informed.glm``); here they become a row of the table again. A
column of categories takes the value whose code is nearest: the codes of all its values are asked from the transformer
itself, so that every encoder that works column by column is undone. A column of numbers goes back through its scaler.
Where that is a ``StandardScaler`` that saw the record, ``n * mean - sum of the known rows`` gives the number to
rounding, whatever the model's solver left over.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from divulge.core.errors import MissingPackage, UnsupportedModel, WrongShape
from divulge.informed.linear.models import Array
from divulge.informed.linear.preprocessing import scaler_record, scaler_rounding
from divulge.informed.linear.scale import column_spread
from divulge.informed.result import Record
from divulge.oracles.local.sklearn_steps import EXACT, UNCHANGED, column_places

_NEAR = 0.25  # of the distance to the next value's code: what is nearer is that value without doubt
_AGREE = 0.5  # of a feature's spread, or
_DEVIATIONS = 6  # of the error that the equations expect, if that is less: so near, they confirm a scaler's number
_ROUNDING = 1e-6  # of a feature's spread


@dataclass(frozen=True)
class _Row:
    """A row of the table, as one solution of the equations gives it."""

    values: dict[str, Any]
    """By column; None where the model does not read the column, or does not tell its values apart."""
    features: Array
    """The features of this row, as far as its values are known; those of the solution elsewhere."""
    doubt: float
    """The largest distance of a category's features from their code, in distances to the next code."""
    exact: bool
    """Whether every number comes from the mean of a scaler."""


class TableColumns:
    """The known rows of a table, their features, and the way back.

    Parameters
    ----------
    transformer : ColumnTransformer
        The fitted first step of the pipeline.
    known : DataFrame [n, d] or array [n, d]
        All training rows but the unknown one.
    """

    def __init__(self, transformer: Any, known: Any) -> None:
        try:
            import pandas as pd
        except ImportError as error:
            raise MissingPackage("A table of mixed columns needs pandas; install divulge[tables].") from error
        self.named = hasattr(transformer, "feature_names_in_")
        table = known if isinstance(known, pd.DataFrame) else pd.DataFrame(np.asarray(known))
        if table.shape[1] < transformer.n_features_in_:
            raise WrongShape(
                f"The model takes {transformer.n_features_in_} columns; the known rows have {table.shape[1]}."
            )
        if self.named:
            names = list(transformer.feature_names_in_)
            if table is not known:
                table.columns = names  # an array has them in the same order
            lost = [str(name) for name in names if name not in table.columns]
            if lost:
                raise WrongShape(f"The known rows lack the columns {', '.join(lost)}.")
            table = table[names]
        if any(
            type(step).__name__ == "TargetEncoder" for _, part, _ in transformer.transformers_ for step in _steps(part)
        ):
            raise UnsupportedModel(
                "A TargetEncoder gives training rows other features than it gives to the same rows later (it fits in "
                "folds), so that the insider's equations cannot be written down."
            )
        self.transformer, self.table = transformer, table
        self.features = _dense(transformer.transform(self._given(table)))

    def _given(self, rows: Any) -> Any:
        return rows if self.named else rows.to_numpy()

    @cached_property
    def _parts(self) -> list[_Part]:
        names, parts = list(self.table.columns), []
        for name, part, columns in self.transformer.transformers_:
            places = column_places(columns, names)
            output = self.transformer.output_indices_.get(name, slice(0, 0))
            if not isinstance(part, str) and places and output.stop > output.start:
                parts.append(_Part(part, self.table.iloc[:, places], output, self.named))
            elif part == "passthrough" and places:
                parts.append(_Part(None, self.table.iloc[:, places], output, self.named))
        return parts

    def record(self, found: Record) -> Record:
        """What was found in features, as a row of the table; the solution whose categories are clearest is taken."""
        solutions = [(found.x, found.y), *((one.x, one.y) for one in found.candidates[1:])]
        rows = [self._row(x.numpy()) for x, _ in solutions]
        spread = column_spread(self.features)
        away = [
            float(np.square((x.numpy() - row.features) / spread).mean())
            for (x, _), row in zip(solutions, rows, strict=True)
        ]
        best = int(np.argmin(away))
        row, notes = rows[best], [*found.notes]
        unread = [name for name, value in row.values.items() if value is None]
        if unread:
            notes.append(f"not rebuilt, as the model does not tell their values apart: {', '.join(unread)}")
        record = dataclasses.replace(found, row=row.values, notes=tuple(notes), scale=torch.from_numpy(spread))
        if row.doubt > _NEAR:
            reason = found.reason or "the equations' features lie between the codes of two values of a column"
            return dataclasses.replace(record, trusted=False, reason=reason)
        apart = float(np.abs((solutions[best][0].numpy() - row.features) / spread).max())
        if not row.exact:
            return record
        if apart > min(_AGREE, _DEVIATIONS * math.sqrt(found.predicted_error) + _ROUNDING):
            reason = found.reason or "the scaler's mean and the model's equations give different numbers"
            return dataclasses.replace(record, trusted=False, reason=reason)
        return dataclasses.replace(
            record, x=torch.from_numpy(row.features), y=solutions[best][1], trusted=True, reason="",
            candidates=(), predicted_error=self._rounding, notes=(*notes, _FROM_MEANS),
        )  # fmt: skip

    def _row(self, x: Array) -> _Row:
        values: dict[str, Any] = {str(name): None for name in self.table.columns}
        features, doubts, exact = x.copy(), [0.0], []
        for part in self._parts:
            values |= part.numbers(x[part.output])
            for name, (value, doubt) in part.categories(x[part.output]).items():
                values[name] = value
                doubts.append(doubt)
            features[part.output] = part.code({name: values[name] for name in part.names}, x[part.output])
            exact.append(part.exact)
        return _Row(values, features, max(doubts), all(exact))

    @property
    def _rounding(self) -> float:
        return float(sum(part.rounding for part in self._parts) / self.features.shape[1])


_FROM_MEANS = (
    "the numbers come from the fitted StandardScaler (n * mean - sum of the known rows) and agree with the model's "
    "equations, which give the categories"
)


class _Part:
    """One transformer, or pipeline of transformers, of a ColumnTransformer, with the known rows of its columns."""

    def __init__(self, transformer: Any, table: Any, output: slice, named: bool) -> None:
        self.transformer, self.table, self.output, self.named = transformer, table, output, named
        self.names = [str(name) for name in table.columns]
        self.steps = [] if transformer is None else _steps(transformer)

    @cached_property
    def coded(self) -> list[int]:
        """The places of the columns of categories: those that are no numbers, and all of an encoder."""
        from pandas.api.types import is_bool_dtype, is_numeric_dtype

        if any(hasattr(step, "categories_") for step in self.steps):
            return list(range(len(self.names)))
        kinds = [self.table.iloc[:, place] for place in range(len(self.names))]
        return [place for place, own in enumerate(kinds) if not is_numeric_dtype(own) or is_bool_dtype(own)]

    @cached_property
    def _from_scaler(self) -> Array | None:
        """The record's numbers by the mean of a StandardScaler with nothing but imputers before it."""
        if self.coded:
            return None
        rows: Any = self.table if self.named else self.table.to_numpy()
        for step in self.steps:
            if type(step).__name__ not in UNCHANGED:
                plain = np.asarray(rows, dtype=np.float64)
                return None if np.isnan(plain).any() else scaler_record(step, plain)
            rows = step.transform(rows)
        return None

    @property
    def exact(self) -> bool:
        """Whether a scaler gives the numbers away, or there are none."""
        return len(self.coded) == len(self.names) or self._from_scaler is not None

    @property
    def rounding(self) -> float:
        """The squared error, in units of each column's spread, that rounding leaves of the scaler's numbers."""
        return 0.0 if self._from_scaler is None else float(scaler_rounding(self.table.to_numpy(dtype=np.float64)).sum())

    def numbers(self, z: Array) -> dict[str, float]:
        """The columns of numbers that lead to these features; none where a step cannot be undone."""
        if self.coded:
            return {}
        if self._from_scaler is not None:
            return dict(zip(self.names, self._from_scaler.tolist(), strict=True))
        rows = z[None]
        for step in reversed(self.steps):
            kind = type(step).__name__
            if kind in UNCHANGED or (kind == "FunctionTransformer" and step.func is None):
                continue
            if kind not in EXACT:
                return {}
            rows = np.asarray(step.inverse_transform(rows), dtype=np.float64)
        return dict(zip(self.names, rows[0].tolist(), strict=True)) if rows.shape[1] == len(self.names) else {}

    def categories(self, z: Array) -> dict[str, tuple[Any, float]]:
        """The value of each column of categories whose code is nearest, with how far it is off."""
        found = {}
        for place in self.coded:
            values, codes = self._codes[place]
            own = codes.std(axis=0) > 0  # the features that this column moves
            away = np.linalg.norm((codes - z)[:, own], axis=1)
            best = int(away.argmin())
            gaps = np.linalg.norm(codes - codes[best], axis=1)
            gap = float(gaps[gaps > 0].min(initial=np.inf))
            shared = int((gaps == 0).sum()) > 1  # rare values that the encoder takes together
            found[self.names[place]] = None if shared else values[best], float(away[best]) / gap
        return found

    @cached_property
    def _codes(self) -> dict[int, tuple[list[Any], Array]]:
        """For each column of categories its values, the most frequent first, and the features of each."""
        found = {}
        for place in self.coded:
            column = self.table.iloc[:, place]
            values = [float("nan") if value is None else value for value in column.value_counts(dropna=False).index]
            encoders = [step for step in self.steps if hasattr(step, "categories_")]
            values += [v for step in encoders[:1] for v in step.categories_[place] if v not in values]
            rows = self.table.iloc[[0] * len(values)].reset_index(drop=True)
            rows = rows.astype({column.name: object}) if column.dtype == "category" else rows
            rows[column.name] = values
            found[place] = values, self._forward(rows)
        return found

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
        return _dense(rows if self.transformer is None else self.transformer.transform(rows))


def _steps(transformer: Any) -> list[Any]:
    """The steps of a pipeline inside a ColumnTransformer, or the transformer alone."""
    if isinstance(getattr(transformer, "steps", None), list):
        return [step for _, step in transformer.steps if step is not None and step != "passthrough"]
    return [transformer]


def _dense(features: Any) -> Array:
    return np.asarray(features.toarray() if hasattr(features, "toarray") else features, dtype=np.float64)

"""A record of a table of mixed columns, from the features that a fitted ``ColumnTransformer`` makes of it.

The insider solves for the record's features (``divulge.informed.glm``); here they become a row of the table again. A
column of categories takes the value whose code is nearest, a column of numbers goes back through its scaler
(``table_part``). Where that is a ``StandardScaler`` that saw the record, ``n * mean - sum of the known rows`` gives the
number to rounding, whatever the model's solver left over. Features that a later step drops are not compared.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from divulge.core.errors import InvalidInput, MissingPackage, UnsupportedModel, WrongShape
from divulge.informed.linear.models import Array
from divulge.informed.linear.scale import column_spread
from divulge.informed.linear.table_part import Kept, TablePart, all_inside, dense
from divulge.informed.result import Record
from divulge.oracles.local.sklearn_steps import column_places

_NEAR = 0.25  # of the distance to the next value's code: what is nearer is that value without doubt
_AGREE = 0.5  # of a feature's spread, or
_DEVIATIONS = 6  # of the error that the equations expect, if that is less: so near, they confirm a scaler's number
_ROUNDING = 1e-6  # of a feature's spread


@dataclass(frozen=True)
class _Row:
    """A row of the table, as one solution of the equations gives it."""

    values: dict[str, Any]
    """By column; None where it is not rebuilt, NaN where it is missing."""
    features: Array
    """The features of this row, as far as its values are known; those of the solution elsewhere, NaN without one."""
    doubt: float
    """The largest distance of a category's features from their code, in distances to the next code."""
    exact: bool
    """Whether every number comes from the mean of a scaler, and a solution can confirm it."""
    complete: bool
    """Whether all features are those of values that are known."""

    def away(self, x: Array, kept: Kept, spread: Array) -> Array:
        """How far the solution's features that are kept are from those of the row; infinite for no number at all."""
        return np.nan_to_num(np.abs((x - self.features) / spread)[kept], nan=np.inf)


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
        table = known
        if not isinstance(known, pd.DataFrame):
            rows = np.asarray(known, dtype=object if isinstance(known, list | tuple) else None)
            if rows.ndim != 2:
                raise WrongShape(f"The known rows come as a table or an array [n, d]; got shape {rows.shape}.")
            table = pd.DataFrame(rows).infer_objects()
        width = transformer.n_features_in_
        if table.shape[1] < width or (table.shape[1] > width and not (self.named and table is known)):
            raise WrongShape(f"The model takes {width} columns; the known rows have {table.shape[1]}.")
        if self.named:
            names = list(transformer.feature_names_in_)
            if table is not known:
                table.columns = names  # an array has them in the same order
            lost = [str(name) for name in names if name not in table.columns]
            if lost:
                raise WrongShape(f"The known rows lack the columns {', '.join(lost)}.")
            table = table[names]
        if any(type(step).__name__ == "TargetEncoder" for step in all_inside(transformer)):
            raise UnsupportedModel(
                "A TargetEncoder gives training rows other features than it gives to the same rows later (it fits in "
                "folds), so that the insider's equations cannot be written down."
            )
        self.transformer, self.table = transformer, table
        if table.empty:
            raise WrongShape("There are no known rows; the insider knows all training rows but one.")
        try:
            self.features = dense(transformer.transform(table if self.named else table.to_numpy()))
        except (ValueError, TypeError) as error:
            raise InvalidInput(f"The model's ColumnTransformer does not take the known rows: {error}") from error

    @cached_property
    def _parts(self) -> list[TablePart]:
        names, parts = list(self.table.columns), []
        for name, part, columns in self.transformer.transformers_:
            places = column_places(columns, names)
            output = self.transformer.output_indices_.get(name, slice(0, 0))
            if not places or output.stop <= output.start or part == "drop":
                continue
            own = None if isinstance(part, str) else part  # "passthrough"
            single = isinstance(columns, str | int)
            parts.append(TablePart(own, self.table.iloc[:, places], output, self.named, single))
        return parts

    def record(self, found: Record) -> Record:
        """What was found in features, as a row of the table; the solution whose categories are clearest is taken."""
        solutions = [(found.x, found.y), *((one.x, one.y) for one in found.candidates[1:])]
        kept = ~np.isin(np.arange(self.features.shape[1]), found.facts.get("lost", []))
        rows = [self._row(x.numpy(), kept) for x, _ in solutions]
        spread = column_spread(self.features)
        away = [row.away(x.numpy(), kept, spread) for (x, _), row in zip(solutions, rows, strict=True)]
        best = int(np.argmin([np.square(one).sum() for one in away]))
        row, notes = rows[best], [*found.notes, *self._notes(rows[best])]
        means = [name for part in self._parts if part.from_scaler for name in part.names]
        facts = found.facts | ({"from_means": means} if means else {})
        record = dataclasses.replace(
            found, row=row.values, notes=tuple(notes), scale=torch.from_numpy(spread), facts=facts
        )
        if row.doubt > _NEAR:
            reason = found.reason or "the equations' features lie between the codes of two values of a column"
            return dataclasses.replace(record, trusted=False, reason=reason)
        if not row.exact or not kept.any():
            return record
        if away[best].max(initial=0.0) > min(_AGREE, _DEVIATIONS * math.sqrt(found.predicted_error) + _ROUNDING):
            reason = found.reason or "the scaler's mean and the model's equations give different numbers"
            return dataclasses.replace(record, trusted=False, reason=reason)
        if row.complete:
            notes = [note for note in notes if note != f"error predicted from {found.facts['predicted_from']}"]
        notes += [_FROM_MEANS] if means else []
        return dataclasses.replace(
            record, x=torch.from_numpy(row.features), y=solutions[best][1], trusted=True, reason="", candidates=(),
            predicted_error=max(self._rounding, 0.0 if row.complete else found.predicted_error), notes=tuple(notes),
        )  # fmt: skip

    def _row(self, x: Array, kept: Kept) -> _Row:
        values: dict[str, Any] = {str(name): None for name in self.table.columns}
        features, doubts, exact, complete = np.where(kept, x, np.nan), [0.0], [], True
        for part in self._parts:
            z, own = x[part.output], kept[part.output]
            found: dict[str, Any] = dict.fromkeys(part.names) | part.numbers(z, own)
            for name, (value, doubt) in part.categories(z, own).items():
                found[name] = value
                doubts.append(doubt)
            features[part.output] = part.code(found, features[part.output])
            exact.append(part.exact and (own.any() or not part.from_scaler))
            complete &= None not in found.values()
            values |= {name: value for name, value in found.items() if value is not None}
        return _Row(values, features, max(doubts), all(exact), complete)

    def _notes(self, row: _Row) -> list[str]:
        notes = []
        unread = [name for name, value in row.values.items() if value is None]
        if unread:
            notes.append(f"{_NOT_REBUILT}: {', '.join(unread)}")
        imputed = dict.fromkeys(name for part in self._parts for name in part.imputed(row.values))
        if imputed:
            notes.append(f"may be what an imputer puts in place of a missing value: {', '.join(imputed)}")
        return notes

    @property
    def _rounding(self) -> float:
        return float(sum(part.rounding for part in self._parts) / self.features.shape[1])


_NOT_REBUILT = (
    "not rebuilt, as the model does not read the column, takes its values together, or has a step that cannot be undone"
)
_FROM_MEANS = (
    "the numbers come from the fitted StandardScaler (n * mean - sum of the known rows); the model's equations agree"
)

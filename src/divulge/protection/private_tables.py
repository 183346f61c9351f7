"""Private training for tables of mixed columns: features that need no look at a private record, and a logistic model.

A pipeline's own encoder learns its categories, and its scaler the means, from the records, so both give them away. Here
every category that may occur is declared beforehand and becomes a feature of 0 and 1, as does "missing"; numbers are
scaled by declared ranges. The unseen records stand in for what is publicly known. A category that they do not have is
coded as none of the known ones, a missing number as the middle of the range. What is left to protect are the weights
(``divulge.training.private.logistic``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.pipeline import Pipeline

from divulge.core.errors import DivulgeError, InvalidInput
from divulge.informed import glm
from divulge.oracles.local.sklearn_steps import coded_columns
from divulge.oracles.local.table_view import MISSING, TableView, is_mixed
from divulge.oracles.local.viewed_estimator import ViewedEstimator
from divulge.protection.private_training import OfPipeline, Sides, spread
from divulge.training.private.logistic import PrivateEstimator

Array = NDArray[np.float64]


class TableCoding(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Rows of a table's numeric view as features: numbers as they are, and one of 0 or 1 for each category.

    Parameters
    ----------
    view : TableView
        Which number stands for which value.
    public : array [m, d]
        Rows of the view whose categories count as known beforehand.
    """

    def __init__(self, view: TableView, public: Array) -> None:
        self.view = view
        self.public = public

    @property
    def n_features_in_(self) -> int:
        return self.view.width

    def fit(self, X: Any = None, y: Any = None) -> TableCoding:
        """Nothing is learned from records."""
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def transform(self, X: Any) -> Array:
        """The features [n, f] of rows [n, d] of the view."""
        rows = np.asarray(X, dtype=np.float64)
        return np.concatenate([self._coded(place, rows[:, place]) for place in range(self.view.width)], axis=1)

    def inverse_transform(self, features: Any) -> Array:
        """The rows of the view whose features are nearest."""
        values, columns, start = np.asarray(features, dtype=np.float64), [], 0
        for place, column in enumerate(self.view.columns):
            if column.categories:
                known = self._known(place)
                columns.append(known[values[:, start : start + len(known)].argmax(axis=1)])
                start += len(known)
                continue
            flagged = self._some_missing(place)
            absent = flagged and values[:, start + 1] > 1 / 2
            columns.append(np.where(absent, MISSING, values[:, start]))
            start += 2 if flagged else 1
        return np.stack(columns, axis=1)

    @property
    def ranges(self) -> Array:
        """The declared range of each feature [f, 2]: of numbers those of the public rows, of the others 0 to 1."""
        found: list[tuple[float, float]] = []
        for place, column in enumerate(self.view.columns):
            if column.categories:
                found += [(0.0, 1.0)] * len(self._known(place))
            else:
                found += [self._range(place), *([(0.0, 1.0)] if self._some_missing(place) else [])]
        return np.array(found)

    def _range(self, place: int) -> tuple[float, float]:
        """Of the public rows, at least one of the column's own units wide; a column without any starts at 0."""
        column, own = self.view.columns[place], self.public[:, place]
        present = own[~self._absent(place, own)]
        one = 1 / (column.high - column.low)
        low, high = (float(present.min()), float(present.max())) if len(present) else (-column.low * one,) * 2
        return low, high if high > low else low + one

    def _absent(self, place: int, own: Array) -> NDArray[np.bool_]:
        return own < MISSING / 2 if self.view.columns[place].missing else np.zeros(len(own), dtype=bool)

    def _some_missing(self, place: int) -> bool:
        """Whether public rows miss a number, so that it counts as known beforehand that some do."""
        return bool(self._absent(place, self.public[:, place]).any())

    def _known(self, place: int) -> Array:
        return np.unique(self.public[:, place])

    def _coded(self, place: int, own: Array) -> Array:
        column = self.view.columns[place]
        if column.categories:
            return np.isclose(own[:, None], self._known(place)[None]).astype(np.float64)
        absent = self._absent(place, own)
        numbers = np.where(absent, np.mean(self._range(place)), own)
        return np.column_stack([numbers, absent]) if self._some_missing(place) else numbers[:, None]


@dataclass(frozen=True)
class OfTable(OfPipeline):
    """A pipeline that ends in a logistic regression and takes a table of mixed columns, by output perturbation."""

    coding: TableCoding | None = None

    def _features(self, X: Array) -> Array:
        assert self.coding is not None
        return self.coding.transform(X)

    def _row(self, features: Array) -> Array:
        assert self.coding is not None
        return np.asarray(self.coding.inverse_transform(features[None])[0])

    def _released(self, private: PrivateEstimator) -> Any:
        return Pipeline([("coding", self.coding), *private.estimator.steps])

    def _exactly(self, record: int, known: tuple[Array, Array]) -> Array:
        """The insider's attack on the pipeline as it is; columns that it does not show count as guessed by the mean."""
        X, released = self.sides.X.numpy().astype(np.float64), self._plain
        try:
            rebuilt = glm(released.estimator, released.view.decode(known[0]), known[1], refits=0)
        except DivulgeError:
            return np.full(X.shape[1], np.inf)
        names = [column.name for column in released.view.columns]
        row = dict(zip(names, rebuilt.x.tolist(), strict=True)) if rebuilt.row is None else rebuilt.row
        found = released.view.encode_record(row)
        found = np.where(np.isnan(found), known[0].mean(axis=0), found)
        return np.asarray((found - X[record]) / spread(self.sides, self.units), dtype=np.float64)


def table_training(estimator: ViewedEstimator, sides: Sides, delta: float, scaling: Any, units: Any) -> OfTable:
    """The private training of a pipeline behind the view of its table."""
    coding = TableCoding(estimator.view, sides.unseen.numpy().astype(np.float64))
    return OfTable(estimator, sides, delta, coding.ranges, scaling, units, coding)


def in_numbers(
    train: Any, members: tuple[Any, Any], unseen: tuple[Any, Any]
) -> tuple[Any, tuple[Any, Any], tuple[Any, Any]]:
    """A pipeline and the tables that it takes, in the numeric view of both; tables of numbers as arrays, if it can."""
    import pandas as pd

    names = list(members[0].columns)
    if not hasattr(unseen[0], "dtypes") or set(unseen[0].columns) != set(names):
        raise InvalidInput("Members and unseen records are tables with the same columns.")
    tables = (members[0], unseen[0][names])
    by_name = hasattr(train, "steps") and hasattr(train[0], "transformers")
    if not by_name and not any(map(is_mixed, tables)):
        return train, (members[0].to_numpy(), members[1]), (tables[1].to_numpy(), unseen[1])
    if not hasattr(train, "fit"):
        raise InvalidInput("For tables of mixed columns the price is measured for a scikit-learn pipeline.")
    view = TableView(pd.concat(tables, ignore_index=True), coded_columns(train))
    rows = [(view.encode(table), y) for table, y in zip(tables, (members[1], unseen[1]), strict=True)]
    return ViewedEstimator(train, view), rows[0], rows[1]

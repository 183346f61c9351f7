"""Private training for tables of mixed columns: features that need no look at a private record, and a logistic model.

A pipeline's own encoder learns its categories, and its scaler the means, from the records, so both give them away. Here
every category that may occur is declared beforehand and becomes a feature of 0 and 1, as does "missing"; numbers are
scaled by declared ranges. The unseen records stand in for what is publicly known. A value that they do not have is
coded as none of the known ones. What is left to protect are the weights (``divulge.training.private.logistic``).
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
from divulge.oracles.local.table_view import MISSING, TableView
from divulge.oracles.local.viewed_estimator import ViewedEstimator
from divulge.protection.private_training import OfPipeline, Sides, spread
from divulge.training.private.logistic import PrivateEstimator

Array = NDArray[np.float64]
_UNKNOWN = 0.5  # what stands for a missing number: the middle of its range


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
            absent = column.missing and values[:, start + 1] > 1 / 2
            columns.append(np.where(absent, MISSING, values[:, start]))
            start += 2 if column.missing else 1
        return np.stack(columns, axis=1)

    @property
    def ranges(self) -> Array:
        """The declared range of each feature [f, 2]: of numbers those of the public rows, of the others 0 to 1."""
        found = []
        for place, column in enumerate(self.view.columns):
            coded = self._coded(place, self.public[:, place])
            plain = 0 if column.categories else 1
            low, high = (float(getattr(coded[:, 0], end)()) for end in ("min", "max"))
            found += [(low, high if high > low else low + 1)] * plain + [(0.0, 1.0)] * (coded.shape[1] - plain)
        return np.array(found)

    def _known(self, place: int) -> Array:
        return np.unique(self.public[:, place])

    def _coded(self, place: int, own: Array) -> Array:
        column = self.view.columns[place]
        if column.categories:
            return np.isclose(own[:, None], self._known(place)[None]).astype(np.float64)
        if not column.missing:
            return own[:, None]
        absent = own < MISSING / 2
        return np.column_stack([np.where(absent, _UNKNOWN, own), absent.astype(np.float64)])


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
            row = glm(released.estimator, released.view.decode(known[0]), known[1], refits=0).row
        except DivulgeError:
            return np.full(X.shape[1], np.inf)
        assert row is not None  # its first step is a ColumnTransformer
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
    """A pipeline and the tables that it takes, in the numeric view of both."""
    import pandas as pd

    if not hasattr(train, "fit"):
        raise InvalidInput("For tables of mixed columns the price is measured for a scikit-learn pipeline.")
    if not hasattr(unseen[0], "dtypes") or list(unseen[0].columns) != list(members[0].columns):
        raise InvalidInput("Members and unseen records are tables with the same columns in the same order.")
    view = TableView(pd.concat([members[0], unseen[0]], ignore_index=True))
    rows = [(view.encode(table), np.asarray(y)) for table, y in (members, unseen)]
    return ViewedEstimator(train, view), rows[0], rows[1]

"""An estimator that takes a table of mixed columns, as one that takes the rows of numbers of its view.

So that whatever trains models again (reference models of a membership attack, private training) can train these.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.metaestimators import available_if

from divulge.oracles.local.estimator_scores import quietly
from divulge.oracles.local.table_view import TableView


def _has(method: str) -> Any:
    return available_if(lambda self: hasattr(self.estimator, method))


class ViewedEstimator(BaseEstimator):  # type: ignore[misc]
    """A pipeline behind the numeric view of its table: it is fitted to rows [n, d] of the view, and asked with them.

    Parameters
    ----------
    estimator : estimator
        Takes DataFrames of mixed columns; fitted, or to be fitted.
    view : TableView
        Which number stands for which value.
    """

    def __init__(self, estimator: Any, view: TableView) -> None:
        self.estimator = estimator
        self.view = view

    @property
    def n_features_in_(self) -> int:
        return self.view.width

    @property
    def classes_(self) -> NDArray[Any]:
        return np.asarray(self.estimator.classes_)

    def __sklearn_is_fitted__(self) -> bool:
        from sklearn.exceptions import NotFittedError
        from sklearn.utils.validation import check_is_fitted

        try:
            check_is_fitted(self.estimator)
        except NotFittedError:
            return False
        return True

    def fit(self, X: Any, y: Any) -> ViewedEstimator:
        self.estimator.fit(self.view.decode(X), y)
        return self

    def predict(self, X: Any) -> Any:
        return quietly(self.estimator.predict, self.view.decode(X))

    @_has("predict_proba")  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Any:
        return quietly(self.estimator.predict_proba, self.view.decode(X))

    @_has("decision_function")  # type: ignore[untyped-decorator]
    def decision_function(self, X: Any) -> Any:
        return quietly(self.estimator.decision_function, self.view.decode(X))

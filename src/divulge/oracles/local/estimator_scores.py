"""Asking a fitted scikit-learn estimator: which method gives its values, what they mean, and its labels.

A classifier answers with its decision function where it has one, otherwise with its probabilities. A decision function
is called "logits" only where its softmax (or sigmoid) gives the estimator's own probabilities on a few rows; otherwise
it is "scores". A regressor answers "quantities".
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from divulge.core.errors import InvalidInput, TargetError, UnsupportedModel
from divulge.oracles.base import OutputKind
from divulge.oracles.local.table_view import TableView
from divulge.oracles.local.torch_module import OUTPUTS, Probabilities

Estimator = Any  # scikit-learn's estimators share methods, not a base class: many packages have their own
_PROBE_ROWS = 16


class EstimatorScorer:
    """A fitted estimator as functions of rows [n, d]: ``values`` [n, k] and ``labels`` [n].

    ``method`` is None where the estimator has labels only. With a ``view`` the rows are decoded into a DataFrame first.
    """

    def __init__(self, estimator: Estimator, output: str | None = None, view: TableView | None = None) -> None:
        if output is not None and output not in OUTPUTS:
            raise InvalidInput(f'output is "logits", "probabilities" or "log-probabilities", not {output!r}.')
        self.estimator = estimator = fitted(estimator)
        self.view = view
        self.classes = getattr(estimator, "classes_", None)
        self.method = _score_method(estimator, output)
        self.log = output == "log-probabilities"
        self.width = view.width if view is not None else _input_width(estimator)
        self._names = getattr(estimator, "feature_names_in_", None)

    @property
    def decides_by_predict(self) -> bool:
        """Whether labels come from the estimator's ``predict`` rather than from the sign of its values."""
        return self.classes is not None

    def values(self, X: NDArray[np.float64]) -> Tensor:
        """The values [n, k]."""
        assert self.method is not None  # an oracle without a method grants labels only
        values = _columns(self._call(self.method, X))
        return values.log() if self.log else values

    def labels(self, X: NDArray[np.float64]) -> Tensor:
        """Indices into ``classes_`` [n]."""
        return _indices(self._call("predict", X), np.asarray(self.classes))

    def probe(self) -> NDArray[np.float64]:
        """A few rows to learn from: of the table's own ranges, or standard normal."""
        draw = np.random.default_rng(0)
        size = (_PROBE_ROWS, self.width)
        return draw.random(size) if self.view is not None else draw.standard_normal(size)

    def kind(self, values: Tensor | None = None) -> OutputKind:
        """What the values mean; ``values`` are those of other code for the rows of ``probe``."""
        if self.log:
            return "log-probabilities"
        if self.method == "predict_proba" and values is None:
            return "probabilities"
        if self.classes is None:
            return "quantities" if self.method == "predict" else "scores"
        if not hasattr(self.estimator, "predict_proba"):
            return "scores"
        try:
            shown = self.values(self.probe()) if values is None else values
            stated = _columns(self._call("predict_proba", self.probe()))
        except (TargetError, UnsupportedModel):
            return "scores"
        implied = Probabilities()(shown.double())
        same = implied.shape == stated.shape and bool(torch.allclose(implied, stated, atol=1e-6))
        return "logits" if same else "scores"

    def _call(self, method: str, X: NDArray[np.float64]) -> Any:
        rows = self.view.decode(X) if self.view is not None else _named(X, self._names)
        own = self.estimator.estimator if hasattr(self.estimator, "view") else self.estimator  # behind a table's view
        name = type(own).__name__
        try:
            return quietly(getattr(self.estimator, method), rows)
        except Exception as error:
            hint = "" if self.view is not None or self._names is None else (
                " If it takes a table with columns of text, pass table=, a DataFrame of example rows.")  # fmt: skip
            fault = next(iter(str(error).splitlines()), "").rstrip(".")
            raise TargetError(f"{name}.{method} failed: {type(error).__name__}: {fault}.{hint}") from error


def fitted(estimator: Estimator) -> Estimator:
    """The estimator, once it is fitted and predicts; of a finished search, the best estimator that it found."""
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    try:
        check_is_fitted(estimator)
    except NotFittedError as error:
        raise InvalidInput(f"{type(estimator).__name__} is not fitted; call its fit first.") from error
    except (AttributeError, TypeError):
        pass  # not derived from scikit-learn's classes; its first answer will tell
    estimator = getattr(estimator, "best_estimator_", estimator)
    if not hasattr(estimator, "predict"):
        raise UnsupportedModel(f"{type(estimator).__name__} does not predict; give an estimator that does.")
    return estimator


def quietly(method: Callable[[Any], Any], X: object) -> Any:
    """The method's answer without scikit-learn's warnings about column names."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*valid feature names.*")
        return method(X)


def _score_method(estimator: Estimator, output: str | None) -> str | None:
    """The method that answers values, or None where there are only labels."""
    from sklearn.base import is_clusterer, is_outlier_detector

    name = type(estimator).__name__
    has_scores, has_probabilities = hasattr(estimator, "decision_function"), hasattr(estimator, "predict_proba")
    if not hasattr(estimator, "classes_"):
        if _is(is_clusterer, estimator) or (hasattr(estimator, "labels_") and not has_scores):
            raise UnsupportedModel(f"{name} finds clusters; only classifiers and regressors can be asked.")
        if output is not None:
            raise InvalidInput(f"{name} is not a classifier, so it shows values as they are; leave output= out.")
        return "decision_function" if _is(is_outlier_detector, estimator) and has_scores else "predict"
    if output is None:
        return "decision_function" if has_scores else "predict_proba" if has_probabilities else None
    if output == "logits":
        if not has_scores:
            raise InvalidInput(f'{name} has no decision function; use output="probabilities".')
        return "decision_function"
    if not has_probabilities:
        raise InvalidInput(f'{name} gives no probabilities; use output="logits".')
    return "predict_proba"


def _is(test: Callable[[Any], bool], estimator: Estimator) -> bool:
    """scikit-learn's own test, which fails on estimators that only follow its conventions."""
    try:
        return bool(test(estimator))
    except (AttributeError, TypeError):
        return False


def _columns(answer: Any) -> Tensor:
    if isinstance(answer, list):
        raise UnsupportedModel("An estimator with several outputs, each with its own classes, cannot be asked.")
    values = torch.from_numpy(np.asarray(answer, dtype=np.float64))
    return values.reshape(len(values), -1)


def _indices(predicted: Any, classes: NDArray[Any]) -> Tensor:
    labels = np.asarray(predicted)
    if labels.ndim > 1 and labels.shape[1] > 1:
        raise UnsupportedModel("An estimator that gives one row several labels cannot be asked for the label.")
    order = np.argsort(classes)
    return torch.from_numpy(order[np.searchsorted(classes, labels.ravel(), sorter=order)])


def _input_width(estimator: Estimator) -> int:
    width = getattr(estimator, "n_features_in_", None)
    if width is None:
        raise UnsupportedModel(f"{type(estimator).__name__} does not say how many features it takes (n_features_in_).")
    return int(width)


def _named(X: NDArray[np.float64], names: Any) -> Any:
    """Rows under the column names that the estimator was fitted with, where pandas is installed."""
    if names is None:
        return X
    try:
        import pandas as pd
    except ImportError:
        return X
    return pd.DataFrame(X, columns=list(names))

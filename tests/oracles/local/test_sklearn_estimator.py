"""Fitted scikit-learn estimators: the module read from one answers as the estimator does, with exact gradients."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_selection import VarianceThreshold
from sklearn.linear_model import (
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
    RidgeClassifier,
    SGDClassifier,
)
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    PolynomialFeatures,
    RobustScaler,
    StandardScaler,
)
from sklearn.svm import SVC, LinearSVC

import divulge
from divulge import models
from divulge.core.errors import InvalidInput, TargetError, UnsupportedModel
from divulge.oracles.local.sklearn_estimator import EstimatorOracle
from divulge.oracles.local.torch_module import TorchOracle

X, y = load_digits(return_X_y=True)
X, y = X[:400], y[:400]
NAMES = np.array([f"digit {digit}" for digit in range(10)])


def fitted(estimator, targets=y, rows=X):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return estimator.fit(rows, targets)


def quick(kind, **options):
    return kind(hidden_layer_sizes=(12,), max_iter=8, random_state=0, **options)


def short(estimator):
    return " ".join(repr(estimator).split())


def finite_differences(function, rows, step=1e-4):
    """Central differences of function [n, k] along every input, [n, k, d]."""
    columns = []
    for j in range(rows.shape[1]):
        shift = np.zeros(rows.shape[1])
        shift[j] = step
        columns.append((function(rows + shift) - function(rows - shift)) / (2 * step))
    return np.stack(columns, axis=-1)


def columns(answer):
    return np.asarray(answer, dtype=float).reshape(len(X[:20]), -1)


REGRESSORS = [
    LinearRegression(),
    Ridge(alpha=2.0),
    quick(MLPRegressor),
    quick(MLPRegressor, activation="tanh"),
    quick(MLPRegressor, activation="identity"),
    make_pipeline(MinMaxScaler(), quick(MLPRegressor, activation="logistic")),
    make_pipeline(StandardScaler(with_mean=False), MaxAbsScaler(), Ridge()),
    make_pipeline(RobustScaler(), PCA(10, whiten=True), LinearRegression()),
]
SCORED = [
    LogisticRegression(max_iter=20),
    LinearSVC(max_iter=50),
    RidgeClassifier(),
    SGDClassifier(max_iter=5, random_state=0),
    make_pipeline(StandardScaler(), LogisticRegression(max_iter=20)),
    make_pipeline(VarianceThreshold(), TruncatedSVD(12), FunctionTransformer(), LogisticRegression(max_iter=20)),
    make_pipeline(make_pipeline(StandardScaler(), "passthrough"), make_pipeline(PCA(8), RidgeClassifier())),
]


@pytest.mark.parametrize("estimator", REGRESSORS, ids=short)
def test_regressors_answer_exactly_as_they_predict(estimator):
    fitted(estimator)
    oracle = divulge.oracle(estimator, access="weights")
    values, gradients = oracle.gradient(X[:20])
    np.testing.assert_allclose(values[:, 0], estimator.predict(X[:20]), rtol=1e-9, atol=1e-9)
    slopes = finite_differences(lambda rows: estimator.predict(rows)[:, None], X[:20] + 0.01)
    _, gradients = oracle.gradient(X[:20] + 0.01)
    np.testing.assert_allclose(gradients, slopes, atol=1e-5 * max(1, np.abs(slopes).max()))
    weights = oracle.weights()
    assert isinstance(weights, models.MLP)
    torch.testing.assert_close(weights(torch.from_numpy(X[:20])), values)
    assert oracle.dtype == torch.float64


@pytest.mark.slow
@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("estimator", SCORED, ids=short)
def test_linear_classifiers_answer_their_decision_function(estimator, binary):
    fitted(estimator, NAMES[y % 2 if binary else y])
    oracle = divulge.oracle(estimator, access="gradient")
    values, gradients = oracle.gradient(X[:20])
    np.testing.assert_allclose(values, columns(estimator.decision_function(X[:20])), rtol=1e-9, atol=1e-9)
    slopes = finite_differences(lambda rows: columns(estimator.decision_function(rows)), X[:20])
    np.testing.assert_allclose(gradients, slopes, atol=1e-6 * max(1, np.abs(slopes).max()))
    assert estimator.classes_[oracle.label(X)].tolist() == estimator.predict(X).tolist()


@pytest.mark.parametrize("activation", ["relu", "tanh", "logistic", "identity"])
@pytest.mark.parametrize("binary", [False, True])
def test_perceptrons_answer_logits_whose_softmax_is_their_probability(activation, binary):
    estimator = fitted(
        make_pipeline(StandardScaler(), quick(MLPClassifier, activation=activation)), y % 2 if binary else y
    )
    oracle = divulge.oracle(estimator, access="gradient", output="logits")
    logits, gradients = oracle.gradient(X[:20])
    shown = torch.cat([torch.zeros_like(logits), logits], 1) if binary else logits
    np.testing.assert_allclose(shown.softmax(1), estimator.predict_proba(X[:20]), rtol=1e-9, atol=1e-12)
    own = divulge.oracle(estimator, access="gradient")
    torch.testing.assert_close(own.gradient(X[:20]), (logits, gradients))
    assert estimator.classes_[own.label(X)].tolist() == estimator.predict(X).tolist()


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("estimator", [LogisticRegression(max_iter=20), quick(MLPClassifier)], ids=short)
def test_probabilities_come_with_their_own_gradients(estimator, binary):
    fitted(estimator, y % 2 if binary else y)
    oracle = divulge.oracle(estimator, access="gradient", output="probabilities")
    at = X[:20] + 0.01
    values, gradients = oracle.gradient(at)
    np.testing.assert_allclose(values, estimator.predict_proba(at), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(gradients, finite_differences(estimator.predict_proba, at), atol=1e-6)
    assert oracle.label(X).tolist() == estimator.predict(X).tolist()
    logs = divulge.oracle(estimator, output="log-probabilities").value(at)
    np.testing.assert_allclose(logs, np.log(estimator.predict_proba(at)), rtol=1e-6, atol=1e-9)


def test_probabilities_that_are_no_softmax_come_from_the_estimator_itself():
    estimator = fitted(SGDClassifier(loss="log_loss", max_iter=5, random_state=0))
    oracle = divulge.oracle(estimator, output="probabilities")
    assert isinstance(oracle, EstimatorOracle)
    np.testing.assert_allclose(oracle.value(X[:20]), estimator.predict_proba(X[:20]))
    with pytest.raises(UnsupportedModel, match="SGDClassifier"):
        divulge.oracle(estimator, output="probabilities", access="gradient")
    assert divulge.oracle(estimator, access="gradient").gradient(X[:2])[1].shape == (2, 10, 64)


def test_an_estimator_fitted_in_single_precision_is_read_too():
    estimator = fitted(quick(MLPRegressor))
    single = fitted(quick(MLPRegressor), rows=X.astype(np.float32))
    for one in (estimator, single):
        oracle = divulge.oracle(one, access="gradient")
        np.testing.assert_allclose(oracle.value(X[:9])[:, 0], one.predict(X[:9]), rtol=1e-5)


@pytest.mark.parametrize(
    "estimator",
    [
        RandomForestClassifier(5, random_state=0),
        SVC(),
        SVC(decision_function_shape="ovo"),
        make_pipeline(PolynomialFeatures(), LogisticRegression(max_iter=5)),
        make_pipeline(MinMaxScaler(clip=True), LogisticRegression(max_iter=5)),
    ],
    ids=short,
)
def test_other_classifiers_answer_through_their_own_methods_and_refuse_gradients(estimator):
    fitted(estimator, NAMES[y])
    oracle = divulge.oracle(estimator, batch_size=7)
    scores = estimator.decision_function if hasattr(estimator, "decision_function") else estimator.predict_proba
    np.testing.assert_allclose(oracle.value(X[:20]), scores(X[:20]))
    assert estimator.classes_[oracle.label(X)].tolist() == estimator.predict(X).tolist()
    assert oracle.ledger.total == 20 + len(X)
    for access in ("gradient", "weights"):
        with pytest.raises(UnsupportedModel):
            divulge.oracle(estimator, access=access)


def test_other_regressors_answer_values_and_decide_by_sign():
    estimator = fitted(RandomForestRegressor(5, random_state=0), y - 4.5)
    oracle = divulge.oracle(estimator)
    np.testing.assert_allclose(oracle.value(X[:9])[:, 0], estimator.predict(X[:9]))
    assert oracle.label(X[:9]).tolist() == (estimator.predict(X[:9]) > 0).astype(int).tolist()


def test_a_generalised_linear_model_is_not_taken_for_a_linear_one():
    estimator = fitted(PoissonRegressor(max_iter=5), y + 1.0)
    with pytest.raises(UnsupportedModel, match="PoissonRegressor"):
        divulge.oracle(estimator, access="gradient")
    np.testing.assert_allclose(divulge.oracle(estimator).value(X[:9])[:, 0], estimator.predict(X[:9]))


def test_a_subclass_that_answers_otherwise_is_not_taken_for_its_parent():
    class Doubled(LinearRegression):
        def predict(self, rows):
            return 2 * super().predict(rows)

    Doubled.__module__ = "sklearn.linear_model.elsewhere"
    Doubled.__name__ = "LinearRegression"
    with pytest.raises(UnsupportedModel, match="do not give its own"):
        divulge.oracle(fitted(Doubled()), access="gradient")


def test_a_multi_label_network_answers_its_probabilities_only():
    estimator = fitted(quick(MLPClassifier), np.stack([y % 2, y > 4], 1))
    with pytest.raises(UnsupportedModel, match="multi-label"):
        divulge.oracle(estimator, access="gradient")
    oracle = divulge.oracle(estimator)
    np.testing.assert_allclose(oracle.value(X[:5]), estimator.predict_proba(X[:5]))
    with pytest.raises(UnsupportedModel, match="several labels"):
        oracle.label(X[:5])


def test_a_classifier_without_scores_tells_labels_only():
    estimator = fitted(SGDClassifier(loss="hinge", max_iter=5))

    class Voter:
        """An estimator of the user's own."""

        classes_ = estimator.classes_
        n_features_in_ = 64

        def __sklearn_is_fitted__(self):
            return True

        def fit(self, rows, targets):
            return self

        def get_params(self, deep=True):
            return {}

        def predict(self, rows):
            if rows.min() < 0:
                raise RuntimeError("negative pixels")
            return estimator.predict(rows)

    with pytest.raises(UnsupportedModel, match="only labels"):
        divulge.oracle(Voter())
    oracle = divulge.oracle(Voter(), access="label")
    assert oracle.label(X).tolist() == estimator.predict(X).tolist()
    with pytest.raises(TargetError, match="negative pixels"):
        oracle.label(-X)


def test_a_finished_search_stands_for_its_best_estimator():
    search = fitted(GridSearchCV(Ridge(), {"alpha": [0.1, 1.0]}, cv=2))
    oracle = divulge.oracle(search, access="weights")
    assert isinstance(oracle, TorchOracle)
    np.testing.assert_allclose(oracle.value(X[:9])[:, 0], search.predict(X[:9]), rtol=1e-9)


def test_column_names_are_kept():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=[f"pixel {j}" for j in range(64)])
    estimators = [RandomForestClassifier(3, random_state=0).fit(frame, y), Ridge().fit(frame, y)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for estimator in estimators:
            assert len(divulge.oracle(estimator).value(X[:3])) == 3


@pytest.mark.parametrize(
    ("estimator", "options", "words"),
    [
        (Ridge(), {}, "not fitted"),
        (fitted(StandardScaler()), {}, "does not predict"),
        (fitted(KMeans(3, n_init=1)), {}, "clusters"),
        (fitted(Ridge()), {"output": "logits"}, "not a classifier"),
        (fitted(RandomForestRegressor(2)), {"output": "logits"}, "not a classifier"),
        (fitted(RandomForestClassifier(2)), {"output": "logits"}, "no decision function"),
        (fitted(LinearSVC(max_iter=5)), {"output": "probabilities"}, "no probabilities"),
        (fitted(Ridge()), {"output": "odds"}, "'odds'"),
        (fitted(Ridge()), {"input_shape": (64,)}, "input_shape="),
        (fitted(RandomForestClassifier(2), np.stack([y, y], 1)), {}, "several outputs"),
    ],
)
def test_what_an_estimator_cannot_do_is_said(estimator, options, words):
    with pytest.raises(InvalidInput, match=words):
        divulge.oracle(estimator, **options)

"""``trusted`` holds on raw tables, on degenerate ones, and without an intercept, where two records fit as well."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn import datasets as sets
from sklearn.base import clone
from sklearn.linear_model import (
    GammaRegressor,
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
    RidgeClassifier,
)

import divulge
from divulge.core.errors import AttackFailed

NEWTON = {"solver": "newton-cholesky", "max_iter": 500}


def tables() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """scikit-learn's tables as they come, and with columns that make the equations degenerate."""
    rng = np.random.default_rng(0)
    iris, wine = sets.load_iris(return_X_y=True), sets.load_wine(return_X_y=True)
    cancer = sets.load_breast_cancer(return_X_y=True)
    X, y = sets.load_diabetes(return_X_y=True, scaled=False)
    return {
        "iris": iris,
        "wine": wine,
        "breast cancer": cancer,
        "diabetes": (X, y),
        "a constant column": (np.column_stack([X, np.full(len(X), 7.0)]), y),
        "one-hot columns": (np.column_stack([X, np.eye(4)[rng.integers(0, 4, len(X))]]), y),
        "a duplicated column": (np.column_stack([X, X[:, 2]]), y),
        "collinear columns": (np.column_stack([X, X[:, 2] + X[:, 3], 2 * X[:, 0] - X[:, 4]]), y),
        "one feature": (X[:, 2:3], y),
        "classes, a column of zeros": (np.column_stack([wine[0], np.zeros(len(wine[0]))]), wine[1]),
        "classes, one-hot columns": (np.column_stack([wine[0], np.eye(3)[rng.integers(0, 3, len(wine[0]))]]), wine[1]),
        "classes, collinear": (np.column_stack([cancer[0], cancer[0][:, 3] - cancer[0][:, 2]]), cancer[1]),
        "classes, one feature": (iris[0][:, :1], iris[1]),
        "three rows": (X[:3], y[:3]),
        "eight rows of ten columns": (X[:8], y[:8]),
        "twelve rows, classes": (iris[0][::12], iris[1][::12]),
        "more columns than rows": (rng.standard_normal((20, 30)), rng.standard_normal(20)),
    }


def estimators(y: np.ndarray) -> Iterator[tuple[str, object]]:
    """Regressions for quantities and classifiers for classes; some stop short of their optimum."""
    if y.dtype.kind == "f":
        yield "linear", LinearRegression()
        yield "ridge", Ridge(1.0)
        yield "loose ridge", Ridge(1.0, solver="lsqr")
        if y.min() > 0:
            yield "poisson", PoissonRegressor(alpha=1e-2, max_iter=1000)
            yield "gamma", GammaRegressor(alpha=1e-2, **NEWTON)
        return
    yield "loose logistic", LogisticRegression(max_iter=200)
    yield "logistic", LogisticRegression(tol=1e-8, **NEWTON)
    yield "weak penalty", LogisticRegression(C=100, tol=1e-6, **NEWTON)
    yield "balanced", LogisticRegression(class_weight="balanced", tol=1e-8, **NEWTON)
    yield "ridge classifier", RidgeClassifier()
    yield "balanced ridge classifier", RidgeClassifier(class_weight="balanced")


TABLES = tables()


def spread(X: np.ndarray) -> np.ndarray:
    deviation, size = X.std(axis=0), np.abs(X).max(axis=0)
    return np.where(deviation > 1e-9 * size, deviation, np.maximum(size, 1.0))


def wrongly_trusted(record: divulge.informed.Record, X: np.ndarray, known: np.ndarray, missing: int) -> bool:
    """Trusted, and no closer to the truth than the nearest known record is, in units of each column's spread."""
    scale = spread(X[known])
    apart = np.square((X[known] - X[missing]) / scale).mean(axis=1)
    nearest = apart[apart > 1e-12].min() if (apart > 1e-12).any() else 1.0
    return record.trusted and np.square((record.x.numpy() - X[missing]) / scale).mean() >= nearest


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_no_record_of_a_raw_table_is_wrongly_trusted(name: str) -> None:
    X, y = TABLES[name]
    chosen = np.random.default_rng(1).choice(len(X), 2, replace=False)
    trusted = 0
    for which, estimator in estimators(y):
        for missing in chosen:
            known = np.arange(len(X)) != missing
            weights = np.random.default_rng(missing).uniform(0.3, 3, len(X)) if which in ("ridge", "logistic") else None
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                released = clone(estimator).fit(X, y, sample_weight=weights)
            given = {} if weights is None else {"sample_weight": weights[known], "unknown_weight": weights[missing]}
            try:
                record = divulge.informed.glm(released, X[known], y[known], **given)
            except AttackFailed:
                continue
            assert not wrongly_trusted(record, X, known, missing), (which, missing)
            if record.trusted and y.dtype.kind != "f":
                assert record.y == y[missing]
            trusted += record.trusted
    if name in ("iris", "wine", "breast cancer", "diabetes", "a constant column", "one-hot columns"):
        assert trusted >= 6  # the attack still succeeds


@pytest.mark.slow
def test_a_small_column_counts_as_much_as_a_large_one() -> None:
    """In raw units the error of proline (hundreds) hides that of hue (tenths); in units of the spread it does not."""
    X, y = TABLES["wine"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        released = LogisticRegression(max_iter=300).fit(X, y)
    record = divulge.informed.glm(released, X[1:], y[1:])
    by_hand = np.square((record.x.numpy() - X[0]) / X[1:].std(axis=0)).mean()
    assert record.error(X[0]) == pytest.approx(by_hand)
    assert record.scale.numpy() == pytest.approx(X[1:].std(axis=0))


def test_the_record_explains_the_model_by_an_independent_fit() -> None:
    """The penalised likelihood is minimised by scipy, with an intercept that is not penalised."""
    X, y = TABLES["breast cancer"]
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    released = LogisticRegression(C=0.5, tol=1e-10, **NEWTON).fit(X, y)
    record = divulge.informed.glm(released, X[1:], y[1:])
    rows, labels = np.vstack([X[1:], record.x.numpy()]), 2 * np.append(y[1:], record.y) - 1

    def objective(theta: np.ndarray) -> tuple[float, np.ndarray]:
        margins = labels * (rows @ theta[:-1] + theta[-1])
        slopes = -labels / (1 + np.exp(margins))
        gradient = np.append(rows.T @ slopes + theta[:-1] / 0.5, slopes.sum())
        return float(np.logaddexp(0, -margins).sum() + theta[:-1] @ theta[:-1] / 1.0), gradient

    fit = minimize(objective, np.zeros(X.shape[1] + 1), jac=True, method="BFGS", options={"gtol": 1e-9})
    assert np.append(released.coef_[0], released.intercept_) == pytest.approx(fit.x, abs=1e-5)
    assert record.trusted
    assert record.error(X[0]) < 1e-10


class TestWithoutIntercept:
    """Balle 2022, Theorem 8: ``record.x`` is right, or the record is not trusted."""

    @staticmethod
    def check(estimator: object, X: np.ndarray, y: np.ndarray, missing: int, **options: object) -> bool:
        """Attack one record; returns whether it was trusted."""
        known = np.arange(len(X)) != missing
        released = clone(estimator).fit(X, y)
        record = divulge.informed.glm(released, X[known], y[known], **options)
        error = record.error(X[missing])
        one_output = len(released.coef_.reshape(-1, X.shape[1])) == 1
        if record.trusted and one_output:
            assert error <= 1e-6
        elif record.trusted:  # a softmax model is overdetermined, and its solver stops earlier
            assert not wrongly_trusted(record, X, known, missing)
        else:
            assert not one_output or record.predicted_error >= 0.9 * error  # it reaches to the other root
            assert record.reason
        nearest = min(np.square(c.x.numpy() - X[missing]).mean() for c in record.candidates)
        assert not one_output or nearest <= 1e-6 * np.square(X).mean()
        assert record.candidates[0].x.tolist() == record.x.tolist()
        return record.trusted

    @pytest.mark.slow
    @pytest.mark.parametrize("estimator", [LinearRegression(fit_intercept=False), Ridge(1.0, fit_intercept=False)])
    def test_gaussian_regressions(self, estimator: object) -> None:
        for seed in range(40):
            rng = np.random.default_rng(seed)
            X = rng.standard_normal((60, 8)) + rng.standard_normal(8)
            y = X @ rng.standard_normal(8) + 0.5 * rng.standard_normal(60)
            self.check(estimator, X, y, 0, label=y[0])

    @pytest.mark.slow
    @pytest.mark.parametrize("given", [True, False])
    def test_gaussian_logistic(self, given: bool) -> None:
        for seed in range(40):
            rng = np.random.default_rng(seed)
            X = rng.standard_normal((80, 5)) + rng.standard_normal(5)
            y = (X @ rng.standard_normal(5) + rng.logistic(size=80) > 0).astype(int)
            estimator = LogisticRegression(fit_intercept=False, tol=1e-10, **NEWTON)
            self.check(estimator, X, y, 0, **({"label": y[0]} if given else {}))

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["diabetes", "one-hot columns", "breast cancer", "wine", "iris"])
    def test_real_tables(self, name: str) -> None:
        X, y = TABLES[name]
        trusted = 0
        for missing in range(0, 40, 4):
            if y.dtype.kind == "f":
                for estimator in (LinearRegression(fit_intercept=False), Ridge(1.0, fit_intercept=False)):
                    trusted += self.check(estimator, X, y, missing, label=y[missing])
            else:
                estimator = LogisticRegression(fit_intercept=False, tol=1e-10, **NEWTON)
                scaled = X / X.std(axis=0)
                trusted += self.check(estimator, scaled, y, missing)
        if name in ("diabetes", "one-hot columns"):
            assert trusted >= 15  # whole-number columns (age, sex, categories) exclude the other root

    @pytest.mark.slow
    def test_bounds_exclude_the_other_root(self) -> None:
        trusted = 0
        for seed in range(40):
            rng = np.random.default_rng(seed)
            X = rng.uniform(0.0, 1.0, (60, 8))
            y = X @ rng.standard_normal(8) + 0.5 * rng.standard_normal(60)
            trusted += self.check(LinearRegression(fit_intercept=False), X, y, 0, label=y[0], bounds=(0.0, 1.0))
        assert trusted >= 15

"""The closed form gives back the one record that was not known, for every linear model it claims to support."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.linear_model import (
    GammaRegressor,
    Lasso,
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
    RidgeClassifier,
    TweedieRegressor,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, PolynomialFeatures, StandardScaler

import divulge
from divulge.core.errors import AttackFailed, InvalidInput, NonFiniteInput, UnsupportedModel, WrongShape
from divulge.informed import LinearModel

DIGITS, DIGIT = load_digits(return_X_y=True)
ROWS = DIGITS[:400, 8:40] / 16 + 1e-3 * np.random.default_rng(5).standard_normal((400, 32))
LABELS = DIGIT[:400]
NUMBERS = LABELS + ROWS[:, 3]
EXACT = {"solver": "newton-cholesky", "tol": 1e-10, "max_iter": 1000}

CASES = {
    "linear": (LinearRegression(), NUMBERS),
    "ridge": (Ridge(0.3), NUMBERS),
    "ridge classifier": (RidgeClassifier(), LABELS),
    "two-class ridge classifier": (RidgeClassifier(), LABELS > 4),
    "logistic": (LogisticRegression(C=0.5, **EXACT), (LABELS > 4).astype(int)),
    "logistic, named classes": (LogisticRegression(**EXACT), np.where(LABELS > 4, "high", "low")),
    "balanced logistic": (LogisticRegression(class_weight="balanced", **EXACT), (LABELS > 6).astype(int)),
    "weighted classes": (LogisticRegression(class_weight={0: 3.0}, **EXACT), (LABELS > 6).astype(int)),
    "softmax": (LogisticRegression(**EXACT), LABELS),
    "poisson": (PoissonRegressor(alpha=1e-2, **EXACT), NUMBERS + 0.1),
    "gamma": (GammaRegressor(alpha=1e-2, **EXACT), NUMBERS + 1),
    "tweedie": (TweedieRegressor(power=1.5, alpha=1e-2, **EXACT), NUMBERS + 1),
    "tweedie, identity": (TweedieRegressor(power=0, alpha=1e-2, **EXACT), NUMBERS),
    "scaled softmax": (make_pipeline(StandardScaler(), LogisticRegression(**EXACT)), LABELS),
    "rotated ridge": (make_pipeline(MinMaxScaler(), PCA(), Ridge(1.0)), NUMBERS),
}


def fitted(estimator, targets, missing, **options):
    order = np.append(np.delete(np.arange(len(ROWS)), missing), missing)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return estimator.fit(ROWS[order], np.asarray(targets)[order], **options), order[:-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("missing", [7, 211])
def test_the_missing_record_comes_back(name, missing):
    estimator, targets = CASES[name]
    released, known = fitted(estimator, targets, missing)
    record = divulge.informed.glm(released, ROWS[known], np.asarray(targets)[known])
    assert record.error(ROWS[missing]) <= 1e-12
    if isinstance(record.y, float):
        assert record.y == pytest.approx(targets[missing], abs=1e-5)
    else:
        assert record.y == targets[missing]
    assert record.trusted
    assert record.predicted_error <= 1e-10


def test_liblinear_penalises_its_scaled_intercept():
    targets = (LABELS > 4).astype(int)
    estimator = LogisticRegression(solver="liblinear", intercept_scaling=2.0, tol=1e-10, max_iter=10_000)
    released, known = fitted(estimator, targets, 7)
    record = divulge.informed.glm(released, ROWS[known], targets[known])
    assert record.error(ROWS[7]) <= 1e-8
    assert record.y == targets[7]


@pytest.mark.slow
def test_sample_weights_are_undone():
    weights = np.random.default_rng(3).uniform(0.2, 3, len(ROWS))
    for estimator, targets in (CASES["ridge"], CASES["softmax"], CASES["poisson"]):
        order = np.append(np.delete(np.arange(len(ROWS)), 9), 9)
        released = estimator.fit(ROWS[order], targets[order], sample_weight=weights[order])
        known = order[:-1]
        record = divulge.informed.glm(
            released, ROWS[known], targets[known], sample_weight=weights[known], unknown_weight=weights[9]
        )
        assert record.error(ROWS[9]) <= 1e-12
        assert record.y == pytest.approx(targets[9], abs=1e-5)


def test_raw_coefficients_with_a_penalised_intercept():
    X = np.column_stack([ROWS, np.ones(len(ROWS))])
    theta = np.linalg.solve(X.T @ X + 0.7 * np.eye(X.shape[1]), X.T @ NUMBERS)
    model = LinearModel("linear", theta[:-1], theta[-1], penalty=0.7, intercept_penalty=0.7)
    record = divulge.informed.glm(model, ROWS[:-1], NUMBERS[:-1])
    assert record.error(ROWS[-1]) <= 1e-12
    assert record.y == pytest.approx(NUMBERS[-1], abs=1e-6)


def test_several_outputs_at_once():
    targets = np.column_stack([NUMBERS, ROWS[:, 0] - NUMBERS])
    released, known = fitted(Ridge(0.1), targets, 5)
    record = divulge.informed.glm(released, ROWS[known], targets[known])
    assert record.error(ROWS[5]) <= 1e-12
    assert record.y == pytest.approx(targets[5].tolist(), abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("tolerance", [1e-4, 1e-6])
def test_the_error_of_a_model_not_at_its_optimum_is_predicted(tolerance):
    ratios = []
    for missing in range(0, 400, 40):
        released, known = fitted(LogisticRegression(tol=tolerance, max_iter=5000), LABELS, missing)
        record = divulge.informed.glm(released, ROWS[known], LABELS[known], seed=missing)
        ratios.append(record.predicted_error / record.error(ROWS[missing]))
    assert 1 / 3 < np.median(ratios) < 3
    assert np.mean([1 / 10 < ratio < 10 for ratio in ratios]) >= 0.7


@pytest.mark.slow
def test_a_model_stopped_early_is_not_trusted():
    released, known = fitted(LogisticRegression(max_iter=5), LABELS, 3)
    record = divulge.informed.glm(released, ROWS[known], LABELS[known])
    assert not record.trusted
    assert "not trained far enough" in record.reason


@pytest.mark.slow
def test_a_record_expected_farther_off_than_the_nearest_known_one_is_not_trusted():
    from sklearn.neighbors import NearestNeighbors

    expected, believed = [], []
    for iterations in (10, 40, 80, 300, 1000, 5000):
        released, known = fitted(LogisticRegression(max_iter=iterations, tol=1e-9), LABELS, 3)
        record = divulge.informed.glm(released, ROWS[known], LABELS[known])
        expected.append(record.predicted_error)
        believed.append(record.trusted)
    rows = ROWS[known] / ROWS[known].std(axis=0)  # an error counts in units of its column's spread
    apart, _ = NearestNeighbors(n_neighbors=2).fit(rows).kneighbors(rows)
    anyway = np.median(apart[:, 1] ** 2) / rows.shape[1]
    assert all(error <= anyway / 2 for error, trusted in zip(expected, believed, strict=True) if trusted)
    assert not any(trusted for error, trusted in zip(expected, believed, strict=True) if error > anyway / 2)
    assert any(believed)
    assert not all(believed)


class TestWithoutIntercept:
    @pytest.mark.parametrize("missing", [7, 211])
    @pytest.mark.parametrize("estimator", [LinearRegression(fit_intercept=False), Ridge(0.1, fit_intercept=False)])
    def test_one_of_two_roots_is_the_record(self, estimator, missing):
        released, known = fitted(estimator, NUMBERS, missing)
        record = divulge.informed.glm(released, ROWS[known], NUMBERS[known], label=NUMBERS[missing], bounds=(0, 1))
        assert 1 <= len(record.candidates) <= 2
        assert min(np.square(c.x.numpy() - ROWS[missing]).mean() for c in record.candidates) <= 1e-12
        assert record.candidates[0].misfit <= record.candidates[-1].misfit

    @pytest.mark.slow
    def test_other_families(self):
        cases = {
            "logistic": (LogisticRegression(fit_intercept=False, **EXACT), (LABELS > 4).astype(int), False),
            "softmax": (LogisticRegression(fit_intercept=False, **EXACT), LABELS, False),
            "poisson": (PoissonRegressor(alpha=1e-2, fit_intercept=False, **EXACT), NUMBERS + 0.1, True),
        }
        for estimator, targets, given in cases.values():
            released, known = fitted(estimator, targets, 11)
            label = targets[11] if given else None
            record = divulge.informed.glm(released, ROWS[known], targets[known], label=label)
            assert min(np.square(c.x.numpy() - ROWS[11]).mean() for c in record.candidates) <= 1e-9

    def test_a_regression_needs_the_target(self):
        released, known = fitted(LinearRegression(fit_intercept=False), NUMBERS, 3)
        with pytest.raises(InvalidInput, match="needs the unknown record's target"):
            divulge.informed.glm(released, ROWS[known], NUMBERS[known])


class TestSeveralUnknown:
    @pytest.mark.slow
    @pytest.mark.parametrize("unknown", [(5, 90), (17, 300, 301)])
    def test_a_softmax_model_gives_them_all_away(self, unknown):
        known = np.delete(np.arange(400), unknown)
        released = LogisticRegression(solver="newton-cholesky", tol=1e-12).fit(ROWS, LABELS)
        labels = LABELS[list(unknown)].tolist() if len(unknown) > 2 else None
        record = divulge.informed.glm(released, ROWS[known], LABELS[known], unknown=len(unknown), label=labels)
        distances = np.square(record.x.numpy()[:, None] - ROWS[list(unknown)]).mean(axis=2)
        assert distances.min(axis=0).max() <= 1e-12
        assert sorted(record.y) == sorted(LABELS[list(unknown)].tolist())
        assert record.trusted

    def test_one_output_determines_only_their_weighted_sum(self):
        released = LinearRegression().fit(ROWS, NUMBERS)
        with pytest.raises(AttackFailed, match="slope-weighted sum") as failure:
            divulge.informed.glm(released, ROWS[2:], NUMBERS[2:], unknown=2)
        slopes = released.predict(ROWS[:2]) - NUMBERS[:2]
        assert failure.value.partial[:-1, 0] == pytest.approx(slopes @ ROWS[:2], abs=1e-8)

    def test_too_many_label_combinations_must_be_given(self):
        released = LogisticRegression(**EXACT).fit(ROWS, LABELS)
        with pytest.raises(InvalidInput, match="pass them as label"):
            divulge.informed.glm(released, ROWS[5:], LABELS[5:], unknown=5)
        with pytest.raises(InvalidInput, match="list of 5"):
            divulge.informed.glm(released, ROWS[5:], LABELS[5:], unknown=5, label=[1])


@pytest.mark.slow
def test_a_fitted_scaler_alone_gives_the_record_away():
    released, known = fitted(make_pipeline(StandardScaler(), Ridge()), NUMBERS, 30)
    record = divulge.informed.glm(released, ROWS[known], NUMBERS[known])
    assert any("StandardScaler alone" in note for note in record.notes)
    assert record.facts["scaler_alone_error"] <= 1e-12
    for row in range(30, 34):  # however loosely the model above it was fitted
        loose, known = fitted(make_pipeline(StandardScaler(), LogisticRegression(tol=1e-2)), LABELS, row)
        record = divulge.informed.glm(loose, ROWS[known], LABELS[known])
        assert record.error(ROWS[row]) <= record.predicted_error <= 1e-20
        assert record.y == LABELS[row]
        assert record.trusted


class TestBadInput:
    def released(self):
        return fitted(LogisticRegression(**EXACT), LABELS, 3)

    @pytest.mark.slow
    def test_a_known_set_that_holds_the_target(self):
        with pytest.raises(AttackFailed, match="contains the target"):
            divulge.informed.glm(LinearRegression().fit(ROWS, NUMBERS), ROWS, NUMBERS)
        twice = np.vstack([ROWS, ROWS[3:4]])
        doubled = LogisticRegression(**EXACT).fit(twice, np.append(LABELS, LABELS[3]))
        record = divulge.informed.glm(doubled, ROWS, LABELS)
        assert any("known row 3" in note for note in record.notes)

    def test_sentences(self):
        released, known = self.released()
        X, y = ROWS[known], LABELS[known]
        with pytest.raises(InvalidInput, match="none of the model's classes"):
            divulge.informed.glm(released, X, np.where(y == 3, 11, y))
        with pytest.raises(InvalidInput, match="none of the model's classes"):
            divulge.informed.glm(released, X, y, label=11)
        with pytest.raises(WrongShape, match="features"):
            divulge.informed.glm(released, X[:, 1:], y)
        with pytest.raises(WrongShape, match="known targets"):
            divulge.informed.glm(released, X, y[1:])
        with pytest.raises(WrongShape, match="sample weights"):
            divulge.informed.glm(released, X, y, sample_weight=np.ones(3))
        with pytest.raises(InvalidInput, match="at least 0"):
            divulge.informed.glm(released, X, y, sample_weight=-np.ones(len(X)))
        with pytest.raises(InvalidInput, match="unknown_weight"):
            divulge.informed.glm(released, X, y, unknown_weight=0)
        with pytest.raises(InvalidInput, match="low below high"):
            divulge.informed.glm(released, X, y, bounds=(1, 0))
        with pytest.raises(InvalidInput, match="unknown is a whole number"):
            divulge.informed.glm(released, X, y, unknown=0)
        with pytest.raises(NonFiniteInput):
            divulge.informed.glm(released, np.where(X > 0.9, np.nan, X), y)
        with pytest.raises(InvalidInput, match="not fitted"):
            divulge.informed.glm(LogisticRegression(), X, y)
        with pytest.raises(WrongShape, match="known rows"):
            divulge.informed.glm(released, X[0], y)

    def test_models_without_a_closed_form(self):
        X, y = ROWS[1:], NUMBERS[1:]
        with pytest.raises(UnsupportedModel, match="no closed form"):
            divulge.informed.glm(Lasso().fit(X, y), X, y)
        with pytest.raises(UnsupportedModel, match="positive"):
            divulge.informed.glm(LinearRegression(positive=True).fit(X, y), X, y)
        sparse = LogisticRegression(solver="saga", l1_ratio=1.0, max_iter=20).fit(X, LABELS[1:])
        with pytest.raises(UnsupportedModel, match="l1"):
            divulge.informed.glm(sparse, X, LABELS[1:])
        with pytest.raises(UnsupportedModel, match="cannot be undone"):
            divulge.informed.glm(make_pipeline(PolynomialFeatures(1), Ridge()).fit(X, y), X, y)
        with pytest.raises(InvalidInput, match="family"):
            LinearModel("probit", [1.0])  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="finite"):
            LinearModel("linear", [np.nan])
        with pytest.raises(InvalidInput, match="row of coefficients"):
            LinearModel("softmax", [1.0])
        with pytest.raises(InvalidInput, match="one row"):
            LinearModel("poisson", [[1.0], [2.0]])
        with pytest.raises(InvalidInput, match="penalty"):
            LinearModel("linear", [1.0], penalty=-1)
        with pytest.raises(InvalidInput, match="classes"):
            LinearModel("logistic", [1.0], classes=[0, 1, 2])


def test_a_seed_is_a_whole_number_in_any_type():
    model = Ridge().fit(ROWS[:60], LABELS[:60])
    for seed in ("x", -1, 0.5):
        with pytest.raises(InvalidInput, match="seed"):
            divulge.informed.glm(model, ROWS[1:60], LABELS[1:60], seed=seed)
    a, b = (divulge.informed.glm(model, ROWS[1:60], LABELS[1:60], seed=seed) for seed in (3, np.int64(3)))
    assert (a.x == b.x).all()

"""The estimators that people deploy: searches, calibration, kernels, neighbours, forests, ensembles, boosted trees."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LinearRegression, LogisticRegression, RidgeClassifier
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC, SVR, LinearSVC
from sklearn.tree import DecisionTreeClassifier

import divulge
from divulge.core.errors import AccessDenied, InvalidInput, TargetError, UnsupportedModel
from divulge.oracles.local.sklearn_estimator import refit
from divulge.oracles.local.table_view import TableView

IRIS, CANCER, DIABETES = (load(return_X_y=True) for load in (load_iris, load_breast_cancer, load_diabetes))

CLASSIFIERS = {
    "grid search": (GridSearchCV(LogisticRegression(max_iter=200), {"C": [0.1, 1.0]}, cv=2), "logits"),
    "random search": (RandomizedSearchCV(SVC(), {"C": [0.1, 1.0]}, n_iter=2, cv=2, random_state=0), "scores"),
    "calibrated": (CalibratedClassifierCV(LinearSVC(), cv=2), "probabilities"),
    "SVC": (SVC(), "scores"),
    "ridge": (RidgeClassifier(), "scores"),
    "kNN": (KNeighborsClassifier(), "probabilities"),
    "Gaussian process": (GaussianProcessClassifier(), "probabilities"),
    "naive Bayes": (GaussianNB(), "probabilities"),
    "tree": (DecisionTreeClassifier(random_state=0), "probabilities"),
    "forest": (RandomForestClassifier(10, random_state=0), "probabilities"),
    "boosting": (GradientBoostingClassifier(n_estimators=5, random_state=0), "logits"),
    "histogram boosting": (HistGradientBoostingClassifier(max_iter=5, random_state=0), "logits"),
    "voting": (VotingClassifier([("a", GaussianNB()), ("b", KNeighborsClassifier())], voting="soft"), "probabilities"),
    "stacking": (StackingClassifier([("a", GaussianNB()), ("b", KNeighborsClassifier())], cv=2), "logits"),
    "scaled kNN": (make_pipeline(StandardScaler(), KNeighborsClassifier()), "probabilities"),
    "scaled logistic": (make_pipeline(StandardScaler(), LogisticRegression()), "logits"),
    "MLP": (MLPClassifier((5,), max_iter=50, random_state=0), "logits"),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("data", [IRIS, (CANCER[0][:100, :6], CANCER[1][:100])], ids=["three classes", "two classes"])
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_classifier_answers_values_labels_and_what_they_mean(name, data):
    estimator, kind = CLASSIFIERS[name]
    X, y = data
    estimator.fit(X, y)
    oracle = divulge.oracle(estimator)
    assert oracle.output_kind == kind
    values, labels = oracle.value(X), oracle.label(X)
    assert np.array_equal(estimator.classes_[labels], estimator.predict(X))
    assert values.shape == (len(X), oracle.output_dim)
    if kind == "probabilities":
        np.testing.assert_allclose(values, estimator.predict_proba(X))
    elif hasattr(estimator, "decision_function"):
        np.testing.assert_allclose(values, estimator.decision_function(X).reshape(len(X), -1), atol=1e-9)
    if kind == "logits":
        shown = torch.sigmoid(values) if values.shape[1] == 1 else torch.softmax(values, dim=1)
        np.testing.assert_allclose(shown[:, -1], estimator.predict_proba(X)[:, -1], atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    "estimator",
    [KernelRidge(kernel="rbf"), GaussianProcessRegressor(), SVR(), KNeighborsRegressor(), LinearRegression(),
     RandomForestRegressor(5, random_state=0), GridSearchCV(KernelRidge(), {"alpha": [1.0, 2.0]}, cv=2)],
)  # fmt: skip
def test_a_regressor_answers_quantities(estimator):
    X, y = DIABETES
    estimator.fit(X, y)
    oracle = divulge.oracle(estimator)
    assert oracle.output_kind == "quantities"
    np.testing.assert_allclose(oracle.value(X)[:, 0], estimator.predict(X), rtol=1e-9)


def test_an_outlier_detector_shows_its_decision_function():
    X = IRIS[0]
    detector = IsolationForest(n_estimators=10, random_state=0).fit(X)
    oracle = divulge.oracle(detector)
    assert oracle.output_kind == "scores"
    np.testing.assert_allclose(oracle.value(X)[:, 0], detector.decision_function(X))
    assert np.array_equal(oracle.label(X) == 1, detector.predict(X) == 1)


def test_hard_voting_has_labels_only():
    voting = VotingClassifier([("a", GaussianNB()), ("b", KNeighborsClassifier())]).fit(*IRIS)
    with pytest.raises(UnsupportedModel, match='access="label"'):
        divulge.oracle(voting)
    oracle = divulge.oracle(voting, access="label")
    assert np.array_equal(oracle.label(IRIS[0]), voting.predict(IRIS[0]))


# -- boosted trees ----------------------------------------------------------------------------------------------------

xgboost = pytest.importorskip("xgboost")
lightgbm = pytest.importorskip("lightgbm")


def xgb(kind, X, y, **options):
    return kind(n_estimators=8, max_depth=3, random_state=0, n_jobs=1, **options).fit(X, y)


def lgbm(kind, X, y):
    return kind(n_estimators=8, random_state=0, n_jobs=1, verbose=-1).fit(X, y)


@pytest.mark.parametrize("data", [IRIS, CANCER], ids=["three classes", "two classes"])
@pytest.mark.parametrize("package", ["xgboost", "lightgbm"])
def test_boosted_classifiers_as_estimators_boosters_and_files(package, data, tmp_path):
    X, y = data
    if package == "xgboost":
        model = xgb(xgboost.XGBClassifier, X, y)
        booster, suffixes, tolerance = model.get_booster(), ("json", "ubj"), 1e-5
        raw = model.predict(X, output_margin=True)
    else:
        model = lgbm(lightgbm.LGBMClassifier, X, y)
        booster, suffixes, tolerance = model.booster_, ("txt",), 1e-12
        raw = model.predict(X, raw_score=True)
    sources = [model, booster]
    for suffix in suffixes:
        booster.save_model(tmp_path / f"model.{suffix}")
        sources.append(str(tmp_path / f"model.{suffix}"))
    for source in sources:
        oracle = divulge.oracle(source)
        assert oracle.output_kind == "logits"
        assert oracle.dtype == (torch.float32 if package == "xgboost" else torch.float64)
        np.testing.assert_allclose(oracle.value(X), raw.reshape(len(X), -1), rtol=tolerance, atol=tolerance)
        assert np.array_equal(oracle.label(X), model.predict(X))
        shown = divulge.oracle(source, output="probabilities")
        assert shown.output_kind == "probabilities"
        np.testing.assert_allclose(shown.value(X), model.predict_proba(X), rtol=tolerance, atol=tolerance)
        with pytest.raises(AccessDenied, match="piecewise constant"):
            divulge.oracle(source, access="gradient")


@pytest.mark.parametrize("package", ["xgboost", "lightgbm"])
def test_boosted_regressors_answer_quantities(package, tmp_path):
    X, y = DIABETES
    make = xgb(xgboost.XGBRegressor, X, y) if package == "xgboost" else lgbm(lightgbm.LGBMRegressor, X, y)
    oracle = divulge.oracle(make)
    assert oracle.output_kind == "quantities"
    np.testing.assert_allclose(oracle.value(X)[:, 0], make.predict(X), rtol=1e-5)
    with pytest.raises(InvalidInput, match="not a classifier"):
        divulge.oracle(make, output="logits")


def test_a_booster_that_stopped_early_answers_with_its_best_rounds():
    X, y = CANCER
    model = xgboost.XGBClassifier(n_estimators=60, early_stopping_rounds=2, learning_rate=1.0, random_state=0, n_jobs=1)
    model.fit(X[:300], y[:300], eval_set=[(X[300:], y[300:])], verbose=False)
    assert model.best_iteration + 1 < model.get_booster().num_boosted_rounds()
    values = divulge.oracle(model).value(X)[:, 0]
    np.testing.assert_allclose(values, model.predict(X, output_margin=True), rtol=1e-5)


@pytest.mark.parametrize("name", ["model.ubj", "model.txt", "model.json"])
def test_a_file_that_holds_no_trees_says_so(tmp_path, name):
    (tmp_path / name).write_bytes(b'{"learner": 3}' if name.endswith("json") else b"tree\nnothing here")
    with pytest.raises(InvalidInput, match="not a readable model of trees"):
        divulge.oracle(str(tmp_path / name))


# -- tables of mixed columns ------------------------------------------------------------------------------------------

PEOPLE = pd.DataFrame(
    {
        "age": [25, 40, 61, 33, 52, 47, 29, 58],
        "job": ["cook", "pilot", "cook", "nurse", "nurse", "pilot", "cook", "nurse"],
        "member": [True, False, True, True, False, False, True, False],
        "income": [21.5, 80.0, 30.2, 41.0, 44.4, 91.3, 22.0, 47.7],
    }
)
RISK = [0, 1, 0, 0, 1, 1, 0, 1]


@pytest.fixture
def pipeline():
    encode = ColumnTransformer(
        [("job", OneHotEncoder(), ["job", "member"]), ("scale", StandardScaler(), ["age", "income"])]
    )
    return make_pipeline(encode, LogisticRegression()).fit(PEOPLE, RISK)


def test_a_table_of_mixed_columns_is_asked_by_numbers_with_a_stated_meaning(pipeline):
    oracle = divulge.oracle(pipeline, table=PEOPLE, budget=100)
    assert oracle.input_dim == 4
    assert [column.name for column in oracle.view.columns] == list(PEOPLE.columns)
    assert oracle.view.columns[1].categories == ("cook", "nurse", "pilot")
    assert (oracle.view.columns[0].low, oracle.view.columns[0].high) == (25, 61)
    rows = oracle.view.encode(PEOPLE)
    assert rows.min() >= 0
    assert rows.max() <= 1
    pd.testing.assert_frame_equal(oracle.view.decode(rows), PEOPLE, check_dtype=False)
    np.testing.assert_allclose(oracle.value(rows)[:, 0], pipeline.decision_function(PEOPLE))
    assert np.array_equal(oracle.label(rows), pipeline.predict(PEOPLE))
    assert oracle.output_kind == "logits"
    anywhere = oracle.view.decode(np.random.default_rng(0).random((500, 4)))
    assert set(anywhere["job"]) == {"cook", "nurse", "pilot"}
    assert anywhere["age"].between(25, 61).all()
    assert set(oracle.view.decode([[0, -3.0, 9.0, 0]])["job"]) == {"cook"}


def test_a_table_that_makes_no_sense_is_refused(pipeline):
    with pytest.raises(TargetError, match="pass table=, a DataFrame of example rows"):
        divulge.oracle(pipeline)
    with pytest.raises(AccessDenied, match="no gradient"):
        divulge.oracle(pipeline, table=PEOPLE, access="gradient")
    for table, words in (
        ([[1, 2]], "DataFrame"),
        (PEOPLE.iloc[:0], "no rows"),
        (PEOPLE.assign(age=float("nan")), "no value at all"),
        (PEOPLE.assign(age=pd.to_datetime("2020-01-01")), "dates"),
        (PEOPLE.assign(job=[1, "a", *PEOPLE["job"][2:]]), "mixes kinds"),
    ):
        with pytest.raises(InvalidInput, match=words):
            divulge.oracle(pipeline, table=table)
    with pytest.raises(InvalidInput, match="table= is not for a torch model"):
        divulge.oracle(torch.nn.Linear(2, 1), table=PEOPLE)


def test_missing_values_of_a_table_are_asked_as_missing():
    frame = PEOPLE.assign(age=[None, *PEOPLE["age"][1:]], job=[None, *PEOPLE["job"][1:]])
    view = TableView(frame)
    back = view.decode(view.encode(frame))
    assert back["age"].isna().tolist() == back["job"].isna().tolist() == [True] + [False] * (len(frame) - 1)
    assert back["job"][1:].tolist() == frame["job"][1:].tolist()
    assert back["age"][1:].tolist() == pytest.approx(frame["age"][1:].astype(float).tolist())


def test_an_estimator_is_fitted_again_without_warnings_about_convergence(recwarn: pytest.WarningsRecorder) -> None:
    X, y = load_breast_cancer(return_X_y=True)
    assert refit(LogisticRegression(max_iter=2), X, y).n_iter_[0] == 2
    assert not recwarn.list

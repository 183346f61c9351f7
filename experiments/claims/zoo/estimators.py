"""scikit-learn's own models, XGBoost and LightGBM, on scikit-learn's own data in its own units."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.ensemble import (
    AdaBoostClassifier,
    ExtraTreesRegressor,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    VotingClassifier,
)
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Lasso, LinearRegression, LogisticRegression, PoissonRegressor, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, PolynomialFeatures, StandardScaler
from sklearn.svm import SVC, SVR, LinearSVC
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from experiments.claims import tables
from experiments.claims.subject import Array, Kind, Subject, Table, columns

Maker = Callable[[], Subject]


def subject(estimator: Any, table: Table, kind: Kind, *, width: int | None = None, **options: Any) -> Subject:
    """A fitted estimator with its own methods as the truth."""
    names = [name for name in ("decision_function", "predict_proba", "predict") if hasattr(estimator, name)]
    classifies = hasattr(estimator, "classes_")
    names = [name for name in names if name != "predict" or not classifies]

    def scores(X: Array) -> list[Array]:
        said = columns(*(getattr(estimator, name)(X) for name in names))
        if "predict_proba" in names:
            shares = np.clip(said[names.index("predict_proba")], 1e-300, None)
            said.append(np.log(shares) - np.log(shares).mean(axis=1, keepdims=True))
            if shares.shape[1] == 2:
                said += [shares[:, 1:], np.log(shares[:, 1:]) - np.log(shares[:, :1])]
        return said

    def decide(X: Array) -> Array:
        return np.searchsorted(estimator.classes_, estimator.predict(X))

    return Subject(estimator, table, decide if classifies else None, scores, kind, options, width)


def fitted(make: Callable[[], Any], data: Callable[[], Table], kind: Kind, *, width: int | None = None) -> Maker:
    """A maker of the estimator, fitted to the training rows."""

    def maker() -> Subject:
        table = data()
        return subject(make().fit(table.training.X, table.training.y), table, kind, width=width)

    return maker


def of_patients() -> Subject:
    """Categories and numbers through a ColumnTransformer; the rows are named."""
    table = tables.patients()
    encode = ColumnTransformer([("ward", OneHotEncoder(), ["ward"])], remainder=StandardScaler())
    return subject(make_pipeline(encode, LogisticRegression()).fit(*table.training), table, "none")


def boosted(package: str) -> Maker:
    """Gradient boosting of another package."""

    def maker() -> Subject:
        table = tables.cancer()
        if package == "xgboost":
            from xgboost import XGBClassifier

            model = XGBClassifier(n_estimators=30, max_depth=3, n_jobs=1)
        else:
            from lightgbm import LGBMClassifier

            model = LGBMClassifier(n_estimators=30, verbose=-1, n_jobs=1)
        return subject(model.fit(*table.training), table, "piecewise constant")

    return maker


def calibrated() -> Any:
    return CalibratedClassifierCV(make_pipeline(StandardScaler(), LinearSVC()), cv=3)


def searched() -> Any:
    return GridSearchCV(make_pipeline(StandardScaler(), SVC()), {"svc__C": [0.5, 2.0]}, cv=3)


def voting() -> Any:
    scaled = make_pipeline(StandardScaler(), LogisticRegression())
    return VotingClassifier([("a", scaled), ("b", DecisionTreeClassifier(max_depth=4, random_state=0))], voting="soft")


def process() -> Any:
    return make_pipeline(StandardScaler(), GaussianProcessRegressor(RBF(3.0) + WhiteKernel(1.0), normalize_y=True))


def perceptron(**options: Any) -> Any:
    return make_pipeline(StandardScaler(), MLPClassifier(max_iter=150, random_state=0, **options))


def regressor(**options: Any) -> Any:
    network = make_pipeline(StandardScaler(), MLPRegressor(max_iter=300, random_state=0, **options))
    return TransformedTargetRegressor(network, transformer=StandardScaler())


def scaled(estimator: Any, scaler: Any = StandardScaler) -> Callable[[], Any]:
    return lambda: make_pipeline(scaler(), estimator)


MODELS: dict[str, Maker] = {
    "linear regression, diabetes": fitted(LinearRegression, tables.diabetes, "linear"),
    "ridge, diabetes": fitted(Ridge, tables.diabetes, "linear"),
    "ridge, houses": fitted(scaled(Ridge()), tables.houses, "linear"),
    "lasso, diabetes": fitted(lambda: Lasso(2.0), tables.diabetes, "linear"),
    "poisson regression, diabetes": fitted(scaled(PoissonRegressor()), tables.diabetes, "smooth"),
    "logistic regression, cancer": fitted(lambda: LogisticRegression(max_iter=5000), tables.cancer, "linear"),
    "logistic regression without intercept": fitted(
        scaled(LogisticRegression(fit_intercept=False)), tables.cancer, "linear"
    ),
    "logistic regression, loans": fitted(scaled(LogisticRegression()), tables.loans, "linear"),
    "softmax regression, wine": fitted(scaled(LogisticRegression()), tables.wine, "linear"),
    "softmax regression, digits": fitted(lambda: LogisticRegression(max_iter=300), tables.digits, "linear"),
    "min-max and logistic regression": fitted(scaled(LogisticRegression(), MinMaxScaler), tables.cancer, "linear"),
    "polynomial ridge, diabetes": fitted(
        lambda: make_pipeline(StandardScaler(), PolynomialFeatures(2), Ridge()), tables.diabetes, "smooth"
    ),
    "discriminant analysis, wine": fitted(LinearDiscriminantAnalysis, tables.wine, "linear"),
    "quadratic discriminant analysis, iris": fitted(QuadraticDiscriminantAnalysis, tables.iris, "smooth"),
    "naive Bayes, cancer": fitted(GaussianNB, tables.cancer, "smooth"),
    "SVC, cancer": fitted(scaled(SVC()), tables.cancer, "smooth"),
    "SVC with probabilities, wine": fitted(scaled(SVC(probability=True, random_state=0)), tables.wine, "none"),
    "linear SVC, cancer": fitted(scaled(LinearSVC()), tables.cancer, "linear"),
    "SVR, diabetes": fitted(scaled(SVR(C=50.0)), tables.diabetes, "smooth"),
    "kernel ridge, houses": fitted(scaled(KernelRidge(kernel="rbf", gamma=0.05)), tables.houses, "smooth"),
    "Gaussian process, diabetes": fitted(process, tables.diabetes, "smooth"),
    "neighbours, cancer": fitted(lambda: KNeighborsClassifier(5), tables.cancer, "piecewise constant"),
    "nearest neighbour, diabetes": fitted(lambda: KNeighborsRegressor(1), tables.diabetes, "piecewise constant"),
    "tree, iris": fitted(lambda: DecisionTreeClassifier(random_state=0), tables.iris, "piecewise constant"),
    "tree, houses": fitted(
        lambda: DecisionTreeRegressor(max_depth=6, random_state=0), tables.houses, "piecewise constant"
    ),
    "forest, cancer": fitted(
        lambda: RandomForestClassifier(50, random_state=0), tables.cancer, "piecewise constant"
    ),
    "extra trees, diabetes": fitted(lambda: ExtraTreesRegressor(30, random_state=0), tables.diabetes,
                                    "piecewise constant"),
    "gradient boosting, houses": fitted(
        lambda: GradientBoostingRegressor(n_estimators=60, random_state=0), tables.houses, "piecewise constant"
    ),
    "histogram boosting, cancer": fitted(
        lambda: HistGradientBoostingClassifier(max_iter=40, random_state=0), tables.cancer, "piecewise constant"
    ),
    "AdaBoost, wine": fitted(lambda: AdaBoostClassifier(n_estimators=30, random_state=0), tables.wine,
                             "piecewise constant"),
    "XGBoost, cancer": boosted("xgboost"),
    "LightGBM, cancer": boosted("lightgbm"),
    "calibrated SVC, cancer": fitted(calibrated, tables.cancer, "smooth"),
    "grid search of SVC, cancer": fitted(searched, tables.cancer, "smooth"),
    "voting, cancer": fitted(voting, tables.cancer, "none"),
    "column transformer, patients": of_patients,
    "perceptron of 16, cancer": fitted(
        lambda: perceptron(hidden_layer_sizes=(16,)), tables.cancer, "one hidden ReLU layer", width=16
    ),
    "perceptron of 20 and 10, wine": fitted(
        lambda: perceptron(hidden_layer_sizes=(20, 10)), tables.wine, "piecewise linear"
    ),
    "tanh perceptron, diabetes": fitted(
        lambda: regressor(hidden_layer_sizes=(20,), activation="tanh"), tables.diabetes, "smooth"
    ),
    "perceptron regression, houses": fitted(
        lambda: regressor(hidden_layer_sizes=(12,)), tables.houses, "one hidden ReLU layer", width=12
    ),
}  # fmt: skip

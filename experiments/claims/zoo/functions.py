"""Functions: endpoints as FastAPI or MLflow show them, and shapes that mislead an attack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from experiments.claims import tables
from experiments.claims.subject import Array, Kind, Subject, Table, columns

Function = Callable[[Array], Array]


def numbers(rows: int = 600, width: int = 6, seed: int = 0) -> Array:
    """Gaussian inputs."""
    return np.random.default_rng(seed).standard_normal((rows, width))


def weights(width: int = 6) -> Array:
    """Fixed weights."""
    return np.linspace(-1.0, 1.5, width)


def quantity(function: Function, kind: Kind) -> Callable[[], Subject]:
    """A function of six numbers whose answer is a quantity."""

    def maker() -> Subject:
        X = numbers()
        table = tables.split(X, np.asarray(function(X), dtype=float))
        return Subject(function, table, None, lambda Z: columns(function(Z)), kind, {"input_shape": (X.shape[1],)})

    return maker


def classes(function: Function, kind: Kind) -> Callable[[], Subject]:
    """The same where the sign is a decision."""

    def decide(X: Array) -> Array:
        return (np.asarray(function(X)).reshape(-1) > 0).astype(int)

    def maker() -> Subject:
        X = numbers()
        table = tables.split(X, decide(X))
        return Subject(function, table, decide, lambda Z: columns(function(Z)), kind, {"input_shape": (X.shape[1],)})

    return maker


def endpoint(model: Any, table: Table, kind: Kind, *, decimals: int | None = None) -> Subject:
    """``predict_proba`` behind a function, rounded as an endpoint prints it."""

    def function(X: Array) -> Array:
        shares: Array = model.predict_proba(np.asarray(X))
        return shares if decimals is None else shares.round(decimals)

    def decide(X: Array) -> Array:
        return function(X).argmax(axis=1)

    return Subject(
        function, table, decide, lambda Z: columns(function(Z)), kind,
        {"input_shape": (np.asarray(table.training.X).shape[1],)},
    )  # fmt: skip


def logistic_endpoint() -> Subject:
    table = tables.cancer()
    return endpoint(make_pipeline(StandardScaler(), LogisticRegression()).fit(*table.training), table, "linear")


def rounded_endpoint() -> Subject:
    table = tables.wine()
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(*table.training)
    return endpoint(model, table, "none", decimals=4)


def kernel_endpoint() -> Subject:
    table = tables.cancer()
    model = make_pipeline(StandardScaler(), SVC(probability=True, random_state=0)).fit(*table.training)
    return endpoint(model, table, "smooth")


def saturated(X: Array) -> Array:
    return np.tanh(40.0 * (X @ weights()))


def discontinuous(X: Array) -> Array:
    return X @ weights() + 3.0 * (X[:, 0] > 0)


def rounded(X: Array) -> Array:
    return np.round(X @ weights(), 1)


def clipped(X: Array) -> Array:
    return np.clip(X @ weights(), -1.0, 1.0)


def saw_tooth(X: Array) -> Array:
    return (X @ weights()) % 1.0


def hidden_bump(X: Array) -> Array:
    """Linear but for a narrow tent where few rows are."""
    at = X @ weights() - 2.0
    return X @ weights()[::-1] + np.maximum(0.0, 0.02 - np.abs(at)) * 500.0


def linear_inside(X: Array) -> Array:
    """Linear where most of the data is, and curved outside."""
    s = X @ weights()
    return s + np.maximum(0.0, np.abs(s) - 2.5) ** 2


def shifted(X: Array) -> Array:
    """Linear, far from zero: the answers are 1e6 plus little."""
    return 1e6 + 1e-3 * (X @ weights())


def constant(X: Array) -> Array:
    return np.full(len(X), 3.25)


MODELS: dict[str, Callable[[], Subject]] = {
    "endpoint of a logistic regression": logistic_endpoint,
    "endpoint with four decimals": rounded_endpoint,
    "endpoint of an SVC": kernel_endpoint,
    "saturated tanh": classes(saturated, "smooth"),
    "constant function": quantity(constant, "constant"),
    "discontinuous function": quantity(discontinuous, "piecewise linear"),
    "rounded function": quantity(rounded, "piecewise constant"),
    "clipped function": quantity(clipped, "piecewise linear"),
    "saw-tooth": quantity(saw_tooth, "piecewise linear"),
    "linear with a narrow bump": quantity(hidden_bump, "piecewise linear"),
    "linear inside, curved outside": quantity(linear_inside, "smooth"),
    "linear, far from zero": quantity(shifted, "linear"),
}

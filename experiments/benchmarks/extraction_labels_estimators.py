"""Copies from labels of estimators as people fit them: scikit-learn's own tables, raw units or behind a scaler.

Each is fitted to half of a table, with every class, and attacked with its labels alone around the rows it was fitted to
(``inputs=``). ``same`` is the share of equal decisions on the other half and on as many rows moved by one standard
deviation of each column, which no attack saw. Perceptrons with one and two hidden ReLU layers and linear models can be
copied; what is not of these kinds must never be called equivalent.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.svm import SVC, LinearSVC

import divulge
from divulge.core.errors import BudgetExhausted
from divulge.extraction import from_labels
from experiments.plan import Plan

BUDGET = 300_000
TABLES: dict[str, Callable[..., Any]] = {
    "iris": load_iris, "wine": load_wine, "cancer": load_breast_cancer, "digits": load_digits,
}  # fmt: skip


def perceptron(*layers: int, seed: int, **options: Any) -> MLPClassifier:
    return MLPClassifier(layers, max_iter=400, random_state=seed, **options)


ESTIMATORS: dict[str, Callable[[int], BaseEstimator]] = {
    "MLPClassifier 16, standardised": lambda seed: make_pipeline(StandardScaler(), perceptron(16, seed=seed)),
    "MLPClassifier 16, raw units": lambda seed: perceptron(16, seed=seed),
    "MLPClassifier 8-8, standardised": lambda seed: make_pipeline(StandardScaler(), perceptron(8, 8, seed=seed)),
    "LogisticRegression, raw units": lambda seed: LogisticRegression(max_iter=1000),
    "LinearSVC in [0, 1]": lambda seed: make_pipeline(MinMaxScaler(), LinearSVC(random_state=seed)),
    "SVC, standardised": lambda seed: make_pipeline(StandardScaler(), SVC()),
    "MLPClassifier 16, tanh": lambda seed: make_pipeline(
        StandardScaler(), perceptron(16, seed=seed, activation="tanh")
    ),
    "QuadraticDiscriminantAnalysis": lambda seed: QuadraticDiscriminantAnalysis(reg_param=0.1),
    "KNeighborsClassifier": lambda seed: KNeighborsClassifier(3),
}


def attacked(table: str, make: Callable[[int], BaseEstimator], seed: int) -> dict[str, Any]:
    """What a copy of one estimator took, and how often it decides alike on rows that it never saw."""
    X, y = TABLES[table](return_X_y=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model: Any = make(seed).fit(X[::2], y[::2])
    rows = X[1::2]
    rows = np.concatenate([rows, rows + X.std(axis=0) * np.random.default_rng(seed).normal(size=rows.shape)])
    oracle = divulge.oracle(model, access="label", budget=BUDGET)
    began = time.process_time()
    try:
        stolen = from_labels(oracle, inputs=torch.from_numpy(X[::2]), seed=seed)
    except BudgetExhausted as error:
        stolen = error.partial
    seconds = time.process_time() - began
    copy = divulge.oracle(stolen.model, access="label").label(torch.from_numpy(rows)).numpy()
    return {
        "equivalent": stolen.equivalent, "widths": stolen.widths, "labels": stolen.queries,
        "same": float((model.classes_[copy] == model.predict(rows)).mean()), "seconds": seconds,
        "reason": stolen.reason,
    }  # fmt: skip


def measure(table: str, make: Callable[[int], BaseEstimator], seeds: range) -> dict[str, Any]:
    """The same for several seeds of the estimator and of the attack."""
    runs = [attacked(table, make, seed) for seed in seeds]
    claimed = [run for run in runs if run["equivalent"]]
    return {
        "estimators": len(runs), "equivalent": len(claimed),
        "false": sum(run["same"] < 1 for run in claimed), "labels": [run["labels"] for run in runs],
        "same": [run["same"] for run in runs], "widths": [run["widths"] for run in runs],
        "seconds": max(run["seconds"] for run in runs), "reasons": [run["reason"] for run in runs],
    }  # fmt: skip


def run(plan: Plan) -> dict[str, Any]:
    """Every estimator on every table."""
    torch.set_num_threads(1)
    seeds = plan.seeds_of(3)
    parts = {
        f"{name}, {table}": partial(measure, table, make, seeds)
        for name, make in ESTIMATORS.items()
        for table in TABLES
    }
    return plan.measure("extraction_labels_estimators", parts)

"""Behind scikit-learn's ``predict_proba`` extraction works as from logits, also where probabilities round to 0 or 1."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import divulge
from divulge.extraction import from_values
from divulge.oracles.outputs import LogitOracle, coarse_class

CANCER = load_breast_cancer(return_X_y=True)


def stolen_from(model, X, seed):
    return from_values(divulge.oracle(model.predict_proba, input_shape=(X.shape[1],)), inputs=X, seed=seed)


def off_by(stolen, model, X):
    with torch.no_grad():
        return float(np.abs(stolen.model(torch.from_numpy(X)).numpy() - model.predict_proba(X)).max())


@pytest.mark.parametrize("seed", range(5))
def test_a_logistic_regression_takes_about_sixty_answers(seed):
    X, y = CANCER
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
    stolen = stolen_from(model, X, seed)
    assert stolen.exact
    assert stolen.queries <= 62
    assert off_by(stolen, model, X) < 5e-14


@pytest.mark.slow
@pytest.mark.parametrize("strength", [1e-4, 1e4])
def test_a_logistic_regression_in_own_units_that_is_unsure_or_sure_of_everything(strength):
    X, y = CANCER
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LogisticRegression(C=strength, max_iter=2000).fit(X, y)
    stolen = stolen_from(model, X, 0)
    assert stolen.exact
    assert off_by(stolen, model, X) < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_a_perceptron_behind_a_scaler_is_exact(seed):
    X, y = CANCER
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = MLPClassifier((16,), max_iter=[30, 200][seed % 2], random_state=seed)
        model = make_pipeline(StandardScaler(), network).fit(X, y)
    stolen = stolen_from(model, X, seed)
    assert stolen.exact
    assert stolen.width == 16
    assert off_by(stolen, model, X) < 1e-6
    assert stolen.queries < 4 * 16 * 32


def test_three_classes():
    X, y = load_wine(return_X_y=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make_pipeline(StandardScaler(), MLPClassifier((8,), max_iter=100, random_state=0)).fit(X, y)
    stolen = stolen_from(model, X, 0)
    assert stolen.exact
    assert off_by(stolen, model, X) < 1e-6


@pytest.mark.parametrize("seed", range(2))
def test_two_hidden_layers_are_given_up_soon(seed):
    X, y = CANCER
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = MLPClassifier((20, 10), max_iter=100, random_state=seed)
        model = make_pipeline(StandardScaler(), network).fit(X, y)
    stolen = stolen_from(model, X, seed)
    assert not stolen.exact
    assert "more than one hidden layer" in stolen.reason
    assert stolen.queries < 20_000


def test_which_small_probabilities_are_coarse():
    z = torch.linspace(-20, 20, 41, dtype=torch.float64)[:, None] + 0.1
    p = torch.sigmoid(z)
    assert coarse_class(torch.cat([1 - p, p], dim=1)) == "first"
    assert coarse_class(torch.cat([p, 1 - p], dim=1)) == "last"
    assert coarse_class(torch.softmax(torch.cat([-z, z], dim=1), dim=1)) == "none"
    assert coarse_class(p) == "first"
    assert coarse_class(1 - torch.sigmoid(-z)) == "both"
    assert coarse_class(p.float()) == "both"


def test_logits_that_count_as_precise_are():
    z = torch.linspace(-200, 30, 500, dtype=torch.float64)[:, None]
    target = divulge.oracle(lambda X: torch.sigmoid(torch.as_tensor(X)).numpy(), input_shape=(1,))
    logits = LogitOracle(target, coarse="first")
    found = logits.value(z)
    precise = logits.precise(found)
    assert precise[z[:, 0] < 4].all()
    assert not precise[z[:, 0] > 6].any()
    error = (found - z).abs()[:, 0] / z.abs()[:, 0].clamp_min(logits.largest_logit)
    assert float(error[precise].max()) < 4 * logits.eps


def test_a_regression_whose_answers_are_nearly_all_zero_or_one_is_asked_at_its_boundary():
    X, y = CANCER
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    model = LogisticRegression().fit(X, y)
    model.coef_ *= 300.0
    stolen = stolen_from(model, X, 0)
    assert stolen.exact
    assert stolen.queries < 150
    assert off_by(stolen, model, X) < 1e-6

"""Which of two candidates was it? Certain when training is deterministic; bounded from below when it is not."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import divulge
from divulge import Recipe
from divulge.core.errors import InvalidInput, WrongShape

DIGITS, DIGIT = load_digits(return_X_y=True)
X, y = torch.tensor(DIGITS / 16, dtype=torch.float32), torch.tensor(DIGIT)
RECIPE = Recipe(widths=[64, 6, 10], activation="elu", learning_rate=0.2, momentum=0.9, epochs=20)


@pytest.mark.parametrize("truth", [0, 1])
def test_deterministic_training_tells_for_certain(truth):
    row = 200 + truth
    model = RECIPE.train(torch.cat([X[:60], X[row : row + 1]]), torch.cat([y[:60], y[row : row + 1]]))
    found = divulge.informed.membership(RECIPE, model, X[:60], y[:60], X[200:202], y[200:202])
    assert found.guess == truth
    assert found.certain
    other = Recipe(**{**RECIPE.as_dict(), "seed": 9}).train(X[:60], y[:60])
    assert not divulge.informed.membership(RECIPE, other, X[:60], y[:60], X[200:202], y[200:202]).certain


def test_the_curve_and_the_epsilon_it_implies():
    rng = np.random.default_rng(0)
    mu = 1.0  # two unit Gaussians this far apart: AUC is Phi(mu / sqrt 2)
    curve = divulge.informed.roc(rng.normal(mu, 1, 4000), rng.normal(0, 1, 4000))
    assert curve.auc == pytest.approx(0.5 * (1 + math.erf(mu / 2)), abs=0.015)
    assert curve.tpr_at[0.1] == pytest.approx(0.389, abs=0.04)
    assert 0 < curve.epsilon < 6
    assert np.all(np.diff(curve.fpr) >= 0)
    same = divulge.informed.roc(rng.normal(0, 1, 500), rng.normal(0, 1, 500))
    assert same.epsilon < 0.3
    # a mechanism that is exactly 1-DP: randomised response; the bound must not exceed it
    keep = math.e / (1 + math.e)
    answers = [(rng.random(20_000) < p).astype(float) for p in (keep, 1 - keep)]
    assert 0.8 < divulge.informed.roc(*answers).epsilon <= 1.0
    perfect = divulge.informed.roc(np.ones(1000), np.zeros(1000))
    assert perfect.auc == 1.0
    assert perfect.epsilon > 3


def test_scores_separate_with_a_known_start_only():
    known = divulge.informed.membership_scores(RECIPE, X[:60], y[:60], X[200], y[200], draws=2, fresh_start=False)
    assert known[0].min() > known[1].max()
    fresh = divulge.informed.membership_scores(RECIPE, X[:60], y[:60], X[200], y[200], draws=3)
    assert len(set(fresh[0])) == 3


def test_bad_input():
    with pytest.raises(InvalidInput, match="two candidate rows"):
        divulge.informed.membership(RECIPE, torch.zeros(3), X[:9], y[:9], X[:3], y[:3])
    with pytest.raises(WrongShape, match="another architecture"):
        divulge.informed.membership(RECIPE, torch.zeros(3), X[:9], y[:9], X[:2], y[:2])
    with pytest.raises(InvalidInput, match="finite score"):
        divulge.informed.roc([], [1.0])

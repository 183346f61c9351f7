"""Probabilities of exactly 0 or 1 hide logits: a student still learns from the decisions and shares that they show."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from torch import nn

import divulge
from divulge.datasets import load
from divulge.extraction import by_training
from divulge.extraction.students.answers import Answers, logit_answers
from divulge.extraction.students.matching_loss import value_error
from divulge.oracles.base import decide
from divulge.oracles.guards import guard

STUDENT = {"architecture": "mlp", "widths": [64, 64, 10], "activation": "relu"}


@pytest.fixture(scope="module")
def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    data = load("digits")
    return data.train.X.double(), data.train.y, data.test.X.double()


@pytest.fixture(scope="module")
def network(digits) -> nn.Module:
    X, y, _ = digits
    recipe = divulge.Recipe(
        widths=[64, 16, 10], optimiser="adam", learning_rate=3e-3, epochs=100, batch_size=100, seed=5
    )  # fmt: skip
    return recipe.train(X.float(), y).double()


def agreement(copy: nn.Module, target: nn.Module, X: torch.Tensor) -> float:
    with torch.no_grad():
        return float((decide(copy(X.to(next(copy.parameters()).dtype))) == decide(target(X))).double().mean())


def test_rounded_probabilities_are_learned_from(digits, network) -> None:
    X, _, unseen = digits
    view = guard("round:2")(divulge.oracle(network, access="value", output="probabilities"))
    stolen = by_training(view, STUDENT, X, queries=100, match="values", steps=300, seed=0)
    assert stolen.facts["agreement_on_queries"] > 0.95
    assert agreement(stolen.model, network, unseen) > 0.8


def test_the_shares_of_a_forest_are_learned_from(digits) -> None:
    X, y, unseen = digits
    forest = RandomForestClassifier(20, random_state=0).fit(X.numpy(), y.numpy())
    stolen = by_training(divulge.oracle(forest, access="value"), STUDENT, X, queries=100, match="values", seed=0)
    with torch.no_grad():
        copied = stolen.model(unseen.to(next(stolen.model.parameters()).dtype)).argmax(dim=1).numpy()
    assert np.mean(copied == forest.predict(unseen.numpy())) > 0.75


def test_a_certain_yes_is_no_unknown_one() -> None:
    X = torch.randn(40, 5, generator=torch.Generator().manual_seed(0)).double()
    certain = (X[:, :1] > 0).double()
    answers = logit_answers(X, certain, None, outputs="probabilities")
    assert not answers.shown.any()
    sure = 20 * (2 * certain - 1)
    assert float(value_error(sure, answers, 1.0)) < 1e-6
    assert float(value_error(-sure, answers, 1.0)) > 10


@pytest.mark.parametrize("outputs", ["probabilities", "log-probabilities"])
def test_rows_that_hide_a_class_count_by_cross_entropy(outputs) -> None:
    p = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]).double()
    values = p if outputs == "probabilities" else p.log()
    answers: Answers = logit_answers(torch.zeros(2, 1), values, None, outputs=outputs)
    z = torch.tensor([[0.0, 0.0, -30.0], [0.0, 0.0, 0.0]]).double()
    logits = p[1].log() - p[1].log().mean()
    expected = logits.square().sum() / 6 + np.log(2.0) / 2
    assert float(value_error(z, answers, 1.0)) == pytest.approx(float(expected), abs=1e-9)

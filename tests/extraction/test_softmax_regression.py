"""Softmax regression from one Jacobian."""

from __future__ import annotations

import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import nn

import divulge
from divulge.core.errors import AttackFailed, InvalidInput
from divulge.extraction import softmax_regression
from divulge.models import MLP


def linear(inputs: int, outputs: int, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return MLP([inputs, outputs]).double()


@pytest.mark.parametrize("outputs", [1, 2, 7])
@pytest.mark.parametrize("shown", ["logits", "probabilities"])
def test_one_gradient_query_recovers_the_model(outputs, shown):
    model = linear(30, outputs)
    oracle = divulge.oracle(model, access="gradient", output=shown)
    stolen = softmax_regression(oracle)
    assert stolen.exact
    assert stolen.facts["outputs"] == shown
    assert stolen.ledger.gradient == 1
    assert stolen.check(oracle, 200) < 1e-12


def test_a_single_probability_is_inverted_through_its_derivative():
    model = nn.Sequential(linear(30, 1), nn.Sigmoid())
    oracle = divulge.oracle(model, access="gradient")
    stolen = softmax_regression(oracle, outputs="probabilities")
    assert stolen.exact
    assert torch.allclose(stolen.model[0][0].weight, model[0][0].weight)


def test_a_regression_trained_on_digits_in_float32_predicts_the_same_classes():
    X, y = load_digits(return_X_y=True)
    fitted = LogisticRegression(max_iter=200).fit(X / 16, y)
    model = MLP([64, 10])
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor(fitted.coef_))
        model[0].bias.copy_(torch.tensor(fitted.intercept_))
    oracle = divulge.oracle(model, access="gradient", output="probabilities")
    stolen = softmax_regression(oracle)
    rows = torch.tensor(X / 16)
    with torch.no_grad():
        assert float((stolen.model(rows).argmax(1).numpy() == fitted.predict(X / 16)).mean()) == 1.0


def test_probabilities_saved_come_back_as_logits(tmp_path):
    oracle = divulge.oracle(linear(6, 3), access="gradient", output="probabilities")
    stolen = softmax_regression(oracle)
    again = divulge.oracle(str(stolen.save(tmp_path)), output="probabilities")
    X = torch.randn(5, 6, dtype=torch.float64)
    assert torch.allclose(again.value(X), oracle.value(X))


def test_a_network_with_a_hidden_layer_is_not_called_exact():
    torch.manual_seed(0)
    stolen = softmax_regression(divulge.oracle(MLP([10, 8, 3]).double(), access="gradient"))
    assert not stolen.exact
    assert "not a softmax regression" in stolen.reason


def test_probabilities_of_exactly_one_hide_the_gradient():
    model = linear(5, 2)
    with torch.no_grad():
        model[0].bias.copy_(torch.tensor([0.0, 1e5]))
    with pytest.raises(AttackFailed, match="exactly 0 or 1"):
        softmax_regression(divulge.oracle(model, access="gradient", output="probabilities"), outputs="probabilities")


def test_outputs_are_checked():
    with pytest.raises(InvalidInput):
        softmax_regression(divulge.oracle(linear(3, 2), access="gradient"), outputs="odds")

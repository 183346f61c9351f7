"""Several hidden layers from gradients: certified where all are found, and never where they are not."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch
from torch import nn

import divulge
from divulge.core.errors import BudgetExhausted, InvalidInput
from divulge.extraction import deep_from_gradients, from_gradients
from divulge.models import MLP, load
from divulge.oracles.guards import Rounded


def network(*widths: int, seed: int) -> MLP:
    torch.manual_seed(seed)
    return MLP(widths).double()


def extract(model: nn.Module, seed: int = 0, **options):
    return deep_from_gradients(divulge.oracle(model, access="gradient"), seed=seed, **options)


def error(model: nn.Module, stolen) -> float:
    X = torch.randn(2000, model.input_shape[0], generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    with torch.no_grad():
        return float((model(X) - stolen.model(X)).abs().max() / model(X).std())


@pytest.mark.slow
@pytest.mark.parametrize("inputs", [20, 50])
@pytest.mark.parametrize("seed", range(4))
def test_certifies_networks_of_two_hidden_layers_within_eight_thousand_gradients(inputs, seed):
    model = network(inputs, 16, 16, 1, seed=seed)
    stolen = extract(model, seed)
    assert stolen.exact, stolen.reason
    assert stolen.facts["widths"] == [16, 16]
    assert stolen.ledger.gradient <= 8000
    assert error(model, stolen) < 1e-9


@pytest.mark.slow
def test_several_outputs_and_the_same_shape_on_disk(tmp_path):
    model = network(12, 6, 8, 3, seed=1)
    stolen = extract(model)
    assert stolen.exact
    assert error(model, stolen) < 1e-9
    again = load(stolen.save(tmp_path))
    assert again.spec["widths"] == [12, 6, 8, 3]


def test_one_hidden_layer_is_a_special_case():
    model = network(12, 6, 1, seed=0)
    stolen = extract(model)
    assert stolen.exact
    assert stolen.widths == [6]
    assert error(model, stolen) < 1e-9


def test_linear_and_constant_targets_are_not_certified_as_what_they_are_not():
    for model in (network(6, 1, seed=0), nn.Sequential(nn.Linear(4, 1)).double()):
        stolen = extract(model)
        assert not stolen.exact or stolen.worst_error < 1e-9


@pytest.mark.slow
def test_a_network_deeper_than_the_layers_allowed_is_named():
    model = network(20, 10, 10, 10, 1, seed=0)
    stolen = from_gradients(divulge.oracle(model, access="gradient"), layers=2)
    assert not stolen.exact
    assert "layers" in stolen.reason


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(12, 6), nn.LeakyReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 1)).double(),
    ],
)
def test_other_networks_are_not_certified(model):
    stolen = extract(model)
    assert not stolen.exact
    assert stolen.reason


def test_rounded_answers_are_refused_with_the_reason():
    oracle = Rounded(divulge.oracle(network(12, 6, 6, 1, seed=0), access="gradient"), 6)
    stolen = deep_from_gradients(oracle)
    assert not stolen.exact
    assert "rounds its answers" in stolen.reason


def test_it_is_from_gradients_under_another_name(monkeypatch):
    oracle, rows, given = object(), torch.zeros(3, 4), {}

    def noted(target, **options):
        given.update(options, oracle=target)
        return "the copy"

    monkeypatch.setattr(import_module("divulge.extraction.deep_from_gradients"), "from_gradients", noted)
    options = {"inputs": rows, "seed": 3, "outputs": "logits", "checks": 7}
    assert deep_from_gradients(oracle, **options) == "the copy"
    assert given == {"oracle": oracle, **options}


@pytest.mark.parametrize("budget", [2, 100, 700])
def test_a_budget_keeps_what_was_found(budget):
    oracle = divulge.oracle(network(20, 16, 16, 1, seed=0), access="gradient", budget=budget)
    with pytest.raises(BudgetExhausted) as caught:
        deep_from_gradients(oracle)
    assert not caught.value.partial.exact
    assert caught.value.partial.queries <= budget


def test_checks_are_checked():
    with pytest.raises(InvalidInput):
        extract(network(4, 3, 3, 1, seed=0), checks=1)


def test_a_smooth_target_is_named_in_a_few_rows():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    stolen = extract(model)
    assert not stolen.exact
    assert "tanh" in stolen.reason
    assert stolen.queries < 100

"""Exact extraction behind probabilities: the network beneath the softmax, up to what softmax cannot see."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import divulge
from divulge.core.errors import InvalidInput
from divulge.extraction import from_gradients, from_values, match_neurons
from divulge.extraction.attack_space import attack_space
from divulge.models import MLP, ReluNetwork
from divulge.oracles.local.torch_module import Probabilities
from divulge.oracles.outputs import LogitOracle


def network(inputs: int, width: int, outputs: int, seed: int) -> ReluNetwork:
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    return ReluNetwork(normal(width, inputs) / inputs**0.5, 0.5 * normal(width), normal(outputs, width))


def shown(model: nn.Module) -> nn.Sequential:
    return nn.Sequential(model, Probabilities())


def oracle_of(model: nn.Module, inputs: int, **options):
    return divulge.oracle(model, access="gradient", input_shape=(inputs,), **options)


@pytest.mark.slow
@pytest.mark.parametrize("attack", [from_gradients, from_values])
@pytest.mark.parametrize("outputs", [2, 5])
@pytest.mark.parametrize("seed", range(5))
def test_probabilities_are_recognised_and_the_network_beneath_them_comes_out(attack, outputs, seed):
    model = network(20, 12, outputs, seed)
    oracle = oracle_of(shown(model), 20)
    stolen = attack(oracle, seed=seed)
    assert stolen.exact, stolen.reason
    assert stolen.width == 12
    assert stolen.ledger.total == oracle.ledger.total
    assert stolen.queries + stolen.verification.total == oracle.ledger.total
    assert stolen.facts["outputs"] == "probabilities"
    assert stolen.check(oracle, 500) < 1e-8
    centred = ReluNetwork(model.A, model.b, model.W - model.W.mean(dim=0))
    assert match_neurons(stolen.model[0], centred).worst < 1e-6


@pytest.mark.parametrize("attack", [from_gradients, from_values])
@pytest.mark.parametrize("said", ["probabilities", None])
def test_a_single_probability_is_as_good_as_its_logit(attack, said):
    model = nn.Sequential(network(20, 6, 1, 4), nn.Sigmoid())
    for oracle in (oracle_of(model, 20), divulge.oracle(model, access="gradient", input_shape=(20,))):
        stolen = attack(oracle, outputs=said)
        assert stolen.exact, stolen.reason
        assert stolen.facts["outputs"] == "probabilities"
        assert stolen.check(oracle, 500) < 1e-8


def test_a_copy_of_probabilities_is_saved_as_its_logits(tmp_path):
    model = network(10, 6, 3, 1)
    stolen = from_gradients(oracle_of(shown(model), 10))
    stolen.save(tmp_path)
    assert stolen.to_onnx(tmp_path / "copy.onnx").exists()
    again = divulge.oracle(str(tmp_path), output="probabilities")
    exported = divulge.oracle(str(tmp_path / "copy.onnx"))
    X = torch.randn(50, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        assert torch.allclose(again.value(X).double(), shown(model)(X), atol=1e-9)
        assert torch.allclose(exported.value(X).double(), shown(model)(X), atol=1e-6)


@pytest.mark.parametrize("attack", [from_gradients, from_values])
@pytest.mark.parametrize("activation", ["tanh", "elu"])
def test_smooth_networks_beneath_a_softmax_are_still_named(attack, activation):
    torch.manual_seed(0)
    model = nn.Sequential(MLP([20, 16, 3], activation=activation).double(), Probabilities())
    stolen = attack(oracle_of(model, 20))
    assert not stolen.exact
    assert "not piecewise linear" in stolen.reason


def test_logits_and_their_gradients_are_those_of_the_network():
    model = network(8, 5, 3, 2)
    X = torch.randn(6, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    value, gradient = LogitOracle(oracle_of(shown(model), 8)).gradient(X)
    plain, slopes = oracle_of(model, 8).gradient(X)
    assert torch.allclose(value, plain - plain.mean(dim=1, keepdim=True))
    assert torch.allclose(gradient, slopes - slopes.mean(dim=1, keepdim=True))


def test_logits_are_left_alone_and_nonsense_is_refused():
    oracle = oracle_of(network(8, 5, 3, 2), 8)
    assert attack_space(oracle).oracle.oracle is oracle
    with pytest.raises(InvalidInput):
        from_gradients(oracle, outputs="odds")


@pytest.mark.parametrize("shows_probability", [False, True])
def test_corners_are_not_taken_for_the_curvature_of_a_probability(shows_probability):
    """Answers between 0 and 1 of 400 neurons, so that short segments often hold a corner or two."""
    X = torch.randn(2000, 20, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for seed in range(30):
        model = network(20, 400, 1, seed)
        with torch.no_grad():
            mean, deviation = model(X).mean(), model(X).std()

        def answers(rows, model=model, mean=mean, deviation=deviation):
            with torch.no_grad():
                logit = (model(torch.from_numpy(rows)) - mean) / deviation
            return (torch.sigmoid(logit) if shows_probability else 0.5 + 0.05 * logit).numpy()

        space = attack_space(divulge.oracle(answers, access="value", input_shape=(20,)), seed=0)
        seen = space.oracle.value(X[:30])
        assert space.may_be_probabilities(seen) is shows_probability, seed

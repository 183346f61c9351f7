"""A copy in any order, scale and orientation comes back as the weights that were trained."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from divulge.core.errors import AttackFailed, InvalidInput, UnsupportedModel
from divulge.models import MLP, ReluNetwork
from divulge.models.weight_matrices import Network, read
from divulge.reconstruction import rebalance
from divulge.training import diagnose, margin

from ..margin_targets import Target, odd_digits


def disguised(network: Network, seed: int) -> Network:
    """The same function, its first hidden units in another order and at other scales."""
    generator = torch.Generator().manual_seed(seed)
    width = len(network.weights[0])
    scale = torch.randn(width, generator=generator, dtype=torch.float64).exp()
    order = torch.randperm(width, generator=generator)
    bias = network.biases[0]
    first = (network.weights[0] * scale[:, None])[order]
    weights = (first, (network.weights[1] / scale)[:, order], *network.weights[2:])
    return Network(weights, (None if bias is None else (bias * scale)[order], *network.biases[1:]))


def mirrored(network: Network, seed: int) -> ReluNetwork:
    """The same one-hidden-layer function as extraction finds it: random units mirrored, the rest affine."""
    copy = disguised(network, seed)
    bias = copy.biases[0]
    assert bias is not None
    flip = torch.rand(len(bias), generator=torch.Generator().manual_seed(seed), dtype=torch.float64) < 0.5
    sign = torch.where(flip, -1.0, 1.0).double()
    outgoing = copy.weights[1] * flip
    return ReluNetwork(copy.weights[0] * sign[:, None], bias * sign, copy.weights[1],
                       outgoing @ copy.weights[0], outgoing @ bias)  # fmt: skip


def residual(model: torch.nn.Module, X: Tensor, y: Tensor) -> float:
    return diagnose(model, X, y).layers[0]


@pytest.mark.parametrize("by", ["flow", "auto"])
def test_one_hidden_layer_gets_its_stationarity_back(target: Target, by: rebalance.By) -> None:
    network = read(target.model)
    before = residual(target.model, target.X, target.y)
    copy = disguised(network, seed=1).module()
    assert residual(copy, target.X, target.y) > before + 0.3
    back = rebalance.rebalance(copy, by=by)
    assert residual(back, target.X, target.y) < before + 0.02
    assert torch.allclose(read(back)(target.X), network(target.X))


def test_a_deep_network_is_measured_by_its_initial_noise() -> None:
    X, y, _ = odd_digits(10, seed=1)
    X = X - X.mean(dim=0)
    model = margin.to_margin(margin.network([64, 200, 100, 1], first_scale=1e-3, seed=1), X, y).model
    before = residual(model, X, y)
    copy = disguised(read(model), seed=2).module()
    assert residual(copy, X, y) > before + 0.3
    assert residual(rebalance.rebalance(copy), X, y) < before + 0.03
    assert residual(rebalance.rebalance(copy, by="flow"), X, y) > before + 0.05


def test_without_noise_there_is_no_ruler() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(30, 4, generator=generator, dtype=torch.float64)
    first = rows @ torch.randn(4, 65, generator=generator, dtype=torch.float64)
    model = Network((first[:, :-1], torch.ones(1, 30).double()), (first[:, -1], None)).module()
    with pytest.raises(AttackFailed, match="too little initial noise"):
        rebalance.rebalance(model, by="noise")
    flow = read(rebalance.rebalance(model))
    assert torch.allclose(flow.first().norm(dim=1), flow.weights[1].norm(dim=0))
    with pytest.raises(InvalidInput, match="magic"):
        rebalance.rebalance(model, by="magic")  # type: ignore[arg-type]


def test_a_mirrored_copy_comes_back_oriented_and_balanced() -> None:
    X, y, _ = odd_digits(10, seed=2)
    X = X - X.mean(dim=0)
    for seed in range(3):
        start = margin.network([64, 50, 1], first_scale=2e-3, balanced=True, seed=seed)
        model = margin.to_margin(start, X, y).model
        back = rebalance.orient(mirrored(read(model), seed))
        assert torch.allclose(read(back)(X), read(model)(X), atol=1e-8)
        assert read(back).homogeneous
        assert residual(back, X, y) < residual(model, X, y) + 0.01


def test_several_outputs_are_oriented_together() -> None:
    network = read(MLP([20, 15, 4], bias="first").double())
    back = rebalance.orient(mirrored(network, 3))
    X = torch.randn(10, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(read(back)(X), network(X), atol=1e-8)


def test_an_output_bias_is_kept() -> None:
    network = read(MLP([20, 15, 1]).double())
    copy = mirrored(Network(network.weights, (network.biases[0], None)), 0)
    output_bias = network.biases[1]
    assert output_bias is not None
    with torch.no_grad():
        copy.q += output_bias
    X = torch.randn(10, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(read(rebalance.orient(copy))(X), network(X), atol=1e-8)


def test_a_copy_that_missed_a_unit_is_refused() -> None:
    copy = mirrored(read(MLP([20, 15, 1], bias="first").double()), 1)
    short = ReluNetwork(copy.A[:-1], copy.b[:-1], copy.W[:, :-1], copy.P + 0.3, copy.q)
    with pytest.raises(AttackFailed, match="does not come out whole"):
        rebalance.orient(short)


def test_too_many_units_leave_the_orientation_open() -> None:
    copy = mirrored(read(MLP([5, 15, 1], bias="first").double()), 1)
    with pytest.raises(AttackFailed, match="no more units than inputs"):
        rebalance.orient(copy)
    with pytest.raises(UnsupportedModel, match="ReluNetwork"):
        rebalance.orient(MLP([5, 4, 1]))


def disguised_everywhere(network: Network, seed: int) -> Network:
    """The same function, the units of all hidden layers at other scales."""
    generator = torch.Generator().manual_seed(seed)
    weights, biases = list(network.weights), list(network.biases)
    for depth in range(len(weights) - 1):
        scale = torch.randn(len(weights[depth]), generator=generator, dtype=torch.float64).exp()
        weights[depth] = weights[depth] * scale[:, None]
        bias = biases[depth]
        biases[depth] = None if bias is None else bias * scale
        weights[depth + 1] = weights[depth + 1] / scale
    return Network(tuple(weights), tuple(biases))


def test_all_layers_of_a_deep_copy_are_balanced_and_the_function_stays():
    torch.manual_seed(0)
    model = MLP([12, 7, 5, 6, 2], bias="first").double()
    copy = disguised_everywhere(read(model), 1).module()
    once, twice = rebalance.rebalance_all(model), rebalance.rebalance_all(copy)
    X = torch.randn(50, 12, dtype=torch.float64)
    assert torch.allclose(twice(X), model(X), rtol=1e-10, atol=1e-12)
    for mine, theirs in zip(read(once).weights, read(twice).weights, strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-6, atol=1e-9)


def test_rounding_in_later_biases_of_a_copy_is_left_out():
    torch.manual_seed(0)
    model = MLP([12, 7, 5, 1]).double()
    with torch.no_grad():
        for layer in (model[2], model[4]):
            layer.bias.fill_(1e-13)
    assert read(rebalance.rebalance_all(model)).homogeneous
    assert not read(rebalance.rebalance_all(MLP([12, 7, 5, 1]).double())).homogeneous

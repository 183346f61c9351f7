"""Rounding gives away what cancels: narrow bumps are met, ordinary networks raise no alarm."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from divulge.extraction.hidden_bumps import compare_rounding
from divulge.extraction.relu_network import NetworkEstimate
from divulge.models import ReluNetwork


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def network(seed: int) -> ReluNetwork:
    return ReluNetwork(
        normal(16, 20, seed=seed) / 20**0.5, 0.5 * normal(16, seed=seed + 1), normal(1, 16, seed=seed + 2)
    )


def copy_of(model: ReluNetwork) -> NetworkEstimate:
    length = model.A.detach().norm(dim=1)
    A, b, W = model.A.detach() / length[:, None], model.b.detach() / length, model.W.detach() * length
    return NetworkEstimate.of(A, b, W, torch.zeros(1, 20), torch.zeros(1))


def with_neurons(model: ReluNetwork, A: Tensor, b: Tensor, W: Tensor) -> ReluNetwork:
    return ReluNetwork(torch.cat([model.A, A]), torch.cat([model.b, b]), torch.cat([model.W, W], dim=1))


def asked(target, copy: NetworkEstimate, seed: int):
    def ask(X: Tensor) -> Tensor:
        with torch.no_grad():
            return target(X)

    X = 3 * normal(32, 20, seed=seed + 5)
    return compare_rounding(ask, copy, X, ask(X), allowed=1e-9, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("width", [0.03, 0.01, 1e-3, 1e-4])
@pytest.mark.parametrize("seed", range(5))
def test_a_bump_that_no_point_hit_is_met(width, seed):
    a = normal(1, 20, seed=seed + 9)
    a = a / a.norm()
    b = 0.5 * normal(1, seed=seed + 10)
    tent = torch.tensor([[1.0, -2.0, 1.0]]).double() * 2 / width
    target = with_neurons(network(seed), a.repeat(3, 1), b - torch.tensor([0, 0.5, 1]).double() * width, tent)
    point = asked(target, copy_of(network(seed)), seed).point
    assert point is not None
    assert 0 < float(point @ a[0] + b) < width


@pytest.mark.parametrize("seed", range(20))
def test_a_network_with_its_own_copy_raises_no_alarm(seed):
    found = asked(network(seed), copy_of(network(seed)), seed)
    assert found.point is None
    assert not found.hidden


@pytest.mark.parametrize("seed", range(5))
def test_neurons_that_cancel_on_a_known_hyperplane_hide_nothing(seed):
    base = network(seed)
    target = with_neurons(base, base.A[[0, 0]], base.b[[0, 0]], torch.tensor([[1e4, -1e4]]).double())
    found = asked(target, copy_of(base), seed)
    assert found.point is None
    assert not found.hidden


def test_noise_on_one_side_of_an_unknown_hyperplane_is_reported():
    target, noise = network(3), torch.Generator().manual_seed(0)

    def rough(X: Tensor) -> Tensor:
        side = (X[:, :1] > 0.2).double()
        return target(X) + 1e-12 * side * torch.randn(len(X), 1, generator=noise, dtype=torch.float64)

    found = asked(rough, copy_of(target), 3)
    assert found.point is None
    assert found.hidden

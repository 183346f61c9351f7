"""An oracle in the coordinates of a region answers as the target does at the inputs that they stand for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import divulge
from divulge.core.errors import InvalidInput, WrongShape
from divulge.oracles import Region, RegionOracle


@pytest.fixture
def model() -> nn.Module:
    return nn.Linear(3, 2).double()


ROWS = torch.tensor([[100.0, 0.1, 5.0], [300.0, 0.3, 5.0], [200.0, 0.2, 5.0]], dtype=torch.float64)


def test_values_gradients_and_labels_are_those_at_the_inputs(model: nn.Module) -> None:
    oracle = divulge.oracle(model, access="gradient")
    region = Region.of(ROWS, oracle)
    inside = RegionOracle(oracle, region)
    U = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    X = region.to_inputs(U)
    assert torch.allclose(region.standardised(X), U)
    assert torch.allclose(inside.value(U), model(X))
    values, gradients = inside.gradient(U)
    assert torch.allclose(values, model(X))
    assert torch.allclose(gradients, (model.weight * region.scale).expand(4, 2, 3))
    assert torch.equal(inside.label(U), oracle.label(X))
    assert oracle.ledger.total == 4 + 4 + 4 + 4  # every row counts once, on the target's own ledger


def test_a_constant_column_has_the_size_of_its_value_as_its_scale(model: nn.Module) -> None:
    oracle = divulge.oracle(model, access="value")
    assert Region.of(ROWS, oracle).scale[2] == 5
    assert Region.of(ROWS * torch.tensor([1, 1, 0]), oracle).scale[2] == 1
    assert Region.of(None, oracle).standard
    assert Region.of(None, oracle).oracle(oracle) is oracle
    assert not Region.of(ROWS, oracle).standard


def test_a_region_that_does_not_fit_is_refused(model: nn.Module) -> None:
    oracle = divulge.oracle(model, access="value")
    with pytest.raises(WrongShape):
        Region.of(torch.zeros(4, 2), oracle)
    with pytest.raises(InvalidInput, match="at least two"):
        Region.of(ROWS[:1], oracle)
    with pytest.raises(WrongShape):
        Region.of(Region(torch.zeros(2), torch.ones(2)), oracle)
    with pytest.raises(InvalidInput, match="positive"):
        Region.of(Region(torch.zeros(3), torch.zeros(3)), oracle)

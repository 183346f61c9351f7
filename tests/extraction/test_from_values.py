"""Exact extraction from values: what it promises on random and trained networks, and how it says no."""

from __future__ import annotations

import pytest
import torch

import divulge
from divulge.extraction import from_values
from divulge.models import ReluNetwork


def random_network(inputs: int, width: int, seed: int, *, outputs: int = 1) -> ReluNetwork:
    g = torch.Generator().manual_seed(seed)
    double = torch.float64
    return ReluNetwork(
        torch.randn(width, inputs, generator=g, dtype=double) / inputs**0.5,
        0.5 * torch.randn(width, generator=g, dtype=double),
        torch.randn(outputs, width, generator=g, dtype=double),
    )


@pytest.mark.parametrize("seed", range(5))
def test_recovers_random_networks_at_little_more_than_one_value_a_parameter(seed):
    oracle = divulge.oracle(random_network(100, 32, seed), access="value")
    stolen = from_values(oracle, seed=seed)
    assert stolen.exact
    assert stolen.width == 32
    assert stolen.check(oracle, 500) < 1e-8 * stolen.scale
    assert stolen.queries < 1.2 * 33 * 101

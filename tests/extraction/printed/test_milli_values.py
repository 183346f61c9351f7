"""Algorithm 1-MQ as printed: its step, what it learns, and that it notices its failures."""

from __future__ import annotations

import pytest
import torch

import divulge
from divulge.core.errors import BudgetExhausted, InvalidInput
from divulge.extraction import from_values
from divulge.extraction.printed.milli_gradients import resolution
from divulge.extraction.printed.milli_values import step_of
from divulge.models import ReluNetwork


def homogeneous(inputs: int, width: int, seed: int, *, outputs: int = 1) -> ReluNetwork:
    g = torch.Generator().manual_seed(seed)
    A = torch.randn(width, inputs, generator=g, dtype=torch.float64)
    W = torch.randn(outputs, width, generator=g, dtype=torch.float64)
    return ReluNetwork(A / A.norm(dim=1, keepdim=True), torch.zeros(width, dtype=torch.float64), W)


def test_the_step_keeps_theorem_fours_promise():
    for width in (2, 8, 32):
        eps, end = resolution(width, 0.05)
        wrong = 2 * end * width * step_of(width, 0.1) / eps  # probability that some estimate is not exact
        assert (1 - 0.05) * (1 - wrong) >= 1 - 0.1 - 1e-12


def test_it_learns_small_networks_or_says_that_it_did_not():
    close = 0
    for seed in range(5):
        oracle = divulge.oracle(homogeneous(10, 4, seed), access="value")
        stolen = from_values(oracle, seed=seed, method="paper", width=4)
        assert stolen.method == "paper"
        if stolen.width:
            assert stolen.check(oracle, 200) < 1e-3 * stolen.scale
            close += 1
        else:
            assert "noticed its failure" in stolen.reason
    assert close >= 3


def test_a_width_that_is_too_large_is_noticed():
    stolen = from_values(divulge.oracle(homogeneous(10, 3, 0), access="value"), method="paper", width=5)
    assert not stolen.exact
    assert "fewer kinks" in stolen.reason


def test_what_it_cannot_do_is_said_at_the_door():
    oracle = divulge.oracle(homogeneous(6, 3, 0), access="value")
    for options in ({}, {"width": 0}, {"width": 3, "delta": 2.0}):
        with pytest.raises(InvalidInput):
            from_values(oracle, method="paper", **options)
    with pytest.raises(InvalidInput):
        from_values(divulge.oracle(homogeneous(6, 3, 0, outputs=2), access="value"), method="paper", width=3)


def test_a_budget_that_ends_leaves_the_count_of_what_was_found():
    with pytest.raises(BudgetExhausted) as caught:
        from_values(divulge.oracle(homogeneous(10, 3, 0), access="value", budget=300), method="paper", width=3)
    assert caught.value.partial.facts["hyperplanes"] < 3

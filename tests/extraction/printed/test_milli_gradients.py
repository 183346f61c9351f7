"""Milli 2019, Algorithm 1 as printed: it succeeds where its theorem says so, and notices where it does not."""

from __future__ import annotations

import math

import pytest
import torch

import divulge
from divulge.core.errors import BudgetExhausted, InvalidInput
from divulge.extraction import from_gradients, match_neurons
from divulge.extraction.printed.milli_gradients import resolution
from divulge.models import ReluNetwork


def network(inputs: int, width: int, seed: int, bias: float = 0.0) -> ReluNetwork:
    g = torch.Generator().manual_seed(seed)
    return ReluNetwork(
        torch.randn(width, inputs, generator=g, dtype=torch.float64) / inputs**0.5,
        bias * torch.randn(width, generator=g, dtype=torch.float64),
        torch.randn(1, width, generator=g, dtype=torch.float64),
    )


def extract(model, width, **options):
    return from_gradients(divulge.oracle(model, access="gradient"), width=width, method="paper", **options)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_recovers_networks_without_biases_and_every_sign(seed):
    model = network(30, 10, seed)
    stolen = extract(model, 10, seed=seed)
    assert stolen.exact
    assert stolen.method == "paper"
    assert match_neurons(stolen.model, model).worst < 1e-9


def test_costs_what_the_theorem_says():
    stolen = extract(network(40, 16, 0), 16)
    eps, length = resolution(16, 0.05)
    assert stolen.ledger.gradient / 16 <= math.log2(2 * length / eps) + 1
    assert stolen.ledger.gradient / 16 > 0.7 * math.log2(length / eps)
    assert stolen.ledger.value == 2 * 16 + stolen.verified_points


def test_the_resolution_solves_the_equation_of_the_proof():
    eps, length = resolution(50, 0.1, separation=0.3)
    assert length == 2500
    assert 3 ** (4 / 3) * (eps / 0.3) ** (2 / 3) * 50**2 - 2 * 50 / (math.pi * length) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("model", "width"),
    [
        (network(20, 8, 0, bias=0.5), 8),  # biases
        (network(20, 8, 0), 11),  # more neurons announced than there are
        (network(20, 8, 0), 5),  # fewer
        (network(5, 9, 0), 9),  # more neurons than inputs
    ],
)
def test_notices_its_failure_where_its_assumptions_do_not_hold(model, width):
    stolen = extract(model, width)
    assert not stolen.exact
    assert stolen.reason


def test_a_budget_returns_the_hyperplanes_found():
    oracle = divulge.oracle(network(30, 10, 1), access="gradient", budget=120)
    with pytest.raises(BudgetExhausted) as caught:
        from_gradients(oracle, width=10, method="paper")
    assert 0 < caught.value.partial.facts["hyperplanes"] < 10


def test_needs_a_width_one_output_and_a_probability():
    model = network(10, 4, 0)
    two = ReluNetwork(model.A, model.b, model.W.repeat(2, 1))
    for arguments, options in (((model, None), {}), ((two, 4), {}), ((model, 4), {"delta": 0.0})):
        with pytest.raises(InvalidInput):
            extract(*arguments, **options)

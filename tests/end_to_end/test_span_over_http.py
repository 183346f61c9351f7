"""The span of a served model, through real HTTP, with values only: the same rank as with the model in hand."""

from __future__ import annotations

import pytest
import torch

import divulge
from divulge.models import MLP
from divulge.serving import running


@pytest.mark.parametrize("precision", ["native", "double"])
def test_values_over_http_give_the_rank_of_the_first_layer(precision: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MLP([64, 16, 20, 10])  # float32, as most served models are
    weight = model[0].weight.detach().double()
    with running(model, precision=precision) as url:
        remote = divulge.oracle(url, access="value")
        span = divulge.span.from_gradients(remote)
    in_hand = divulge.span.from_gradients(divulge.oracle(model, access="gradient", precision="double"))
    assert span.rank == in_hand.rank == 16
    assert span.source == "values"
    assert span.ledger.value == span.queries < (1200 if precision == "double" else 4000)
    assert 0 < span.ledger.requests < 100
    assert span.angle_to(weight) < (1e-6 if precision == "double" else 0.2)
    noisy = divulge.span.obfuscate(torch.rand(20, 64, generator=torch.Generator().manual_seed(1)), in_hand)
    assert float((noisy @ weight.T).std()) > 0


@pytest.mark.slow
def test_labels_over_http_give_it_too() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = MLP([12, 3, 6, 4], activation="tanh").double()
    with running(model) as url:
        span = divulge.span.from_labels(divulge.oracle(url, access="label"), 3)
    assert span.rank == 3
    assert span.angle_to(model[0].weight.detach()) < 1e-6
    assert span.ledger.requests < span.ledger.label / 4  # labels go out in batches

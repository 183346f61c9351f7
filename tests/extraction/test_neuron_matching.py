"""Matching neurons up to order, scale and sign."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from divulge.core.errors import UnsupportedModel
from divulge.extraction import match_neurons
from divulge.models import MLP, ReluNetwork


def network(width: int = 6, seed: int = 0) -> ReluNetwork:
    g = torch.Generator().manual_seed(seed)
    double = torch.float64
    return ReluNetwork(
        torch.randn(width, 10, generator=g, dtype=double), torch.randn(width, generator=g, dtype=double),
        torch.randn(2, width, generator=g, dtype=double),
    )  # fmt: skip


def test_order_scale_and_sign_do_not_matter():
    model = network()
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    scale = torch.tensor([1.0, -2.0, 0.5, -1.0, 3.0, 0.1]).double()[:, None]
    other = ReluNetwork((model.A * scale)[order], (model.b[:, None] * scale)[order, 0], (model.W / scale.T)[:, order])
    match = match_neurons(other, model)
    assert match.worst < 1e-12
    assert match.pairs[:, 1].tolist() == order.tolist()
    assert match.found() == 6
    assert match.missing == match.extra == ()


def test_missing_extra_and_wrong_neurons_are_named():
    model = network()
    with torch.no_grad():
        spoilt = ReluNetwork(model.A[:5].clone(), model.b[:5], model.W[:, :5])
        spoilt.A[2] += 0.01
    match = match_neurons(spoilt, model)
    assert match.missing == (5,)
    assert match.found(1e-6) == 4
    assert match_neurons(model, spoilt).extra == (5,)


def test_an_empty_copy_misses_everything():
    model = network()
    empty = ReluNetwork(model.A[:0], model.b[:0], model.W[:, :0])
    match = match_neurons(empty, model)
    assert match.missing == tuple(range(6))
    assert match.worst == 0.0


def test_plain_sequences_count_as_one_hidden_layer_and_deeper_ones_are_refused():
    plain = nn.Sequential(nn.Linear(4, 3, bias=False), nn.ReLU(), nn.Linear(3, 1))
    assert match_neurons(plain, plain).worst < 1e-12
    with pytest.raises(UnsupportedModel):
        match_neurons(MLP([4, 3, 3, 1]), plain)

"""Algorithm 2 as printed works, given numbers long enough: a quarter of their bits come out right."""

from __future__ import annotations

import math

import pytest
from torch import nn

import divulge
from divulge.core.errors import AttackFailed, BudgetExhausted, InvalidInput, UnsupportedModel
from divulge.span import from_labels
from divulge.span.printed import _layers, _mpmath

from .networks import first_layer, network


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["tanh", "softplus"])
def test_twice_the_bits_give_twice_the_digits(activation: str) -> None:
    model = network([6, 2, 4, 1], 0, activation=activation, balanced=True)
    angles = {}
    for bits in (64, 128):
        oracle = divulge.oracle(model, access="weights")
        span = from_labels(oracle, 2, precision="extended", bits=bits)
        assert (span.rank, span.method, span.facts["bits"]) == (2, "paper", bits)
        assert span.queries == oracle.ledger.label
        angles[bits] = math.log2(span.angle_to(first_layer(model)))
    assert angles[128] < -20
    assert angles[64] - angles[128] > 10
    assert angles[128] > -40  # and no more than its bits can give


def test_in_double_precision_it_gives_two_digits_where_ours_gives_eight() -> None:
    model = network([6, 2, 4, 1], 0, activation="tanh", balanced=True)
    printed = from_labels(divulge.oracle(model, access="label"), 2, method="paper")
    ours = from_labels(divulge.oracle(model, access="label"), 2)
    assert printed.facts["precision"] == "double"
    assert 1e-5 < printed.angle_to(first_layer(model)) < 0.3
    assert ours.angle_to(first_layer(model)) < 1e-7


def test_without_a_rank_it_stops_when_labels_no_longer_change() -> None:
    model = network([5, 2, 4, 1], 1, activation="tanh", balanced=True)
    span = from_labels(divulge.oracle(model, access="weights"), precision="extended", bits=96, tries=200)
    assert 1 <= span.rank <= 2
    short = from_labels(divulge.oracle(model, access="weights"), 4, precision="extended", bits=96, tries=200)
    assert not short.complete
    assert "Asked for rank 4" in short.notes[0]


def test_labels_that_never_change_and_budgets_that_end_say_so() -> None:
    model = network([5, 2, 1], 0)
    model[-1].weight.data.zero_()
    with pytest.raises(AttackFailed, match="never changed"):
        from_labels(divulge.oracle(model, access="weights"), 2, precision="extended", bits=64, tries=64)
    balanced = network([5, 2, 4, 1], 1, activation="tanh", balanced=True)
    with pytest.raises(BudgetExhausted) as caught:
        from_labels(divulge.oracle(balanced, access="weights", budget=300), 2, precision="extended", bits=64)
    assert caught.value.partial.rank < 2


def test_long_numbers_need_the_weights_of_a_network_they_know() -> None:
    model = network([5, 2, 1], 0)
    with pytest.raises(InvalidInput, match="weights"):
        from_labels(divulge.oracle(model, access="label"), 2, precision="extended")
    with pytest.raises(InvalidInput, match="bits"):
        from_labels(divulge.oracle(model, access="weights"), 2, precision="extended", bits=8)
    with pytest.raises(UnsupportedModel, match="GELU"):
        _layers(nn.Sequential(nn.Linear(2, 1), nn.GELU()), _mpmath(64))
    with pytest.raises(UnsupportedModel, match="Sequential"):
        _layers(nn.Linear(2, 1), _mpmath(64))


def test_the_long_network_is_the_network() -> None:
    mp = _mpmath(100)
    for activation in ("relu", "sigmoid", "tanh", "softplus"):
        model = network([3, 4, 2], 0, activation=activation, bias="first")
        point = [0.3, -1.0, 2.0]
        value = [mp.mpf(number) for number in point]
        for layer in _layers(model, mp):
            value = layer(value)
        expected = divulge.oracle(model, access="value").value([point])[0].tolist()
        assert [float(number) for number in value] == pytest.approx(expected, rel=1e-13)


def test_several_classes_are_decided_by_the_largest() -> None:
    model = network([4, 2, 3], 3, activation="tanh")
    span = from_labels(divulge.oracle(model, access="weights"), 1, precision="extended", bits=96)
    assert span.rank == 1
    assert span.angle_to(first_layer(model)) < 1e-3

"""A model that is exchanged while it is attacked: no copy is called exact that an answer contradicts."""

from __future__ import annotations

import copy
import random
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import divulge
from divulge import extraction
from divulge.models import MLP

ATTACKS = {
    "from_values": ("value", extraction.from_values),
    "from_gradients": ("gradient", extraction.from_gradients),
    "worst_case": ("value", extraction.worst_case),
}
CHANGES = ("another model", "scale", "level", "one neuron")


class Exchanged(nn.Module):
    """One model for the first rows, another one from then on; knows whether anybody could have told."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second
        self.at, self.rows, self.shown = 10**9, 0, False

    def __deepcopy__(self, memo: object) -> Exchanged:
        return self  # an oracle's own copy counts the same rows

    def forward(self, X: Tensor) -> Tensor:
        places = self.rows + torch.arange(len(X))[:, None]
        self.rows += len(X)
        one, other = self.first(X), self.second(X)
        late = places >= self.at
        self.shown |= bool((late & ((one - other).abs() > 1e-6)).any())
        return torch.where(late, other, one)


def pair(change: str, seed: int) -> Exchanged:
    torch.manual_seed(seed)
    first = MLP([4, 4, 1]).double()
    for parameter in first.parameters():
        parameter.data = torch.randn_like(parameter)
    second = copy.deepcopy(first)
    _, _, weights, level = second.parameters()
    if change == "another model":
        for parameter in second.parameters():
            parameter.data = torch.randn_like(parameter)
    elif change == "scale":
        weights.data *= 1.001
    elif change == "level":
        level.data += 1e-3
    else:
        weights.data[0, 0] *= 1.5
    return Exchanged(first, second)


def attacked(model: Exchanged, attack: str, at: int) -> extraction.Extraction | None:
    """The result of an attack on the model that is exchanged at this row; None where it was refused."""
    access, run = ATTACKS[attack]
    model.at, model.rows, model.shown = 10**9, 0, False
    oracle = divulge.oracle(model, access=access, input_shape=[4])
    model.at, model.rows = at, 0
    try:
        return run(oracle, seed=0)
    except divulge.DivulgeError:
        return None


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("attack", ATTACKS)
def test_no_copy_is_exact_that_an_answer_contradicts(attack: str, change: str) -> None:
    model, draw = pair(change, seed=5), random.Random(change)
    whole = attacked(model, attack, at=10**9)
    assert whole is not None
    assert whole.exact
    rows, told = model.rows, 0
    for at in (int(rows * draw.random()), rows - draw.randint(4, 200), rows - draw.randint(2, 3), rows - 1):
        result = attacked(model, attack, at)
        told += model.shown
        assert result is None or not (result.exact and model.shown), f"exchanged at row {at} of {rows}"
    assert told >= 1


class OneLie(nn.Module):
    """Answers one row, counted from now on, as another model would."""

    def __init__(self, honest: nn.Module, other: nn.Module) -> None:
        super().__init__()
        self.honest, self.other = honest, other
        self.at = self.rows = -(10**9)

    def __deepcopy__(self, memo: object) -> OneLie:
        return self

    def forward(self, X: Tensor) -> Tensor:
        places = self.rows + torch.arange(len(X))[:, None]
        self.rows += len(X)
        return torch.where(places == self.at, self.other(X), self.honest(X))


class Steps(nn.Module):
    """A tree of four leaves."""

    def __init__(self, level: float) -> None:
        super().__init__()
        self.level = level

    def forward(self, X: Tensor) -> Tensor:
        return self.level + (X[:, :1] > 0.3).to(X) + 2 * (X[:, 1:2] > -0.7).to(X)


def network(outputs: int, *, probabilities: bool) -> nn.Module:
    model = MLP([4, 4, outputs]).double()
    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter)
    return nn.Sequential(model, nn.Softmax(dim=1)) if probabilities else model


LIES = {
    "from_values, three outputs": ("value", extraction.from_values, False),
    "from_gradients, three outputs": ("gradient", extraction.from_gradients, False),
    "from_values, probabilities": ("value", extraction.from_values, True),
    "from_gradients, probabilities": ("gradient", extraction.from_gradients, True),
    "from_tree_values": ("value", partial(extraction.from_tree_values, leaves=100, cells=2000), False),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", LIES)
def test_no_copy_is_exact_that_one_of_the_first_answers_contradicts(case: str) -> None:
    access, run, probabilities = LIES[case]
    torch.manual_seed(7)
    if "tree" in case:
        model = OneLie(Steps(0.0), Steps(0.5))
    else:
        model = OneLie(network(3, probabilities=probabilities), network(3, probabilities=probabilities))
    oracle = divulge.oracle(model, access=access, input_shape=[4])
    for at in (10**9, 0, 1, 5, 12):
        model.at, model.rows = at, 0
        try:
            exact = run(oracle, seed=0, checks=600).exact
        except divulge.DivulgeError:
            exact = False
        assert exact == (at == 10**9), f"row {at}"

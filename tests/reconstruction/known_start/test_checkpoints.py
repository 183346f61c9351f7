"""Files of weights, adapters and updates over a start."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from divulge import models, reconstruction
from divulge.core.errors import InvalidInput, UnsupportedModel, WrongShape
from divulge.reconstruction.known_start.checkpoints import applied
from divulge.reconstruction.matching import correlation

Digits = Callable[[int, int], tuple[Tensor, Tensor]]


def start() -> nn.Module:
    return models.initialise(nn.Sequential(nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 10)), seed=0)


def gradient(model: nn.Module, X: Tensor, y: Tensor) -> dict[str, Tensor]:
    nn.functional.cross_entropy(model(X), y).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def test_an_update_gives_its_inputs_away(few_digits: Digits) -> None:
    X, y = few_digits(6, 2)
    base = start()
    update = {name: -0.01 * change for name, change in gradient(base, X, y).items()}
    found = reconstruction.from_weights(applied(base, update, update=True), start=base)
    assert found.rank == 6
    assert found.certified is not None
    assert int(found.certified.sum()) >= 4
    likeness = correlation(found.samples, X).max(dim=1).values
    assert float(likeness[found.certified].min()) > 0.99


def test_some_weights_leave_the_others_as_they_are() -> None:
    base = start()
    bias = torch.arange(10.0)
    model = applied(base, {"2.bias": bias})
    assert torch.equal(model.get_parameter("2.bias"), bias)
    assert torch.equal(model.get_parameter("0.weight"), base.get_parameter("0.weight"))
    assert not torch.equal(base.get_parameter("2.bias"), bias)


@pytest.mark.parametrize(
    ("tensors", "error", "said"),
    [
        ({}, InvalidInput, "no tensors"),
        ({"1.weight": torch.zeros(2)}, InvalidInput, "no parameter '1.weight'"),
        ({"2.bias": torch.zeros(2)}, WrongShape, "in the start"),
        ({"base_model.0.lora_A.weight": torch.zeros(4, 64)}, UnsupportedModel, "random numbers"),
    ],
)
def test_what_does_not_belong_to_the_start_is_refused(
    tensors: dict[str, Tensor], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        applied(start(), tensors)

"""What is refused, with which reason, and what is said of samples that are none of the inputs."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from divulge import models, reconstruction
from divulge.core.errors import AttackFailed, InvalidInput

Digits = Callable[[int, int], tuple[Tensor, Tensor]]
Train = Callable[..., nn.Module]


def plain() -> nn.Module:
    return models.initialise(nn.Sequential(nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 10)), seed=0)


@pytest.mark.parametrize("n", [0, -1, 2.5, 66])
def test_a_number_that_cannot_be_is_refused(n: int, few_digits: Digits, descended: Train) -> None:
    X, y = few_digits(8, 1)
    start = plain()
    with pytest.raises(InvalidInput, match="n "):
        reconstruction.from_weights(descended(start, X, y, steps=5), start=start, n=n)


def test_changes_without_their_start_are_not_taken_for_weights(few_digits: Digits, descended: Train) -> None:
    X, y = few_digits(8, 1)
    start = plain()
    changes = copy.deepcopy(start)
    nn.functional.cross_entropy(start(X), y).backward()
    with torch.no_grad():
        for change, parameter in zip(changes.parameters(), start.parameters(), strict=True):
            assert parameter.grad is not None
            change.copy_(parameter.grad)
    with pytest.raises(InvalidInput, match="nothing of the start"):
        reconstruction.from_weights(changes, start=start)


def test_decay_of_inputs_that_are_always_zero_does_not_hide_adam(few_digits: Digits) -> None:
    X, y = few_digits(8, 1)
    start = plain()
    model = copy.deepcopy(start)
    descent = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(30):
        descent.zero_grad()
        nn.functional.cross_entropy(model(X), y).backward()
        descent.step()
    with pytest.raises(AttackFailed, match="Adam"):
        reconstruction.from_weights(model, start=start)


@pytest.mark.parametrize("bits", ["float16", "8 bits"])
def test_rounded_weights_are_told(bits: str, few_digits: Digits, descended: Train) -> None:
    X, y = few_digits(6, 1)
    start = plain()
    model = descended(start, X, y)
    with torch.no_grad():
        for parameter in model.parameters():
            step = parameter.abs().max() / 127
            parameter.copy_(parameter.half() if bits == "float16" else (parameter / step).round() * step)
    found = reconstruction.from_weights(model, start=start)
    assert any("rounded" in note for note in found.notes)
    assert found.rank == 6


def test_samples_far_from_the_range_are_no_success(few_digits: Digits, descended: Train) -> None:
    X, y = few_digits(8, 1)
    start = plain()
    X = 4 * X - 2
    found = reconstruction.from_weights(descended(start, X, y), start=start)  # the range is 0 to 1
    assert not found.success
    assert "range" in found.reason
    right = reconstruction.from_weights(descended(start, X, y), start=start, value_range=(-2.0, 2.0))
    assert right.success


@pytest.mark.parametrize("n", [7, 10])
def test_another_number_than_the_difference_shows_is_told(n: int, few_digits: Digits, descended: Train) -> None:
    X, y = few_digits(8, 1)
    start = plain()
    model = descended(start, X, y)
    found = reconstruction.from_weights(model, start=start, n=n)
    assert any("shows 8 inputs" in note for note in found.notes)
    right = reconstruction.from_weights(model, start=start, n=8)
    assert not any("shows" in note for note in right.notes)


def test_inputs_that_sink_into_the_rounding_are_told(few_digits: Digits, descended: Train) -> None:
    X, y = few_digits(30, 1)
    start = plain()
    found = reconstruction.from_weights(descended(start, X / 2000, y), start=start)
    assert found.rank < 30
    assert any("more inputs than the" in note for note in found.notes)
    right = reconstruction.from_weights(descended(start, X, y), start=start)
    assert right.rank == 30
    assert not any("more inputs than the" in note for note in right.notes)

"""What a difference holds: the number of inputs, exact or not, and whether a bias was trained."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from sklearn.datasets import load_wine
from torch import Tensor, nn

from divulge import models, reconstruction
from divulge.core.errors import AttackFailed
from divulge.reconstruction.known_start.difference import difference
from divulge.reconstruction.known_start.layers import changed_layer
from divulge.reconstruction.matching import correlation

Digits = Callable[[int, int], tuple[Tensor, Tensor]]
Train = Callable[..., nn.Module]


def network(*between: nn.Module, bias: bool = True) -> nn.Module:
    model = nn.Sequential(nn.Linear(64, 300, bias=bias), *between, nn.ReLU(), nn.Linear(300, 10))
    return models.initialise(model, seed=0)


def test_small_singular_values_above_rounding_are_inputs_too(few_digits: Digits, descended: Train) -> None:
    X, y = few_digits(8, 1)
    start = models.initialise(
        nn.Sequential(nn.Linear(64, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 10)), seed=0
    )
    model = descended(start, X, y, wanted=lambda name: name.startswith("4"))  # a layer of ten units
    _, spectrum = difference(changed_layer(model, start, None).pair)
    values = spectrum.values
    assert float(values[4] / values[5]) > 10 * float(
        values[7] / values[6]
    )  # the largest ratio is not behind all of them
    assert spectrum.rank == 8
    assert spectrum.exact


def test_what_is_no_combination_of_few_inputs_is_not_exact(few_digits: Digits, descended: Train) -> None:
    X, y = few_digits(8, 1)
    start = network()
    model = descended(start, X, y)
    assert difference(changed_layer(model, start, None).pair)[1].exact
    with torch.no_grad():
        weight = model.get_parameter("0.weight")
        weight.add_(1e-3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
    assert not difference(changed_layer(model, start, None).pair)[1].exact


def test_a_bias_that_only_rounding_moved_is_not_trained(few_digits: Digits, descended: Train) -> None:
    X, y = few_digits(16, 1)
    start = network(nn.BatchNorm1d(300))  # which takes the mean away
    model = descended(start, X, y)
    pair = changed_layer(model, start, None).pair
    assert bool((pair.b != pair.b0).any())
    assert not pair.has_bias


def test_without_a_trained_bias_inputs_fill_the_range(few_digits: Digits, descended: Train) -> None:
    X, y = few_digits(8, 1)
    start = network()
    model = descended(start, X, y, wanted=lambda name: "bias" not in name)
    found = reconstruction.from_weights(model, start=start)
    assert any("No bias" in note for note in found.notes)
    assert found.certified is not None
    assert int(found.certified.sum()) >= 4
    nearest = correlation(found.samples, X).argmax(dim=1)
    brightest = (X / X.amax(dim=1, keepdim=True)).double()
    error = (found.samples - brightest[nearest]).norm(dim=1) / brightest[nearest].norm(dim=1)
    assert float(error[found.certified].max()) < 0.01


def test_more_records_than_inputs_of_a_table_are_no_single_record(descended: Train) -> None:
    table = torch.tensor(load_wine().data).float()
    X = ((table - table.mean(dim=0)) / table.std(dim=0))[:15]  # of one class, so that one direction is far stronger
    start = models.initialise(nn.Sequential(nn.Linear(13, 300), nn.ReLU(), nn.Linear(300, 5)), seed=0)
    model = descended(start, X, torch.zeros(15, dtype=torch.long))
    _, spectrum = difference(changed_layer(model, start, None).pair)
    assert spectrum.ratio > 2.5
    assert spectrum.rank < 3
    with pytest.raises(AttackFailed, match="more records"):
        reconstruction.from_weights(model, start=start, value_range=None)

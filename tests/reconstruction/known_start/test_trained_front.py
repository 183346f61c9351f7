"""Inputs behind a convolution that was trained too: their number is not in the spectrum."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from divulge import models, reconstruction
from divulge.core.errors import AttackFailed
from divulge.reconstruction.known_start import trained_front
from divulge.reconstruction.known_start.difference import Spectrum
from divulge.reconstruction.matching import correlation

Digits = Callable[[int, int], tuple[Tensor, Tensor]]
Train = Callable[..., nn.Module]


class Convolutional(nn.Sequential):
    """A convolution in front of two dense layers."""

    input_shape = (1, 8, 8)

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(768, 200), nn.ReLU(), nn.Linear(200, 10)
        )


@pytest.mark.slow
def test_pictures_come_back_without_their_number(few_digits: Digits, descended: Train) -> None:
    rebuilt, wrong = 0, 0
    for seed in range(3):  # which pictures of a set the search finds depends on the rounding of the machine
        X, y = few_digits(6, seed)
        start = models.initialise(Convolutional(), seed=seed)
        found = reconstruction.from_weights(descended(start, X.reshape(-1, 1, 8, 8), y, steps=10), start=start)
        likeness = correlation(X.double(), found.samples)
        rebuilt += int((likeness > 0.9).any(dim=1).sum())
        wrong += int((likeness < 0.7).all(dim=0).sum())
        assert found.certified is not None
        assert not bool(found.certified.any())
        assert any("nor their number" in note for note in found.notes)
    assert rebuilt >= 6  # of 18
    assert wrong <= 3


def test_directions_beyond_a_share_of_the_strongest_are_left_out() -> None:
    falling = torch.tensor([1.0, 0.5, 0.3, 0.06, 0.03, 0.01, *[0.001] * 20])
    assert trained_front.ranks(Spectrum(falling, 3, 5.0, 1.0, rest=1e6)) == [4, 5, 6]


def test_a_clear_gap_shows_the_number() -> None:
    values = torch.tensor([1.0, 0.9, 0.8, 0.05, 0.04, *[0.001] * 20])
    assert trained_front.ranks(Spectrum(values, 3, 16.0, 1.0, rest=1e6)) == []


def test_an_exact_gap_may_be_that_of_one_step() -> None:
    values = torch.tensor([1.0, 0.9, 0.01, 0.009, *[1e-8] * 20])
    assert trained_front.ranks(Spectrum(values, 4, 9e5, 1.0, rest=2.0)) == [2, 4]


def test_values_that_do_not_fall_show_nothing() -> None:
    with pytest.raises(AttackFailed, match="do not fall"):
        trained_front.ranks(Spectrum(torch.linspace(1.0, 0.5, 40), 39, 1.1, 1.0, rest=1e6))


def test_pictures_that_come_twice_or_miss_their_features_are_left_out() -> None:
    X = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    X = torch.cat([X, X[:1] + 0.01])
    assert trained_front.distinct(X, torch.tensor([0.2, 0.1, 0.5, 0.15]), (50,)).tolist() == [1, 3]


def test_a_rough_copy_of_a_picture_is_left_out(few_digits: Digits) -> None:
    """Of other brightness from side to side, so that its values are unlike those of the picture."""
    X = few_digits(6, 0)[0].double()
    across = torch.linspace(-2.0, 2.0, 8).repeat(8)
    copy = X[:1] + across
    assert float(correlation(X[:1], copy)) < 0.7
    missed = torch.tensor([0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.2])
    assert trained_front.distinct(torch.cat([X, copy]), missed, (1, 8, 8)).tolist() == [0, 1, 2, 3, 4, 5]
    assert len(trained_front.distinct(torch.cat([X, copy]), missed, (64,))) == 7

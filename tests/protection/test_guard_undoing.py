"""Fresh noise averages out, fixed noise only over neighbours; a guessed seed is subtracted, a secret one is not."""

from __future__ import annotations

import pytest
import torch

import divulge
from divulge.protection.guard_study import StudySetup
from divulge.protection.guard_undoing import REPEATS, undo_guard


@pytest.fixture
def setup() -> StudySetup:
    model = divulge.models.MLP([6, 8, 3]).double()
    rows = torch.randn(60, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return StudySetup(lambda access: divulge.oracle(model, access=access), rows, rows)


def test_fresh_noise_averages_out_and_cannot_be_replayed(setup):
    left = undo_guard("noise:0.1", setup)
    assert left.averages_out
    assert left.averaged == pytest.approx(left.single / REPEATS**0.5, rel=0.5)
    assert not left.replays


def test_noise_fixed_by_input_averages_out_over_neighbours_only(setup):
    left = undo_guard("noise:0.1:fixed", setup)
    assert left.averaged == pytest.approx(left.single)
    assert not left.averages_out
    assert left.averages_out_nearby
    assert left.nearby == pytest.approx(left.single / REPEATS**0.5, rel=0.5)
    assert not left.replays


def test_columns_of_whole_numbers_have_no_neighbours(setup):
    whole = StudySetup(setup.make, setup.pool.round(), setup.judges.round())
    left = undo_guard("noise:0.1:fixed", whole)
    assert left.nearby == pytest.approx(left.averaged)
    assert not left.averages_out_nearby


@pytest.mark.parametrize("name", ["noise:0.1", "noise:0.1:fixed"])
def test_a_seed_that_can_be_guessed_is_found(setup, name):
    left = undo_guard(name, setup, seed=7)
    assert left.replays
    assert left.replayed < 1e-9
    assert not undo_guard(name, setup, seed=7, guesses=range(5)).replays


def test_rounding_stays_and_labels_show_no_numbers(setup):
    rounded = undo_guard("round:1", setup)
    assert rounded.averaged == pytest.approx(rounded.single)
    assert not rounded.averages_out
    assert not rounded.averages_out_nearby
    assert undo_guard("label", setup) is None

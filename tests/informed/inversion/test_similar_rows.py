"""What a known row would add is told from the reference run, and rows like the unknown one are found."""

from __future__ import annotations

import pytest
import torch
from sklearn.datasets import load_digits

from divulge import Recipe
from divulge.informed.inversion.similar_rows import SimilarRows, _pull
from divulge.training.batched.model_group import prepare, train_group
from divulge.training.batched.parameter_layout import unflat

DIGITS, DIGIT = load_digits(return_X_y=True)
X = torch.tensor(DIGITS / 16, dtype=torch.float64)
y = torch.tensor(DIGIT)
OPTIONS = {"widths": [64, 8, 10], "activation": "elu", "momentum": 0.9, "seed": 3}


@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.05}, {"widths": [64, 8, 6, 10]}])
def test_a_known_row_adds_its_summed_deltas_times_itself(options):
    recipe = Recipe(**{**OPTIONS, "learning_rate": 1e-4, "epochs": 5, **options})  # no other row answers as yet
    setup = prepare(recipe, X[:200], y[:200], dtype=torch.float64)
    added = unflat(setup, train_group(setup, X[:6], y[:6]))[0]
    rows = torch.cat([X[:6], torch.ones(6, 1)], dim=1)
    expected = _pull(setup)[:6, :, None] * rows[:, None, :]
    torch.testing.assert_close(added, expected, rtol=2e-3, atol=2e-3 * float(expected.abs().max()))


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"epochs": 60}, {"epochs": 20, "batch_size": 50, "momentum": 0.0}])
def test_twins_have_the_unknown_row_s_label_and_are_closer_than_its_class(options):
    recipe = Recipe(**{**OPTIONS, "learning_rate": 0.2, **options})
    known, rows = slice(0, 400), slice(1000, 1040)
    setup = prepare(recipe, X[known], y[known], dtype=torch.float64)
    similar = SimilarRows.of(setup, X[known], y[known])
    target = train_group(setup, X[rows], y[rows])
    told = similar.similarity(target).argmax(dim=1)
    assert int((told == y[rows]).sum()) >= 36
    means = torch.stack([X[known][y[known] == label].mean(dim=0) for label in range(10)])
    start = similar.start(target, y[rows])
    assert (start - X[rows]).square().mean() < 0.85 * (means[y[rows]] - X[rows]).square().mean()

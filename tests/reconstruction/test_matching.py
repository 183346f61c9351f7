"""Scores agree with independent computations, and the threshold is the control's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from skimage.metrics import structural_similarity

from divulge.core.errors import EmptyBatch, InvalidInput, NonFiniteInput, WrongShape
from divulge.reconstruction import match, matching

from ..margin_targets import odd_digits


def noisy(X: torch.Tensor, size: float, seed: int) -> torch.Tensor:
    return X + size * torch.randn(X.shape, generator=torch.Generator().manual_seed(seed), dtype=X.dtype)


def test_ssim_is_that_of_scikit_image() -> None:
    a = torch.rand(5, 3 * 20 * 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    b = noisy(a, 0.1, 1)
    ours = matching.ssim(a, b, (3, 20, 20), window=11)
    for i in range(5):
        theirs = structural_similarity(
            a[i].reshape(3, 20, 20).numpy(), b[i].reshape(3, 20, 20).numpy(), data_range=1.0, channel_axis=0,
            gaussian_weights=True, sigma=1.5, use_sample_covariance=False,
        )  # fmt: skip
        assert float(ours[i]) == pytest.approx(theirs, abs=1e-9)
    with pytest.raises(InvalidInput, match="odd"):
        matching.ssim(a, b, (3, 20, 20), window=4)


def test_correlation_is_that_of_numpy() -> None:
    X, _, others = odd_digits(6, seed=0)
    table = matching.correlation(X, others[:4])
    assert np.allclose(table.numpy(), np.corrcoef(X.numpy(), others[:4].numpy())[:6, 6:])


def test_perfect_samples_are_all_found_and_unseen_digits_are_not() -> None:
    X, _, others = odd_digits(10, seed=1)
    told = match(noisy(X, 1e-3, 0), X, unseen=others)
    assert told.found() == 10
    assert told.recall() == told.precision() == 1.0
    assert told.false_positive_rate is not None
    assert told.false_positive_rate <= matching.FALSE_POSITIVES
    assert told.p_value is not None
    assert told.p_value < 1e-6
    assert told.ssim is not None
    assert float(told.ssim.min()) > 0.9
    excess = told.excess(0.99)
    assert excess is not None
    assert excess < 1e-6


def test_unseen_digits_offered_as_reconstructions_are_no_better_than_chance() -> None:
    X, _, others = odd_digits(40, seed=2)
    told = match(others[:100], X, unseen=others[100:])
    assert told.p_value is not None
    assert told.p_value > 1e-3
    assert told.recall() < 0.2


def test_no_sample_counts_twice() -> None:
    X, _, _ = odd_digits(2, seed=3)
    told = match(X[:1], torch.stack([X[0], X[0], X[1]]))
    assert told.found(0.99) == 1
    assert int((told.correlation > 0.99).sum()) == 2


def test_voting_averages_the_noise_away() -> None:
    X, _, _ = odd_digits(3, seed=4)
    samples = torch.cat([noisy(X, 0.15, seed) for seed in range(12)])
    alone, voted = match(samples, X), match(samples, X, vote=0.9)
    assert bool((voted.correlation > alone.correlation).all())


def test_stretching_makes_faint_pictures_count() -> None:
    X, _, _ = odd_digits(5, seed=5)
    faint = 0.2 * X + 0.4
    plain, stretched = match(faint, X), match(faint, X, stretch=True)
    assert plain.ssim is not None
    assert stretched.ssim is not None
    assert bool((stretched.ssim > plain.ssim).all())
    assert float(stretched.ssim.min()) > 0.99


def test_means_are_added_before_pictures_are_compared() -> None:
    X, _, _ = odd_digits(5, seed=6)
    mean = X.mean(dim=0)
    told = match(X - mean, X - mean, mean=mean)
    assert torch.allclose(told.truth, X)
    guessed = match(X - mean, X - mean, mean=mean, sample_mean=mean + 0.1)
    assert float((guessed.rebuilt - (X + 0.1).clamp(0, 1)).abs().max()) < 1e-12


def test_tables_are_compared_column_by_column() -> None:
    X = torch.randn(30, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    off = X.clone()
    off[:, 2] += 0.1 * X[:, 2].std()
    told = match(off, X, unseen=torch.randn(50, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    assert told.ssim is None
    assert told.found() == 30
    assert float(told.column_error[2]) == pytest.approx(0.1)
    assert float(told.column_error[[0, 1, 3, 4]].max()) < 1e-9


def test_nothing_found_is_a_result_too() -> None:
    X, _, others = odd_digits(4, seed=7)
    told = match(torch.zeros(0, 64), X, unseen=others)
    assert told.found() == 0
    assert told.precision() == 0
    assert told.as_dict()["reconstructions"] == 0


@pytest.mark.slow
def test_figures_are_written(tmp_path: Path) -> None:
    X, _, others = odd_digits(20, seed=8)
    told = match(noisy(X, 0.05, 0), X, unseen=others)
    for path in (
        told.picture(tmp_path / "pairs.png"), told.margin_plot(tmp_path / "margins.png", torch.randn(20)),
        told.margin_plot(tmp_path / "classes.png", torch.randn(20, 10)),
    ):  # fmt: skip
        assert path.read_bytes().startswith(b"\x89PNG")
    table = match(X[:, :5], X[:, :5])
    with pytest.raises(InvalidInput, match="not pictures"):
        table.picture(tmp_path / "none.png")


def test_says_what_does_not_fit() -> None:
    X, _, _ = odd_digits(3, seed=9)
    with pytest.raises(WrongShape, match="5 columns"):
        match(X, X[:, :5])
    with pytest.raises(EmptyBatch, match="no training inputs"):
        match(X, X[:0])
    with pytest.raises(NonFiniteInput, match="NaN"):
        match(X, X * float("nan"))


def test_square_pictures_are_recognised() -> None:
    assert matching.picture_shape(784) == (1, 28, 28)
    assert matching.picture_shape(3072) == (3, 32, 32)
    assert matching.picture_shape(30) is None


def test_as_many_inputs_as_can_be_are_paired_above_the_threshold() -> None:
    X, _, _ = odd_digits(2, seed=11)
    both = X[0] + X[1]  # alike to both; the other sample is the very first input
    table = matching.correlation(torch.stack([X[0], both]), X)
    told = match(torch.stack([X[0], both]), X, threshold=float(table[1].min()) - 0.01)
    assert told.found() == 2

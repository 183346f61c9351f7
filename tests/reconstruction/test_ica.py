"""Pictures told apart from their mixtures, on pieces of photographs."""

from __future__ import annotations

import pytest
import torch
from sklearn.datasets import load_sample_images
from torch import Tensor

from divulge import reconstruction
from divulge.models.weight_matrices import Network
from divulge.reconstruction import matching
from divulge.reconstruction.ica import differences, directions_per_restart, separable, separate, uses_likelihood
from divulge.reconstruction.row_space import RowSpace, row_space
from divulge.training import margin

SHAPE = (3, 32, 32)


@pytest.fixture(scope="module")
def many_pieces() -> Tensor:
    """The most varied pieces of two photographs, as rows in [0, 1]."""
    photographs = [torch.tensor(image / 255.0).permute(2, 0, 1) for image in load_sample_images().images]
    tiles = [p.unfold(1, 32, 32).unfold(2, 32, 32).permute(1, 2, 0, 3, 4).reshape(-1, 3 * 32 * 32) for p in photographs]
    rows = torch.cat(tiles)
    return rows[rows.std(dim=1).argsort(descending=True)[:40]]


@pytest.fixture(scope="module")
def pieces(many_pieces: Tensor) -> Tensor:
    """Twelve of them."""
    return many_pieces[:12]


def mixed(X: Tensor, units: int, seed: int) -> RowSpace:
    """The row space of a first layer that mixes the rows of X at random."""
    weights = torch.randn(units, len(X), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return row_space(
        Network((weights @ X, torch.ones(1, units, dtype=torch.float64)), (weights.sum(1), None)), n=len(X)
    )


@pytest.mark.parametrize("seed", range(3))
def test_most_pictures_come_out_of_their_mixtures(pieces: Tensor, seed: int) -> None:
    X = pieces - pieces.mean(dim=0)
    space = mixed(X, 40, seed)
    found = space.inputs(space.points(separate(space, SHAPE, 1.0, seed=seed)))
    assert found.shape == (24, 3072)
    assert int((matching.correlation(found, X).amax(dim=0) > 0.8).sum()) >= 9
    random = torch.randn(24, 12, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) @ X
    assert int((matching.correlation(random, X).amax(dim=0) > 0.8).sum()) <= 3


@pytest.mark.slow
def test_opponent_colours_tell_many_pictures_apart(many_pieces: Tensor) -> None:
    """Without them, by red, green and blue, 38 of the 40 come out."""
    X = many_pieces - many_pieces.mean(dim=0)
    space = mixed(X, 80, 0)
    found = space.inputs(space.points(separate(space, SHAPE, 1.0, seed=0)))
    assert int((matching.correlation(found, X).amax(dim=0) > 0.9).sum()) == 40


def test_differences_are_those_of_neighbours() -> None:
    pictures = torch.arange(12.0).reshape(1, 12)
    steps = differences(pictures, (1, 3, 4))
    assert steps.tolist() == [[[1.0] * 6, [4.0] * 6]]  # to the right and below, at each of 2 x 3 places


def test_tables_small_pictures_and_single_ones_are_not_separated(pieces: Tensor) -> None:
    space = mixed(pieces, 40, 0)
    assert separable(space, SHAPE)
    assert not separable(space, None)
    assert not separable(mixed(pieces[:5, :64], 40, 0), (1, 8, 8))
    assert not separable(mixed(pieces[:1], 40, 0), SHAPE)


def test_of_more_pictures_than_pixels_can_tell_apart_restarts_take_the_strongest(pieces: Tensor) -> None:
    assert directions_per_restart(mixed(pieces, 40, 0), SHAPE, 3) == [12, 12, 12]
    many = torch.randn(200, 3072, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert directions_per_restart(mixed(many, 400, 0), SHAPE, 3) == [60, 107, 192]
    grey = mixed(many[:, :784], 400, 0)
    assert directions_per_restart(grey, (1, 28, 28), 3) == [30, 49, 81]
    space = mixed(pieces, 40, 0)
    found = space.points(separate(space, SHAPE, 1.0, seed=0, strongest=5)) - space.origin
    assert len(found) == 10
    assert int(torch.linalg.matrix_rank(found)) == 5


def test_of_few_pictures_half_of_the_restarts_do_without_likelihood(pieces: Tensor) -> None:
    assert [uses_likelihood(mixed(pieces, 40, 0), restart) for restart in range(8)] == [True, True, False, False] * 2
    many = torch.randn(30, 3072, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert all(uses_likelihood(mixed(many, 60, 0), restart) for restart in range(8))
    plain, further = (separate(mixed(pieces, 40, 0), SHAPE, 1.0, seed=0, likelihood=by) for by in (False, True))
    assert not torch.allclose(plain, further)


@pytest.mark.slow
def test_a_deep_network_gives_pieces_of_photographs_back(pieces: Tensor) -> None:
    X, mean = pieces[:6], pieces[:6].mean(dim=0)
    start = margin.network([3072, 60, 60, 1], seed=0, dtype=torch.float32)
    model = margin.to_margin(start, X - mean, torch.arange(6) % 2, loss=1e-3).model
    found = reconstruction.from_weights(model, mean=mean, seed=0)
    assert found.rank == 6
    match = found.match(X - mean, pieces[6:] - mean, threshold=0.95)
    assert match.found() >= 5
    assert match.p_value is not None
    assert match.p_value < 0.01
    hurried = reconstruction.from_weights(model, restarts=2, seconds=1.0, seed=0)
    assert hurried.seconds < 2

"""Noise is told from pictures, in the row space and in single pictures, on pieces of photographs."""

from __future__ import annotations

import pytest
import torch
from sklearn.datasets import load_sample_images
from torch import Tensor

from divulge.models.weight_matrices import Network
from divulge.reconstruction import denoising, matching
from divulge.reconstruction.row_space import RowSpace, row_space

SHAPE = (3, 32, 32)


@pytest.fixture(scope="module")
def pieces() -> Tensor:
    image = torch.tensor(load_sample_images().images[0] / 255.0).permute(2, 0, 1)
    tiles = image.unfold(1, 32, 32).unfold(2, 32, 32).permute(1, 2, 0, 3, 4).reshape(-1, 3 * 32 * 32)
    return tiles[tiles.std(dim=1).argsort(descending=True)[:20]]


def noise(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_transform_keeps_lengths_and_comes_back(pieces: Tensor) -> None:
    there = denoising.to_frequencies(pieces, SHAPE)
    assert torch.allclose(there.norm(dim=1), pieces.norm(dim=1))
    assert torch.allclose(denoising.from_frequencies(there, SHAPE), pieces)
    flat = denoising.to_frequencies(torch.ones(1, 3072, dtype=torch.float64), SHAPE)
    assert int((flat.abs() > 1e-9).sum()) == 1  # one frequency: none


@pytest.mark.parametrize("level", [0.05, 0.1])
def test_pictures_are_cleaned_and_clean_ones_left_alone(pieces: Tensor, level: float) -> None:
    noisy = pieces + level * noise(*pieces.shape)
    clean = denoising.denoise(noisy, SHAPE, torch.full((len(pieces),), level))
    before, after = ((X - pieces).square().mean(dim=1) for X in (noisy, clean))
    assert bool((after < 0.9 * before).all())
    assert float(after.mean()) < 0.6 * float(before.mean())
    assert torch.allclose(denoising.denoise(pieces, SHAPE, torch.zeros(len(pieces))), pieces)
    small = torch.rand(2, 36, dtype=torch.float64)
    assert torch.equal(denoising.denoise(small, (1, 6, 6), torch.ones(2)), small)  # smaller than a block


def layer(pieces: Tensor, level: float, units: int = 200) -> Network:
    """A network whose first layer mixes the pieces, some far more weakly than others, in noise."""
    X = torch.cat([pieces - pieces.mean(dim=0), torch.ones(len(pieces), 1, dtype=torch.float64)], dim=1)
    mixing = noise(units, len(pieces), seed=1) * torch.logspace(0, -2, len(pieces), dtype=torch.float64)
    first = mixing @ X + level * noise(units, X.shape[1], seed=2)
    return Network((first[:, :-1], torch.ones(1, units, dtype=torch.float64)), (first[:, -1], None))


def test_a_filter_shows_more_of_the_row_space_and_the_noise_in_what_is_there(pieces: Tensor) -> None:
    X, level = pieces - pieces.mean(dim=0), 0.02
    network = layer(pieces, level)
    plain, filtered = row_space(network), row_space(network, shape=SHAPE)
    assert filtered.rank >= plain.rank
    assert abs(filtered.noise_std / level - 1) < 0.05

    def projected(space: RowSpace) -> Tensor:
        return space.inputs(space.points(space.coordinates_of(X)))

    assert _likeness(projected(filtered), X) > _likeness(projected(plain), X) + 0.02
    told = filtered.noise_in(projected(filtered))
    clean = denoising.denoise(projected(filtered), SHAPE, told)
    assert _likeness(clean, X) > _likeness(projected(filtered), X)


def _likeness(A: Tensor, B: Tensor) -> float:
    return float(matching.ssim(A, B, SHAPE, span=2.0).mean())


def test_without_noise_and_without_training_nothing_is_filtered(pieces: Tensor) -> None:
    silent = layer(pieces, 0.0)
    assert torch.equal(row_space(silent, n=20).V, row_space(silent, n=20, shape=SHAPE).V)
    start = Network((1e-3 * noise(200, 3072), torch.ones(1, 200, dtype=torch.float64)), (1e-3 * noise(200), None))
    assert row_space(start, n=5, shape=SHAPE).signal_rank == 0

"""Pictures of whole levels: found near candidates, and certified only where mixtures are not on the grid too."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn.datasets import load_sample_image
from torch import Tensor

from divulge.reconstruction.known_start import decoding
from divulge.reconstruction.known_start.decoding import combinations, decoded
from divulge.reconstruction.known_start.difference import Span, span_of
from divulge.reconstruction.known_start.grid import LOST, Grid, grid_of
from divulge.reconstruction.value_bounds import ValueBounds

N, SHAPE = 6, (1, 28, 28)


def pictures(seed: int) -> Tensor:
    """Six patches of a photograph in levels, with noise so that all levels occur."""
    photograph = torch.tensor(load_sample_image("china.jpg"), dtype=torch.float64).mean(dim=2)
    draw = torch.Generator().manual_seed(seed)
    rows, columns = (torch.randint(side - 28, (N,), generator=draw).tolist() for side in photograph.shape)
    chosen = torch.stack([photograph[r : r + 28, c : c + 28].flatten() for r, c in zip(rows, columns, strict=True)])
    low, high = chosen.min(dim=1, keepdim=True).values, chosen.max(dim=1, keepdim=True).values
    chosen = 255 * (chosen - low) / (high - low)
    return (chosen + 8 * torch.randn(chosen.shape, generator=draw)).round().clamp(0, 255)


def mixed(levels: Tensor, seed: int) -> tuple[Span, Grid]:
    """The span of pictures with these levels, in [0, 1], and its grid."""
    A = torch.randn(N, 100, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    span = span_of(A.T @ torch.cat([levels / 255, torch.ones(N, 1).double()], dim=1), N, has_bias=True)
    grid = grid_of(span, ValueBounds(0.0, 1.0, None), SHAPE)
    assert grid is not None
    return span, grid


def wrong(levels: Tensor, seed: int) -> Tensor:
    """Every picture with shares of about 5 % of all others."""
    shares = 0.05 * torch.randn(N, N, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    shares = shares - torch.diag(shares.diagonal()) + torch.eye(N)
    return (shares @ levels) / shares.sum(dim=1, keepdim=True)


def test_combinations_of_whole_levels_are_whole() -> None:
    numbers = combinations(torch.randint(256, (2, 3 * 8 * 8)).double(), (3, 8, 8))
    assert torch.equal(numbers, numbers.round())


def test_a_picture_is_decoded_from_a_mixture() -> None:
    for seed in range(3):
        levels = pictures(seed)
        start = wrong(levels, seed)
        for i in range(N):
            ways = torch.cat([start[:i], start[i + 1 :]]) - start[i]
            found, decided = decoded(start[i], 0.05 * ways, SHAPE)
            assert decided
            assert torch.equal(found[0], levels[i])


def test_levels_that_fewer_pixels_than_directions_leave_open_are_not_decided() -> None:
    draw = torch.Generator().manual_seed(0)
    levels = torch.randint(256, (16,), generator=draw).double()
    ways = 5 * torch.randn(20, 16, generator=draw, dtype=torch.float64)
    moved = levels + torch.randn(20, generator=draw, dtype=torch.float64) @ ways
    assert not decoded(moved, ways, (1, 4, 4))[1]


def test_every_whole_picture_in_reach_is_found() -> None:
    for seed in range(3):
        levels = pictures(seed)
        start = 0.6 * levels[0] + 0.4 * levels[1]
        found, decided = decoded(start, (levels[1] - start)[None], SHAPE)
        assert decided
        for picture in levels[:2]:
            assert bool((found == picture).all(dim=1).any())


def test_a_search_that_has_lost_the_picture_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    take = decoding._Beam.take
    monkeypatch.setattr(decoding._Beam, "take", lambda beam, place: (taken.append(place), take(beam, place)))
    draw = torch.Generator().manual_seed(0)
    ways = 40 * torch.randn(120, math.prod(SHAPE), generator=draw, dtype=torch.float64)
    start = 255 * torch.rand(math.prod(SHAPE), generator=draw, dtype=torch.float64)
    decoded(start, ways, SHAPE)
    whole = len(taken)
    taken.clear()
    assert decoded(start, ways, SHAPE, lost=LOST)[1]  # that a picture is lost says nothing about others
    assert len(taken) < whole / 4


def test_decoded_pictures_are_certified() -> None:
    for seed in range(3):
        levels = pictures(seed)
        span, grid = mixed(levels, seed)
        c = span.coordinates(wrong(levels, seed) / 255)
        found = grid.certified(grid.decoded(c, c, math.inf), c, seed)
        assert len(found) >= N - 1
        assert float(torch.cdist(span.inputs(found) * 255, levels).min(dim=1).values.max()) < 1e-2


def test_mixtures_are_not_on_the_grid() -> None:
    levels = pictures(0)
    span, grid = mixed(levels, 0)
    c = span.coordinates(wrong(levels, 0) / 255)
    assert not bool(grid.on_grid(c).any())
    assert bool(grid.on_grid(span.coordinates(levels / 255)).all())


def test_pictures_of_few_levels_are_not_certified() -> None:
    """Shares of 1/17 of pictures with 16 levels are whole levels, so that mixtures of them are on the grid too."""
    for seed in range(3):
        levels = (pictures(seed) / 17).round() * 17
        span, grid = mixed(levels, seed)
        first, second = levels[0], levels[1]
        mixture = (16 * first + second) / 17
        c = span.coordinates(torch.stack([mixture, first]) / 255)
        assert bool(grid.on_grid(c)[0])
        assert len(grid.certified(c, span.coordinates(levels / 255), seed)) == 0


def test_pictures_of_low_contrast_are_not_certified() -> None:
    """Sums and differences of them stay in the range."""
    levels = (100 + pictures(1) / 5).round()
    span, grid = mixed(levels, 1)
    c = span.coordinates((levels[:1] + levels[1:2] - levels[2:3]) / 255)
    assert bool(grid.on_grid(c))
    assert len(grid.certified(c, span.coordinates(levels / 255), 0)) == 0


def test_a_picture_that_only_took_part_in_an_average_is_doubted() -> None:
    levels = pictures(2)
    levels[1] = (levels[0] + levels[2]) // 2
    span, grid = mixed(levels, 2)
    outside = 2 * levels[1] - levels[0]
    assert not bool(grid.dependent(span.coordinates(levels / 255)).any())
    found = torch.cat([levels[[0, 3, 4]], outside[None]])
    assert grid.dependent(span.coordinates(found / 255)).tolist() == [True, False, False, True]


def test_no_grid_without_range_or_shape() -> None:
    span, _ = mixed(pictures(0), 0)
    assert grid_of(span, None, SHAPE) is None
    assert grid_of(span, ValueBounds(0.0, 1.0, None), None) is None

"""The growing basis agrees with one singular value decomposition of everything it was shown."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from divulge.span.gradients.incremental_basis import IncrementalBasis
from divulge.span.gradients.spectrum import confirmed_rank, drop_marginal_directions, gap_after, ranks_by_gap
from divulge.span.result import basis_of_rows, principal_angles


def space(dim: int) -> IncrementalBasis:
    return IncrementalBasis(dim, device=torch.device("cpu"), generator=torch.Generator().manual_seed(0))


def low_rank(rows: int, dim: int, rank: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    left, right = (torch.randn(n, rank, generator=generator, dtype=torch.float64) for n in (rows, dim))
    return left @ right.T


@pytest.mark.parametrize(("rank", "sizes"), [(5, [1] * 12), (40, [7, 50, 3]), (90, [64, 64, 64]), (20, [200])])
def test_rank_and_singular_values_are_those_of_all_rows(rank: int, sizes: list[int]) -> None:
    rows = low_rank(sum(sizes), 100, rank, seed=rank)
    grown = space(100)
    joined: list[bool] = []
    for block in torch.split(rows, sizes):
        joined += grown.add(block, 1e-10)
    singular, vectors = grown.decompose()
    assert grown.size == sum(joined) == len(singular) == rank
    assert joined[: min(rank, 12)] == [True] * min(rank, 12)
    assert torch.allclose(vectors @ vectors.T, torch.eye(rank, dtype=torch.float64), atol=1e-12)
    assert float(principal_angles(vectors, basis_of_rows(rows))[-1]) < 1e-10


def test_singular_values_are_exact_when_every_row_counts() -> None:
    rows = low_rank(30, 40, 12, seed=3)
    grown = space(40)
    for block in torch.split(rows, 5):
        grown.add(block, 1e-10)
    assert torch.allclose(grown.decompose()[0], torch.linalg.svdvals(rows)[:12], rtol=1e-10)


def test_dependent_and_zero_rows_do_not_join() -> None:
    rows = low_rank(3, 10, 3, seed=4)
    grown = space(10)
    assert grown.add(rows, 1e-10) == [True] * 3
    assert (
        grown.add(torch.cat([rows.sum(0, keepdim=True), torch.zeros(1, 10, dtype=torch.float64)]), 1e-10) == [False] * 2
    )
    assert grown.leftover < 1e-13
    assert grown.add(rows[:0], 1e-10) == []


def test_a_full_space_takes_no_more() -> None:
    grown = space(6)
    assert sum(grown.add(low_rank(50, 6, 6, seed=5), 1e-10)) == 6
    assert not any(grown.add(low_rank(50, 6, 6, seed=6), 1e-10))


def test_nothing_shown_spans_nothing() -> None:
    singular, vectors = space(4).decompose()
    assert singular.shape == (0,)
    assert vectors.shape == (0, 4)
    assert gap_after(singular, 0, 0.0) == float("inf")


def test_stragglers_far_below_the_rest_are_left_out_and_weak_directions_are_not() -> None:
    values = torch.tensor([1.0, 0.5, 0.1, 3e-9], dtype=torch.float64)
    assert drop_marginal_directions(values, 4, 2e-9) == 3
    assert drop_marginal_directions(values, 4, 2e-11) == 4  # far above the threshold: a direction
    assert drop_marginal_directions(torch.tensor([1.0, 0.1, 0.01]).double(), 3, 5e-3) == 3  # no gap: a direction


def test_the_steepest_fall_that_the_network_confirms_decides() -> None:
    values = torch.tensor([100.0, 10, 9, 8, 1, 0.9, 0.8, 0.7, 0.6, 0.5], dtype=torch.float64)
    assert ranks_by_gap(values, at_least=2.0) == [1, 4]

    def only_four_is_ignored(rank: int) -> tuple[float, float]:
        return (0.9, 0.0) if rank < 4 else (0.01, 0.0)

    fall = confirmed_rank(values, only_four_is_ignored, noisy=True)
    assert fall is not None
    assert (fall.rank, fall.gap) == (4, 8.0)
    assert confirmed_rank(values, lambda rank: (0.9, 0.0), noisy=True) is None
    assert ranks_by_gap(values[:1], at_least=0.0) == []

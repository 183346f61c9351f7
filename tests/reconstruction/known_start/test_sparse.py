"""Inputs that are certain by their zeros, in tables whose values repeat."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from divulge.reconstruction.known_start import sparse
from divulge.reconstruction.known_start.difference import Span, span_of

LEVELS = (4, 9, 12, 6, 8, 10, 7, 11, 5, 9, 12, 8)


def table(rows: int, seed: int) -> Tensor:
    """One-hot rows of twelve categories; the fourth takes each of them from one of the first three, in turn."""
    draw = torch.Generator().manual_seed(seed)
    chosen = torch.stack([torch.randint(count, (rows,), generator=draw) for count in LEVELS], dim=1)
    places = torch.arange(len(LEVELS))
    chosen[3] = chosen[places % 3, places]
    blocks = [nn.functional.one_hot(column, count) for column, count in zip(chosen.T, LEVELS, strict=True)]
    return torch.cat(blocks, dim=1).double()


def span(X: Tensor) -> Span:
    draw = torch.Generator().manual_seed(1)
    A = torch.randn(len(X), 150, generator=draw, dtype=torch.float64)
    return span_of(A.T @ torch.cat([X, torch.ones(len(X), 1).double()], dim=1), len(X), has_bias=True)


def test_the_columns_of_categories_are_found() -> None:
    X = table(20, 0)
    with_numbers = torch.cat([X, torch.rand(20, 3, generator=torch.Generator().manual_seed(2)).double()], dim=1)
    found = sparse.categorical(span(with_numbers))
    assert bool(found[:-3].all())
    assert not bool(found[-3:].any())


def test_rows_of_a_table_are_certain_and_fractions_of_their_sums_are_not() -> None:
    X = table(20, 0)
    of = span(X)
    assert int(sparse.certified(of, of.coordinates(X)).sum()) >= 15
    mixture = (X[:3].sum(dim=0) - X[3]) / 2  # nowhere negative, and zero at more columns than can be forced
    assert not bool(sparse.certified(of, of.coordinates(mixture[None])).any())

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


def test_rows_of_a_table_are_certain_and_fractions_of_their_sums_are_not() -> None:
    X = table(20, 0)
    of = span(X)
    assert int(sparse.certified(of, of.coordinates(X)).sum()) >= 15
    mixture = (X[:3].sum(dim=0) - X[3]) / 2  # nowhere negative, and zero at more columns than can be forced
    assert not bool(sparse.certified(of, of.coordinates(mixture[None])).any())


def alike() -> tuple[Span, Tensor]:
    """A span of sparse inputs of which two are nearly the same, and have the same pair of values at three places."""
    draw = torch.Generator().manual_seed(0)
    X = torch.rand(8, 400, generator=draw, dtype=torch.float64) * (torch.rand(8, 400, generator=draw) < 0.2)
    first = torch.where(torch.arange(400) < 40, torch.rand(400, generator=draw, dtype=torch.float64) + 0.3, 0.0)
    second = 0.8 * first * (1 + 0.1 * torch.rand(400, generator=draw, dtype=torch.float64))
    second[:3] = first[:3] * 149 / 95
    second[3] = first[3] * 2
    X = torch.cat([first[None], second[None], X])
    A = torch.rand(len(X), 300, generator=draw, dtype=torch.float64)
    D = A.T @ torch.cat([X, torch.ones(len(X), 1, dtype=torch.float64)], dim=1)
    return span_of(D, len(X), has_bias=True), X


def test_a_mixture_of_alike_inputs_is_not_certified() -> None:
    span, X = alike()
    share = 149 / 54
    mixture = share * X[:1] - (share - 1) * X[1:2]
    assert int((mixture.abs() < 1e-12).sum()) > sparse.least(span.rank)
    below = (mixture < -0.01).double().mean()
    assert 0 < float(below) < 0.01  # it is negative at few places
    assert not bool(sparse.certified(span, span.coordinates(mixture)).any())
    assert bool(sparse.certified(span, span.coordinates(X[2:])).all())


def test_a_combination_of_certain_inputs_is_left_out() -> None:
    span, X = alike()
    c = span.coordinates(torch.cat([X[:2].mean(dim=0, keepdim=True), X[:4]]))
    kept = span.inputs(sparse.independent(span, c))
    assert len(kept) == 4

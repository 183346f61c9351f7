"""Rows of tables by their categories: found from nothing but the span, for few columns a row."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from divulge import reconstruction
from divulge.reconstruction.known_start import one_hot
from divulge.reconstruction.known_start.difference import Span, span_of
from divulge.training import Recipe

LEVELS = (4, 9, 12, 6, 8, 10, 7, 11, 5, 9, 12, 8)


def table(rows: int, levels: tuple[int, ...], seed: int) -> Tensor:
    """One-hot rows of categories with unequal shares, and three numbers."""
    draw = torch.Generator().manual_seed(seed)
    blocks = []
    for count in levels:
        shares = torch.randn(count, generator=draw).softmax(dim=0)
        chosen = torch.multinomial(shares, rows, replacement=True, generator=draw)
        blocks.append(nn.functional.one_hot(chosen, count).double())
    return torch.cat([*blocks, torch.rand(rows, 3, generator=draw, dtype=torch.float64)], dim=1)


def span(X: Tensor) -> Span:
    draw = torch.Generator().manual_seed(1)
    A = torch.randn(len(X), 150, generator=draw, dtype=torch.float64)
    return span_of(A.T @ torch.cat([X, torch.ones(len(X), 1).double()], dim=1), len(X), has_bias=True)


def same(found: Tensor, X: Tensor) -> bool:
    """Whether both hold the same rows."""
    apart = torch.cdist(found, X)
    return bool((apart.amin(dim=0) < 1e-6).all()) and bool((apart.amin(dim=1) < 1e-6).all())


def test_the_columns_of_categories_are_found() -> None:
    found = one_hot.categorical(span(table(20, LEVELS, 0)))
    assert bool(found[:-3].all())
    assert not bool(found[-3:].any())


def test_all_rows_are_found_from_their_span() -> None:
    for seed in range(3):
        X = table(30, LEVELS, seed)
        of = span(X)
        found = one_hot.records(of, seed=seed)
        assert len(found) == 30
        assert same(of.inputs(found), X)


def test_rows_are_found_in_a_part_of_the_span() -> None:
    X = table(40, LEVELS, 0)
    of = span(X)
    rest = torch.linalg.qr((of.coordinates(X[:10]) * of.S).T)[0].T
    found = one_hot.records(of, seed=0, within=rest)
    assert same(of.inputs(found), X[:10])


def test_a_table_without_categories_has_no_such_rows() -> None:
    X = torch.rand(10, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert len(one_hot.records(span(X), seed=0)) == 0


def test_categories_that_do_not_determine_a_row_give_none() -> None:
    """Two categories of three levels and the bias have rank five: seven rows differ by their numbers too."""
    assert len(one_hot.records(span(table(7, (3, 3), 0)), seed=0)) == 0


def test_rows_of_a_trained_network_come_back_at_three_columns_a_row() -> None:
    levels = (*LEVELS, *LEVELS)
    X = table(70, levels, 3).float()
    y = X[:, :4].argmax(dim=1)
    recipe = Recipe(widths=[X.shape[1], 400, 4], learning_rate=0.1, momentum=0.9, epochs=60, seed=3)
    found = reconstruction.from_weights(recipe.train(X, y), start=recipe, seed=3)
    apart = torch.cdist(X.double(), found.samples)
    assert int((apart.amin(dim=1) < 0.01).sum()) == 70
    assert found.certified is not None
    assert bool((apart.amin(dim=0)[found.certified] < 0.01).all())


def test_a_row_that_others_add_up_to_is_not_certified() -> None:
    """Rows p and q differ from a in one half of the categories each: so p + q - a has one level in each."""
    levels = (*LEVELS, *LEVELS)
    X = table(70, levels, 7)
    *blocks, numbers = X[0].split((*levels, 3))
    for odd in (0, 1):
        changed = [block.roll(1) if place % 2 == odd else block for place, block in enumerate(blocks)]
        X = torch.cat([X, torch.cat([*changed, numbers])[None]])
    added = X[70] + X[71] - X[0]
    assert set(added[:-3].tolist()) == {0.0, 1.0}
    X = X.float()
    recipe = Recipe(widths=[X.shape[1], 1000, 4], learning_rate=0.1, momentum=0.9, epochs=60, seed=7)
    found = reconstruction.from_weights(recipe.train(X, X[:, :4].argmax(dim=1)), start=recipe, seed=7)
    assert found.certified is not None
    assert float(torch.cdist(found.samples, added[None]).min()) < 0.02  # it is given, but not as certain
    assert int(found.certified.sum()) > 50
    assert float(torch.cdist(found.samples, X.double()).amin(dim=1)[found.certified].max()) < 0.02

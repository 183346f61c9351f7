"""What rows of A say about inputs that are not known yet, and the other way round."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import divulge
from divulge.reconstruction.known_start import rows
from divulge.reconstruction.known_start.difference import LayerPair, Span, difference, span_of
from divulge.reconstruction.known_start.layers import changed_layer
from divulge.reconstruction.known_start.search import _Pool

COUNT = 8
Drawn = Callable[[int, int], tuple[Tensor, Tensor]]


@pytest.fixture(scope="module")
def attacked(few_digits: Drawn) -> tuple[Span, LayerPair, Tensor]:
    """A span of digits, its layer, and the coordinates of the digits."""
    recipe = divulge.Recipe(widths=[64, 200, 10], learning_rate=0.05, momentum=0.9, epochs=20, seed=3)
    X, y = few_digits(COUNT, 3)
    layer = changed_layer(recipe.train(X, y), recipe.initial_model(), None)
    span = span_of(difference(layer.pair)[0], COUNT, has_bias=True)
    return span, layer.pair, span.coordinates(X.double())


def pool(span: Span, pair: LayerPair, exact: Tensor) -> _Pool:
    """A search that knows the inputs ``exact``, and no rows."""
    none = exact[:0]
    units = rows.informative(span)
    return _Pool(span, pair, units, None, None, math.inf, rows.none(span), exact, none, none, exact)


def test_all_inputs_give_the_rows(attacked: tuple[Span, LayerPair, Tensor]) -> None:
    span, pair, C = attacked
    found = pool(span, pair, C)
    found.add_rows_of_exact()
    assert found.sure == COUNT
    q = torch.linalg.inv(C).T
    shares = (found.rows.q @ (q / q.norm(dim=1, keepdim=True)).T).abs()
    assert float(shares.amax(dim=1).min()) > 1 - 1e-6


def test_some_inputs_do_not_give_rows(attacked: tuple[Span, LayerPair, Tensor]) -> None:
    span, pair, C = attacked
    found = pool(span, pair, C[:-1])
    found.add_rows_of_exact()
    assert found.sure == len(found.rows) == 0


def test_the_likely_rows_of_certain_inputs_give_the_input_that_is_missing(
    attacked: tuple[Span, LayerPair, Tensor],
) -> None:
    span, pair, C = attacked
    q = torch.linalg.inv(C).T
    q = q / q.norm(dim=1, keepdim=True)
    found = pool(span, pair, C[:-1])
    found.rows = rows.measured(span, q[-1:], pair.highest(span.inputs(C[-1:])), rows.informative(span))
    found.sure, found.own = 1, torch.cat([q[:-1], q[:-1]])  # the same row twice counts once
    assert len(found.unexplained()) == 0
    X = span.inputs(found.assembled())
    assert float(torch.cdist(span.inputs(C), X).amin(dim=1).max()) < 1e-6

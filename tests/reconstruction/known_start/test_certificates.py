"""Which inputs are certified while some rows of the difference are missing."""

from __future__ import annotations

import pytest
import torch
from sklearn.datasets import load_sample_image
from torch import Tensor

import divulge
from divulge import reconstruction
from divulge.reconstruction.known_start import attack, rows
from divulge.reconstruction.known_start.difference import LayerPair, Span, difference, span_of
from divulge.reconstruction.known_start.layers import changed_layer
from divulge.reconstruction.known_start.search import Factors
from divulge.reconstruction.matching import correlation
from divulge.reconstruction.value_bounds import ValueBounds

COUNT, CERTAIN = 8, 4
RECIPE = divulge.Recipe(widths=[64, 200, 10], learning_rate=0.05, momentum=0.9, epochs=20, seed=3)


def attacked() -> tuple[Span, LayerPair, Tensor]:
    """A span of digits, its layer, and the digits."""
    X, y = divulge.datasets.load("digits").train
    X = X.float().flatten(1)[:COUNT] / (16 if float(X.max()) > 1 else 1)
    layer = changed_layer(RECIPE.train(X, y[:COUNT]), RECIPE.initial_model(), None)
    return span_of(difference(layer.pair)[0], COUNT, has_bias=True), layer.pair, X.double()


def best(
    span: Span, pair: LayerPair, q: Tensor, separated: Tensor, certain: int = CERTAIN, bounds: ValueBounds | None = None
) -> attack.Found:
    """The answer when the first rows of q [r, r] are certain, and the inputs were separated so far."""
    X = span.inputs(separated)
    found = rows.measured(span, q, pair.highest(X), rows.informative(span))
    return attack._best(span, pair, Factors(found, certain, separated, *[separated[:0]] * 4), bounds)


def test_inputs_beside_missing_rows_are_not_certified() -> None:
    span, pair, X = attacked()
    draw = torch.Generator().manual_seed(0)
    C = span.coordinates(X)
    q = torch.linalg.inv(C).T
    q = torch.cat([q[:CERTAIN], torch.randn(COUNT - CERTAIN, COUNT, generator=draw, dtype=torch.float64)])
    mixed = C + 0.5 * torch.randn(COUNT, COUNT, generator=draw, dtype=torch.float64) @ C
    found = best(span, pair, q, mixed)
    assert float(correlation(found.X, X).amax(dim=1).min()) < 0.9  # what is found is not right
    assert not bool(found.certified.any())


def test_the_last_input_is_not_certified_because_all_others_have_rows() -> None:
    span, pair, X = attacked()
    draw = torch.Generator().manual_seed(0)
    C = span.coordinates(X)
    q = torch.linalg.inv(C).T
    q = torch.cat([q[:-1], torch.randn(1, COUNT, generator=draw, dtype=torch.float64)])
    found = best(span, pair, q, C, certain=COUNT - 1)
    last = correlation(found.X, X).argmax(dim=1) == COUNT - 1
    assert not bool(found.certified[last].any())


def test_a_row_wrongly_called_certain_does_not_replace_what_was_separated() -> None:
    span, pair, X = attacked()
    draw = torch.Generator().manual_seed(0)
    C = span.coordinates(X)
    q = torch.linalg.inv(C).T
    wrong = q[:-1].mean(dim=0) + 1e-2 * torch.randn(COUNT, generator=draw, dtype=torch.float64)  # nearly of their span
    found = best(span, pair, torch.cat([q[:-1], wrong[None]]), C, certain=COUNT, bounds=ValueBounds(0.0, 1.0, None))
    assert float(correlation(found.X, X).amax(dim=0).min()) > 0.99
    assert not bool(found.certified.any())


def test_inputs_are_certified_where_all_rows_are_certain() -> None:
    span, pair, X = attacked()
    C = span.coordinates(X)
    found = best(span, pair, torch.linalg.inv(C).T, C, certain=COUNT)
    assert int(found.certified.sum()) >= COUNT - 1
    assert float(correlation(found.X, X).amax(dim=1)[found.certified].min()) > 0.99


def test_half_of_the_rows_certify_nothing() -> None:
    span, pair, X = attacked()
    C = span.coordinates(X)  # the inputs are right, but mixtures with those of missing rows could be as right
    found = best(span, pair, torch.linalg.inv(C).T, C)
    assert not bool(found.certified.any())


def patches(seed: int) -> Tensor:
    """Six coloured patches of a photograph, in [-1, 1]."""
    photograph = torch.tensor(load_sample_image("china.jpg")).permute(2, 0, 1).float() / 127.5 - 1
    draw = torch.Generator().manual_seed(seed)
    corners = (torch.randint(side - 24, (6,), generator=draw).tolist() for side in photograph.shape[1:])
    return torch.stack([photograph[:, r : r + 24, c : c + 24].flatten() for r, c in zip(*corners, strict=True)])


@pytest.mark.slow
@pytest.mark.parametrize("added", ["brighter copies", "constants"])
def test_no_picture_is_certified_that_was_not_trained_on(added: str) -> None:
    X = patches(0)
    others = 0.9 * X + 0.05 if added == "brighter copies" else torch.tensor([[0.2], [1.0]]).expand(-1, X.shape[1])
    X = torch.cat([X, others])  # the span of the copies holds a grey picture, which no row of its own excludes
    y = torch.arange(len(X)) % 10
    recipe = divulge.Recipe(widths=[X.shape[1], 300, 10], learning_rate=0.05, momentum=0.9, epochs=40, seed=0)
    found = reconstruction.from_weights(
        recipe.train(X, y), start=recipe, value_range=(-1.0, 1.0), shape=(3, 24, 24), seconds=10
    )
    assert found.certified is not None
    likeness = correlation(found.samples, X.double()).max(dim=1).values
    assert bool((likeness[found.certified] > 0.9).all())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_mixture_of_a_digit_and_its_brighter_copy_is_certified(seed: int) -> None:
    X, y = divulge.datasets.load("digits").train
    X = X.float().flatten(1) / (16 if float(X.max()) > 1 else 1)
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(seed))[:6]
    X = torch.cat(
        [X[order], (1.5 * X[order]).clamp(max=1)]
    )  # 3 x - 2 y is in the range, and has more zeros than either
    recipe = divulge.Recipe(widths=[64, 400, 10], learning_rate=0.1, momentum=0.9, epochs=60, seed=seed)
    found = reconstruction.from_weights(recipe.train(X, y[order].repeat(2)), start=recipe, seconds=10)
    assert found.certified is not None
    error = torch.cdist(found.samples, X.double()).min(dim=1).values / X.norm(dim=1).mean()
    assert bool((error[found.certified] < 0.02).all())

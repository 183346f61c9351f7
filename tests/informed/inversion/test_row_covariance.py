"""What a search looks for first, and what it could not have seen."""

from __future__ import annotations

import pytest
import torch

from divulge import Recipe
from divulge.informed.inversion import derivatives, gauss_newton, row_covariance
from divulge.informed.inversion.training_function import mlp_training
from divulge.training.batched.model_group import prepare
from divulge.training.batched.shared_setup import encode


def pictures(count, shape=(3, 8, 6), seed=0):
    """Smooth ones, whose colours go together."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(count, *shape, generator=generator, dtype=torch.float64)
    smooth = sum(noise.roll((i, j), (2, 3)) for i in range(3) for j in range(3))
    return (smooth + 2 * smooth.mean(dim=1, keepdim=True)).flatten(1)


def test_the_covariance_of_few_pictures_is_that_of_many():
    values, vectors = row_covariance.picture_covariance(pictures(40), (3, 8, 6))
    assert torch.allclose(vectors.T @ vectors, torch.eye(144, dtype=torch.float64), atol=1e-12)
    others = pictures(4000, seed=1) @ vectors
    measured = others.square().mean(dim=0)
    assert float(torch.corrcoef(torch.stack([values, measured]))[0, 1]) > 0.8


def test_a_metric_is_a_covariances_root_and_only_pictures_have_one():
    found = row_covariance.metric(pictures(40), (3, 8, 6), torch.float64)
    assert torch.allclose(found.root @ found.inverse, torch.eye(144, dtype=torch.float64), atol=1e-9)
    values, vectors = row_covariance.picture_covariance(pictures(40), (3, 8, 6))
    expected = (vectors * (values / values.mean() + 1e-3)) @ vectors.T
    assert torch.allclose(found.root @ found.root, expected, atol=1e-9)
    assert row_covariance.metric(pictures(40), (144,), torch.float64) is None


class Linear:
    """A run whose J is a diagonal."""

    share = 1.0

    def __init__(self, diagonal):
        self.diagonal = diagonal

    def forward(self, dZ):
        return dZ * self.diagonal

    def backward(self, residual):
        return residual * self.diagonal


def test_what_hardly_shows_is_not_found():
    seen = Linear(torch.cat([torch.ones(30), torch.full((10,), 1e-3)]).double())
    difference = torch.ones(2, 40, dtype=torch.float64)
    assert torch.allclose(
        gauss_newton.unrecovered_share(seen, difference, 1), torch.full((2,), 0.25).double(), atol=1e-4
    )
    assert float(gauss_newton.unrecovered_share(seen, difference, 2).max()) < 1e-6


@pytest.mark.slow
def test_a_sample_of_the_known_rows_stands_for_all_in_the_derivative():
    generator = torch.Generator().manual_seed(2)
    X = torch.rand(1200, 20, generator=generator, dtype=torch.float64)
    y = (X[:, :3] + 0.2 * torch.rand(1200, 3, generator=generator)).argmax(dim=1)
    recipe = Recipe(widths=[20, 5, 3], activation="elu", learning_rate=0.2, momentum=0.9, epochs=30)
    setup = mlp_training(prepare(recipe, X, y, dtype=torch.float64)).setup
    Z, targets = X[:2].flip(1), encode(recipe, y[:2], 3).T
    whole = derivatives.Run(setup, Z, targets)
    few = derivatives.Run(setup, Z, targets, derivatives.Sample.of(setup, 600))
    dZ, r = torch.randn(2, 20, generator=generator), torch.randn(whole.theta.shape, generator=generator)
    dZ, r = dZ.double(), r.double()
    assert torch.equal(few.theta, whole.theta)
    assert 0.4 < few.share < 0.6
    exact, close = whole.forward(dZ), few.forward(dZ)
    assert (close - exact).norm() < 0.15 * exact.norm()
    assert torch.allclose((close * r).sum(dim=1), (few.backward(r) * dZ).sum(dim=1), rtol=1e-9)


@pytest.mark.slow
def test_many_known_rows_are_sampled_and_few_are_not():
    generator = torch.Generator().manual_seed(3)
    X, y = torch.rand(4100, 4, generator=generator), torch.randint(0, 2, (4100,), generator=generator)
    recipe = Recipe(widths=[4, 2, 2], epochs=2)
    sample = mlp_training(prepare(recipe, X, y, dtype=torch.float32)).sample
    assert sample is not None
    assert 1800 < len(sample.rows) < 2200
    assert abs(float(sample.counts[:-1].sum()) - 4100) < 200
    assert mlp_training(prepare(recipe, X[:4000], y[:4000], dtype=torch.float32)).sample is None

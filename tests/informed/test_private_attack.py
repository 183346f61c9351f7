"""The attack on private models: its posterior against the dense formula, its errors between blind and exact."""

from __future__ import annotations

import math

import pytest
import torch

from divulge import datasets
from divulge.core.errors import InvalidInput
from divulge.informed import private_attack
from divulge.informed.weight_readings import reading_of
from divulge.training import Privacy, Recipe
from divulge.training.private.trainer import train_many

RECIPE = Recipe(
    widths=[64, 10, 10], activation="elu", learning_rate=0.2, momentum=0.9, epochs=40,
    privacy=Privacy(noise_multiplier=1.0, clip=1.0, noise_seed=0),
)  # fmt: skip

CNN = Recipe(
    architecture={"architecture": "two-conv", "shape": [1, 8, 8], "filters": [4, 16], "dense": 8}, learning_rate=0.05,
    momentum=0.9, epochs=8, privacy=Privacy(noise_multiplier=1.0, clip=2.0, noise_seed=0),
)  # fmt: skip


def test_the_posterior_is_the_gaussian_one() -> None:
    generator = torch.Generator().manual_seed(3)
    rows = torch.rand(30, 3, generator=generator, dtype=torch.float64)
    mixing = torch.randn(3, 7, generator=generator, dtype=torch.float64)
    away = 0.3 * (rows @ mixing) + 0.05 * torch.randn(30, 7, generator=generator, dtype=torch.float64)
    known = private_attack._class(4, 1.0, away, rows)
    seen, sigma = away[:2] + 0.1, 0.2
    evidence, found = known.posterior(seen, sigma)
    lengths = away.norm(dim=1)
    directions = away / lengths[:, None]
    u, z = directions - directions.mean(dim=0), rows - rows.mean(dim=0)
    covariance, cross = u.T @ u / 30, z.T @ u / 30
    for place, length in enumerate(known.lengths.tolist()):
        total = length**2 * covariance + sigma**2 * torch.eye(7, dtype=torch.float64)
        residual = seen - length * directions.mean(dim=0)
        expected = rows.mean(dim=0) + residual @ torch.linalg.inv(total) @ (length * cross).T
        torch.testing.assert_close(found[place], expected, rtol=1e-8, atol=1e-8)
        density = torch.distributions.MultivariateNormal(torch.zeros(7, dtype=torch.float64), total).log_prob(residual)
        constant = 7 / 2 * math.log(2 * math.pi)
        torch.testing.assert_close(evidence[place] - known.log_prior[place], density + constant, rtol=1e-8, atol=1e-8)


@pytest.mark.slow
def test_it_reads_records_off_clipped_models_and_little_noise_but_not_off_much() -> None:
    X, y = datasets.load("digits").train
    known, shadow, targets = ((X[a:b], y[a:b]) for a, b in ((0, 60), (60, 660), (660, 690)))
    statistics = private_attack.learn(RECIPE, *known, *shadow)
    mean = shadow[0].double().mean(dim=0)
    blind = float((targets[0] - mean).square().mean())
    errors, right = {}, {}
    for noise in (0.0, 0.02, 30.0):
        attack = statistics.against(noise, seed=1)
        assert (attack.noise > 0) is (noise > 0)
        released = train_many(private_attack._with_noise(RECIPE, noise), *known, *targets, list(range(500, 530)))
        rows, labels = attack(released)
        assert float(rows.min()) >= 0
        assert float(rows.max()) <= 1
        errors[noise] = float((rows - targets[0].double()).square().mean())
        right[noise] = float((labels == targets[1]).double().mean())
    assert errors[0.0] < 0.2 * blind
    assert right[0.0] > 0.9
    assert errors[0.0] <= errors[0.02] < 0.6 * blind
    assert 0.8 * blind < errors[30.0] < 1.2 * blind  # with that much noise it is a blind guess, and not a worse one


@pytest.mark.slow
def test_it_reads_records_off_models_of_sampled_batches() -> None:
    X, y = datasets.load("digits").train
    recipe = Recipe(widths=[64, 10], learning_rate=0.3, epochs=40, batch_size=6, privacy=RECIPE.privacy)
    assert private_attack.averaged(recipe, 11) == Recipe(
        widths=[64, 10], learning_rate=0.3, epochs=80, privacy=RECIPE.privacy
    )
    known, shadow, targets = ((X[a:b], y[a:b]) for a, b in ((0, 10), (10, 170), (300, 310)))
    attack = private_attack.learn(recipe, *known, *shadow).against(0.0)
    assert attack.noise > 0  # that of the samples
    blind = float((targets[0] - shadow[0].mean(dim=0)).square().mean())
    released = train_many(private_attack._with_noise(recipe, 0.0), *known, *targets, list(range(500, 510)))
    rows, labels = attack(released)
    assert float((rows - targets[0].double()).square().mean()) < 0.5 * blind
    assert float((labels == targets[1]).double().mean()) > 0.8


def test_of_a_convolutional_network_it_reads_the_features_whatever_the_label() -> None:
    generator = torch.Generator().manual_seed(1)
    errors, features = torch.randn(40, 8, generator=generator), 1 + torch.randn(40, 64, generator=generator)
    model = CNN.initial_model()
    away = torch.zeros(40, sum(p.numel() for p in model.parameters()))
    first = 4 * 26 + 16 * 101  # behind both convolutions
    away[:, first : first + 512] = (errors[:, :, None] * features[:, None]).flatten(1)
    away[:, first + 512 : first + 520] = errors
    away[:, -10:] = torch.eye(10)[torch.arange(40) % 10]
    reading = reading_of(CNN, away)
    assert reading is not None
    expected = errors.norm(dim=1)[:, None] * features
    torch.testing.assert_close(reading.of(away), expected, rtol=1e-3, atol=1e-3)
    assert reading.labels(away).tolist() == [number % 10 for number in range(40)]
    noise = 0.3 * torch.randn(away.shape, generator=generator)  # as large as a weight's change
    likeness = torch.cosine_similarity(reading.of(away + noise), expected)
    assert float(likeness.median()) > 0.9
    assert reading_of(RECIPE, away) is None


@pytest.mark.slow
def test_it_reads_pictures_off_convolutional_networks() -> None:
    X, y = datasets.load("digits").train
    known, shadow, targets = ((X[a:b], y[a:b]) for a, b in ((0, 20), (20, 120), (160, 170)))
    statistics = private_attack.learn(CNN, *known, *shadow)
    blind = float((targets[0] - shadow[0].mean(dim=0)).square().mean())
    errors = {}
    for noise in (0.0, 20.0):
        released = train_many(private_attack._with_noise(CNN, noise), *known, *targets, list(range(700, 710)))
        rows, labels = statistics.against(noise)(released)
        errors[noise] = float((rows - targets[0].double()).square().mean())
        assert (float((labels == targets[1]).double().mean()) > 0.8) is (noise == 0)
    assert errors[0.0] < 0.7 * blind
    assert errors[20.0] > 0.9 * blind


def test_what_it_cannot_learn_from_is_said() -> None:
    X, y = datasets.load("digits").train
    with pytest.raises(InvalidInput, match="private recipes"):
        private_attack.learn(Recipe(widths=[64, 10]), X[:10], y[:10], X[10:200], y[10:200])
    with pytest.raises(InvalidInput, match="at least 80 shadow records"):
        private_attack.learn(RECIPE, X[:10], y[:10], X[10:50], y[10:50])

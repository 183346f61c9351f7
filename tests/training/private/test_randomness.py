"""Noise and samples of private training cannot be repeated from what is written to disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from divulge import Recipe, datasets
from divulge.training import Privacy
from divulge.training.private.randomness import SystemRandomness, randomness

DIGITS = datasets.load("digits").train


def _weights(recipe: Recipe) -> torch.Tensor:
    model = recipe.train(*DIGITS)
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_sampled_batches_cannot_be_replayed_from_the_recipe(tmp_path: Path) -> None:
    """Without noise only the samples differ: two runs of the same recipe.json must not draw the same ones."""
    options = {"widths": [64, 10], "epochs": 2, "batch_size": 100, "seed": 5}
    Recipe(**options, privacy=Privacy(noise_multiplier=0.0)).save(tmp_path)
    first, second = (_weights(Recipe.load(tmp_path)) for _ in range(2))
    assert float((first - second).norm()) > 1e-3 * float(first.norm())
    seeded = Recipe(**options, privacy=Privacy(noise_multiplier=0.0, noise_seed=1))
    assert torch.equal(_weights(seeded), _weights(seeded))


@pytest.mark.slow
def test_the_seed_of_the_weights_says_nothing_about_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows that were drawn, against those that the recipe's seed leads to in torch and in Opacus."""
    from opacus.utils.uniform_sampler import UniformWithReplacementSampler

    drawn: list[set[int]] = []
    original = SystemRandomness.sample

    def recorded(self: SystemRandomness, n: int, rate: float) -> torch.Tensor:
        index = original(self, n, rate)
        drawn.append(set(index.tolist()))
        return index

    monkeypatch.setattr(SystemRandomness, "sample", recorded)
    recipe = Recipe(widths=[64, 10], epochs=1, batch_size=200, seed=5, privacy=Privacy(noise_multiplier=1.0))
    recipe.train(*DIGITS)
    n, batches = len(DIGITS.X), len(drawn)
    generators = [torch.Generator().manual_seed(recipe.seed) for _ in range(2)]
    replays = [
        [set(index) for index in UniformWithReplacementSampler(
            num_samples=n, sample_rate=1 / batches, generator=generators[0])],
        [set(torch.nonzero(torch.rand(n, generator=generators[1]) < 1 / batches)[:, 0].tolist()) for _ in drawn],
        [set(index.tolist()) for index in recipe.batches(n)],
    ]  # fmt: skip
    for replay in replays:
        overlap = np.mean([len(a & b) / len(a) for a, b in zip(drawn, replay, strict=True)])
        assert overlap < 2 / batches  # what chance gives is 1 / batches


def test_the_systems_noise_is_gaussian_and_its_samples_have_the_rate() -> None:
    source = SystemRandomness()
    noise = source.normal((200, 100), 3.0, torch.float64)
    assert kstest(noise.flatten().numpy() / 3, "norm").pvalue > 1e-6
    sizes = np.array([len(source.sample(1000, 0.1)) for _ in range(200)])
    assert abs(sizes.mean() - 100) < 6 * np.sqrt(1000 * 0.1 * 0.9 / 200)


def test_a_seed_fixes_noise_and_samples() -> None:
    for draw in (lambda source: source.normal((5,), 1.0, torch.float32), lambda source: source.sample(50, 0.3)):
        assert torch.equal(draw(randomness(3)), draw(randomness(3)))
        assert not torch.equal(draw(randomness(3)), draw(randomness(4)))

"""DP training: the clipped sum against per-example gradients, the steps against Opacus, many models against one."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from divulge import datasets
from divulge.core.errors import InvalidInput
from divulge.training import Privacy, Recipe, evaluate
from divulge.training.batched.shared_setup import encode
from divulge.training.private import trainer
from divulge.training.private.mlp_clipping import Stack, clipped_sum

LOSSES = [("cross-entropy", 3), ("logistic", 1), ("square", 2)]


def _problem(loss: str, outputs: int, n: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    X = torch.randn(n, 6, generator=generator, dtype=torch.float64)
    if loss == "square":
        return X, torch.randn(n, outputs, generator=generator, dtype=torch.float64)
    return X, torch.randint(0, max(2, outputs), (n,), generator=generator)


@pytest.mark.parametrize(("loss", "outputs"), LOSSES)
@pytest.mark.parametrize("activation", ["relu", "elu", "tanh", "softplus", "sigmoid"])
def test_the_clipped_sum_equals_clipping_every_examples_own_gradient(loss: str, outputs: int, activation: str) -> None:
    recipe = Recipe(widths=[6, 5, 4, outputs], activation=activation, loss=loss, precision="float64", bias="all")
    model = recipe.initial_model()
    X, y = _problem(loss, outputs)
    expected = [torch.zeros_like(p) for p in model.parameters()]
    for i in range(len(X)):  # autograd, one example at a time
        model.zero_grad()
        recipe.loss_of(model(X[i : i + 1]), y[i : i + 1]).backward()
        norm = torch.sqrt(sum((p.grad**2).sum() for p in model.parameters()))
        for total, p in zip(expected, model.parameters(), strict=True):
            total += p.grad * min(1.0, 0.3 / (float(norm) + 1e-6))
    targets = encode(recipe, y, outputs)[None]
    sums, norms = clipped_sum(Stack.of(model), [(X[None], targets)], loss, 0.3)
    assert float(norms.max()) > 0.3  # something was clipped
    for total, ours in zip(expected, sums, strict=True):
        torch.testing.assert_close(ours[0], total, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_every_step_matches_opacus_with_the_same_noise() -> None:
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    X, y = (t[:40] for t in datasets.load("digits").train)
    recipe = Recipe(
        widths=[64, 10, 10, 10], activation="elu", learning_rate=0.2, momentum=0.9, epochs=8, precision="float64",
        privacy=Privacy(noise_multiplier=0.7, clip=1.0, noise_seed=3), seed=2,
    )  # fmt: skip
    ours = recipe.train(X, y)
    theirs = recipe.initial_model()
    wrapped = GradSampleModule(theirs)
    optimiser = DPOptimizer(
        recipe.optimiser_for(theirs), noise_multiplier=0.7, max_grad_norm=1.0, expected_batch_size=len(X),
        generator=torch.Generator().manual_seed(3),
    )  # fmt: skip
    rows = X.to(torch.float64)
    for _ in range(recipe.epochs):
        optimiser.zero_grad()
        recipe.loss_of(wrapped(rows), y).backward()
        optimiser.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def test_many_models_at_once_are_the_models_trained_one_by_one() -> None:
    X, y = datasets.load("digits").train
    known, records = slice(0, 30), slice(30, 34)
    recipe = Recipe(
        widths=[64, 10, 10], activation="elu", epochs=6, momentum=0.9, precision="float64", bias="first",
        privacy=Privacy(noise_multiplier=0.5, clip=1.0, noise_seed=0),
    )  # fmt: skip
    together = trainer.train_many(recipe, X[known], y[known], X[records], y[records], [7, 8, 9, 10])
    for row, seed in enumerate([7, 8, 9, 10]):
        alone = dataclasses.replace(recipe, privacy=dataclasses.replace(recipe.privacy, noise_seed=seed)).train(
            torch.cat([X[known], X[30 + row : 31 + row]]), torch.cat([y[known], y[30 + row : 31 + row]])
        )
        flat = torch.cat([p.detach().flatten() for p in alone.parameters()])
        torch.testing.assert_close(together[row], flat, rtol=0, atol=1e-11)


@pytest.mark.slow
def test_models_from_two_workers_and_from_disk_are_the_same(tmp_path: Path) -> None:
    X, y = datasets.load("digits").train
    recipe = Recipe(widths=[64, 5, 10], epochs=3, privacy=Privacy(noise_multiplier=0.5, clip=1.0, noise_seed=0))
    records = X[20:26], y[20:26], list(range(6))
    here = trainer.train_many(recipe, X[:20], y[:20], *records)
    there = trainer.train_many(recipe, X[:20], y[:20], *records, at_once=2, workers=2, folder=tmp_path)
    files = sorted(tmp_path.rglob("*.safetensors"))
    assert len(files) == 3
    files[0].unlink()  # as if the run had been killed before this group was done
    before = [file.stat().st_mtime_ns for file in files[1:]]
    again = trainer.train_many(recipe, X[:20], y[:20], *records, at_once=2, folder=tmp_path)
    assert torch.equal(there, again)
    assert [file.stat().st_mtime_ns for file in files[1:]] == before
    torch.testing.assert_close(here, there, rtol=0, atol=1e-6)


def test_without_privacy_many_models_equal_plain_training() -> None:
    X, y = datasets.load("digits").train
    recipe = Recipe(widths=[64, 8, 10], activation="tanh", epochs=5, precision="float64")
    together = trainer.train_many(recipe, X[:20], y[:20], X[20:22], y[20:22], [0, 1])
    plain = recipe.train(torch.cat([X[:20], X[21:22]]), torch.cat([y[:20], y[21:22]]))
    flat = torch.cat([p.detach().flatten() for p in plain.parameters()])
    torch.testing.assert_close(together[1], flat, rtol=0, atol=1e-12)


def test_sampled_batches_learn_through_opacus_and_a_seed_fixes_them() -> None:
    X, y = datasets.load("digits").train
    recipe = Recipe(
        widths=[64, 16, 10], activation="tanh", epochs=4, batch_size=100, learning_rate=1.0,
        privacy=Privacy(noise_multiplier=0.4, clip=1.0, noise_seed=1),
    )  # fmt: skip
    first, second = recipe.train(X, y), recipe.train(X, y)
    assert evaluate(first, X, y).accuracy > 0.5
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_an_empty_sample_still_takes_a_noisy_step() -> None:
    X, y = (t[:3] for t in datasets.load("digits").train)
    recipe = Recipe(
        widths=[64, 10], epochs=5, batch_size=1, privacy=Privacy(noise_multiplier=1.0, clip=1.0, noise_seed=1)
    )
    assert all(p.isfinite().all() for p in recipe.train(X, y).parameters())


def test_noise_from_the_operating_system_is_fresh_every_time() -> None:
    X, y = (t[:10] for t in datasets.load("digits").train)
    recipe = Recipe(widths=[64, 10], epochs=1, privacy=Privacy(noise_multiplier=1.0))
    a, b = recipe.train(X, y), recipe.train(X, y)
    assert not torch.equal(next(a.parameters()), next(b.parameters()))


def test_what_cannot_be_trained_privately_is_said() -> None:
    recipe = Recipe(widths=[64, 10], epochs=1)
    X, y = (t[:10] for t in datasets.load("digits").train)
    with pytest.raises(InvalidInput, match="no privacy"):
        trainer.train(recipe, X, y)
    with pytest.raises(InvalidInput, match="noise seed"):
        trainer.train_many(recipe, X, y, X[:2], y[:2], [1])


def test_models_of_sampled_batches_equal_those_trained_alone() -> None:
    X, y = (t[:22] for t in datasets.load("digits").train)
    privacy = Privacy(noise_multiplier=0.5, clip=1.0)
    recipe = Recipe(widths=[64, 5, 10], epochs=2, batch_size=4, privacy=privacy)
    together = trainer.train_many(recipe, X[:20], y[:20], X[20:], y[20:], [3, 4])
    for number, (weights, seed) in enumerate(zip(together, [3, 4], strict=True)):
        own = dataclasses.replace(recipe, privacy=dataclasses.replace(privacy, noise_seed=seed))
        index = [*range(20), 20 + number]
        alone = torch.cat([p.detach().flatten() for p in own.train(X[index], y[index]).parameters()])
        assert torch.equal(weights, alone)


def test_layers_that_ours_does_not_cover_are_clipped_by_opacus_and_sampled_alike() -> None:
    from torch import nn

    from divulge.training.private.opacus_clipping import OpacusClipping

    torch.manual_seed(0)
    start = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 3)).double()
    recipe = Recipe(
        widths=[6, 3], epochs=3, batch_size=4, precision="float64", learning_rate=0.1,
        privacy=Privacy(noise_multiplier=0.5, clip=0.3, noise_seed=1),
    )  # fmt: skip
    X, y = _problem("cross-entropy", 3)
    first, second = recipe.train(X, y, start=start), recipe.train(X, y, start=start)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    clipping = OpacusClipping(start, X, y, recipe)
    sums, norms = clipping.clipped_sum(0.3, torch.tensor([2, 7]))
    expected = [torch.zeros_like(p) for p in start.parameters()]
    for i in (2, 7):
        gradients = torch.autograd.grad(recipe.loss_of(start(X[i : i + 1]), y[i : i + 1]), list(start.parameters()))
        norm = torch.sqrt(sum((g**2).sum() for g in gradients))
        for total, g in zip(expected, gradients, strict=True):
            total += g * min(1.0, 0.3 / (float(norm) + 1e-6))
    assert norms.shape == (1, 2)
    for ours, total in zip(sums, expected, strict=True):
        torch.testing.assert_close(ours[0], total, rtol=1e-10, atol=1e-12)
    empty, _ = clipping.clipped_sum(0.3, torch.tensor([], dtype=torch.long))
    assert all(not bool(part.any()) for part in empty)

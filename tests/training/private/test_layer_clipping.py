"""DP training of networks that are no perceptron: clipped sums against per-example gradients, steps against Opacus."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from divulge.core.errors import InvalidInput, UnsupportedModel, WrongShape
from divulge.training import Privacy, Recipe
from divulge.training.private import trainer
from divulge.training.private.layer_clipping import Layerwise

SMALL_CNN = {"architecture": "balle-cnn", "shape": [3, 12, 12]}
NETWORKS = [
    SMALL_CNN,
    {"architecture": "two-conv", "shape": [1, 8, 8], "filters": [3, 4], "dense": 6},
    {"architecture": "vgg11", "shape": [3, 32, 32], "width": 0.03, "norm": "none"},
    {"architecture": "resnet18", "shape": [1, 8, 8], "width": 0.06, "norm": "group"},
]


def _pictures(spec: dict[str, Any], n: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    X = torch.rand(n, *spec["shape"], generator=generator, dtype=torch.float64)
    return X, torch.randint(0, 10, (n,), generator=generator)


@pytest.mark.slow
@pytest.mark.parametrize("spec", NETWORKS, ids=lambda spec: spec["architecture"])
@pytest.mark.parametrize("at_once", [2**21, 1])
def test_the_clipped_sum_equals_clipping_every_examples_own_gradient(
    spec: dict[str, Any], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("divulge.training.private.layer_clipping._NUMBERS", at_once)
    recipe = Recipe(architecture=spec, precision="float64")
    model = recipe.initial_model()
    X, y = _pictures(spec, 5)
    own = []
    for i in range(len(X)):  # autograd, one example at a time
        model.zero_grad()
        recipe.loss_of(model(X[i : i + 1]), y[i : i + 1]).backward()
        own.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    clip = float(sorted(g.norm() for g in own)[2])  # some are clipped and some are not
    expected = sum(g * min(1.0, clip / (float(g.norm()) + 1e-6)) for g in own)
    sums, norms = Layerwise(recipe.initial_model(), X, y, recipe).clipped_sum(clip)
    torch.testing.assert_close(torch.cat([part.flatten() for part in sums]), expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(norms[0], torch.stack([g.norm() for g in own]), rtol=1e-10, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("spec", NETWORKS[:2], ids=lambda spec: spec["architecture"])
def test_every_step_matches_opacus_with_the_same_noise(spec: dict[str, Any]) -> None:
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    X, y = _pictures(spec, 12)
    recipe = Recipe(
        architecture=spec, learning_rate=0.1, momentum=0.9, epochs=6, precision="float64",
        privacy=Privacy(noise_multiplier=0.3, clip=2.0, noise_seed=3), seed=2,
    )  # fmt: skip
    ours, theirs = recipe.train(X, y), recipe.initial_model()
    wrapped = GradSampleModule(theirs)
    optimiser = DPOptimizer(
        recipe.optimiser_for(theirs), noise_multiplier=0.3, max_grad_norm=2.0, expected_batch_size=len(X),
        generator=torch.Generator().manual_seed(3),
    )  # fmt: skip
    for _ in range(recipe.epochs):
        optimiser.zero_grad()
        recipe.loss_of(wrapped(X.clone().requires_grad_()), y).backward()
        optimiser.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert a.requires_grad
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    assert not any(module._forward_hooks for module in ours.modules())


def test_many_pictures_models_are_the_models_trained_one_by_one() -> None:
    X, y = _pictures(SMALL_CNN, 8)
    recipe = Recipe(architecture=SMALL_CNN, epochs=3, privacy=Privacy(noise_multiplier=0.5, clip=2.0, noise_seed=0))
    together = trainer.train_many(recipe, X[:6], y[:6], X[6:], y[6:], [7, 8])
    private = dataclasses.replace(recipe, privacy=dataclasses.replace(recipe.privacy, noise_seed=8))
    alone = private.train(torch.cat([X[:6], X[7:]]), torch.cat([y[:6], y[7:]]))
    assert torch.equal(together[1], torch.cat([p.detach().flatten() for p in alone.parameters()]))


class _Twice(nn.Module):
    """One layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, X: Tensor) -> Tensor:
        out: Tensor = self.layer(self.layer(X))
        return out


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)), "inplace=False"),
        (nn.Sequential(nn.Unflatten(1, (4, 1, 1)), nn.Conv2d(4, 4, 1, groups=2), nn.Flatten()), "in one group"),
        (nn.Sequential(nn.Linear(4, 4), nn.PReLU()), "PReLU"),
        (_Twice(), "exactly once"),
    ],
    ids=["in place", "groups", "PReLU", "twice"],
)
def test_what_has_no_gradient_of_its_own_is_refused_in_one_sentence(model: nn.Module, sentence: str) -> None:
    recipe = Recipe(widths=[4, 4], epochs=1, privacy=Privacy(noise_multiplier=1.0))
    with pytest.raises(UnsupportedModel, match=sentence):
        recipe.train(torch.ones(3, 4), torch.tensor([0, 1, 2]), start=model)


@pytest.mark.parametrize("batch_size", [None, 2])
def test_pictures_that_do_not_fit_and_batch_normalisation_get_one_sentence(batch_size: int | None) -> None:
    X, y = _pictures(SMALL_CNN, 6)
    recipe = Recipe(architecture=SMALL_CNN, epochs=1, batch_size=batch_size, privacy=Privacy(noise_multiplier=1.0))
    with pytest.raises(WrongShape, match="takes inputs of shape"):
        recipe.train(X[:, :2], y)
    with pytest.raises(InvalidInput, match="Labels go from 0 to 9"):
        recipe.train(X, y + 9)
    with pytest.raises(UnsupportedModel, match="mixes the examples"):
        recipe.train(torch.ones(6, 4), y % 4, start=nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))


def test_a_linear_layer_at_several_positions() -> None:
    model = nn.Sequential(nn.Unflatten(1, (3, 2)), nn.Linear(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)).double()
    recipe = Recipe(widths=[6, 3], precision="float64")
    X, y = torch.arange(12.0, dtype=torch.float64).view(2, 6) / 12, torch.tensor([0, 2])
    sums, _ = Layerwise(model, X, y, recipe).clipped_sum(1e9)
    model.requires_grad_(True)
    expected = torch.autograd.grad(recipe.loss_of(model(X), y, "sum"), list(model.parameters()))
    for ours, theirs in zip(sums, expected, strict=True):
        torch.testing.assert_close(ours[0], theirs, rtol=1e-10, atol=1e-12)

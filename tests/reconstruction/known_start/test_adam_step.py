"""One step of Adam undone: the gradient behind it, and inputs out of it."""

from __future__ import annotations

import pytest
import torch
from sklearn.datasets import load_sample_image
from torch import Tensor

import divulge
from divulge import reconstruction
from divulge.core.errors import AttackFailed
from divulge.reconstruction.known_start.adam_step import undone

RECIPE = divulge.Recipe(widths=[1728, 500, 10], optimiser="adam", learning_rate=1e-3, epochs=1, seed=3)


def patches(n: int) -> tuple[Tensor, Tensor]:
    """n coloured patches of a photograph of 24 times 24 pixels in [-1, 1], and labels."""
    photograph = torch.tensor(load_sample_image("china.jpg")).permute(2, 0, 1).float() / 127.5 - 1
    draw = torch.Generator().manual_seed(0)
    corners = (torch.randint(side - 24, (n,), generator=draw).tolist() for side in photograph.shape[1:])
    cut = [photograph[:, r : r + 24, c : c + 24].flatten() for r, c in zip(*corners, strict=True)]
    return torch.stack(cut), torch.arange(n) % 10


def first_layers(recipe: divulge.Recipe, X: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The first layer's weights before and after training."""
    before, after = (next(m.parameters()).detach().double() for m in (recipe.initial_model(), recipe.train(X, y)))
    return before, after


@pytest.mark.parametrize("change", [{}, {"optimiser": "adamw", "weight_decay": 0.01}])
def test_the_gradient_comes_back(change: dict[str, float]) -> None:
    X, y = patches(10)
    recipe = divulge.Recipe(**{**RECIPE.as_dict(), **change})
    step = undone(*first_layers(recipe, X, y))
    assert step is not None
    assert step.rate == recipe.learning_rate
    model = recipe.initial_model()
    torch.nn.functional.cross_entropy(model(X), y).backward()  # type: ignore[no-untyped-call]
    gradient = next(model.parameters()).grad
    assert gradient is not None
    error = (step.D * step.scale[:, None] + gradient).norm() / gradient.norm()
    assert error < 0.3
    signs = gradient.sign() * gradient.abs().mean()
    assert (signs - gradient).norm() / gradient.norm() > 0.5


@pytest.mark.parametrize(
    "change", [{"epochs": 2}, {"epochs": 20}, {"optimiser": "sgd", "learning_rate": 0.1}], ids=["two", "twenty", "sgd"]
)
def test_other_trainings_are_no_step_of_adam(change: dict[str, float]) -> None:
    X, y = patches(10)
    assert undone(*first_layers(divulge.Recipe(**{**RECIPE.as_dict(), **change}), X, y)) is None


def test_signs_alone_are_no_step_of_adam() -> None:
    X, y = patches(10)
    before, after = first_layers(RECIPE, X, y)
    along_signs = (before + 1e-3 * (after - before).sign()).float().double()
    assert undone(before, along_signs) is None


@pytest.mark.slow
def test_inputs_come_out_of_one_step() -> None:
    X, y = patches(5)
    found = reconstruction.from_weights(RECIPE.train(X, y), start=RECIPE, value_range=(-1.0, 1.0))
    assert found.rank == 5
    assert any("one step of Adam" in note for note in found.notes)
    assert found.match(X).found(0.9) >= 4


@pytest.mark.parametrize("epochs", [2, 30])
def test_pixels_that_are_mostly_zero_do_not_make_a_gap_of_several_steps(epochs: int) -> None:
    X, y = divulge.datasets.load("digits").train
    X = torch.where(X[:5].flatten(1) > 0.5 * X.max(), X[:5].flatten(1), 0.0).float() / float(X.max())
    recipe = divulge.Recipe(**{**RECIPE.as_dict(), "widths": [64, 400, 10], "epochs": epochs})
    with pytest.raises(AttackFailed, match="several steps of Adam"):
        reconstruction.from_weights(recipe.train(X, y[:5]), start=recipe)

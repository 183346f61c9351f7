"""Training inputs out of the difference of two checkpoints, on scikit-learn's digits."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import divulge
from divulge import models, reconstruction
from divulge.core.errors import AttackFailed, InvalidInput
from divulge.reconstruction.matching import correlation

RECIPE = divulge.Recipe(widths=[64, 400, 10], learning_rate=0.05, momentum=0.9, epochs=100, seed=3)


def digits(n: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """n digits in [0, 1] with their labels, and 300 others."""
    X, y = divulge.datasets.load("digits").train
    X = X.float().flatten(1) / (16 if float(X.max()) > 1 else 1)
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(seed))
    return X[order[:n]], y[order[:n]], X[order[500:800]]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_all_inputs_come_back_exactly_with_their_labels(seed: int) -> None:
    X, y, unseen = digits(8, seed)
    model = RECIPE.train(X, y)
    found = reconstruction.from_weights(model, start=RECIPE, seed=seed)
    assert found.rank == 8
    likeness = correlation(found.samples, X)
    assert found.certified is not None
    assert int(found.certified.sum()) >= 6
    assert bool((likeness.max(dim=1).values[found.certified] > 0.9).all())
    assert found.match(X, unseen=unseen).found(0.9) >= 7
    right = found.labels == y[likeness.argmax(dim=1)]
    assert int(right[found.certified].sum()) == int(found.certified.sum())


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [{"weight_decay": 5e-3}, {"batch_size": 4, "learning_rate": 0.02}, {"epochs": 1, "momentum": 0.0}],
    ids=["weight decay", "mini-batches", "one step"],
)
def test_other_trainings_leave_the_same_span(change: dict[str, float]) -> None:
    recipe = divulge.Recipe(**{**RECIPE.as_dict(), **change})
    rebuilt = 0
    for seed in (4, 5, 6, 7):  # which pictures of a set the search finds depends on the rounding of the machine
        X, y, _ = digits(8, seed)
        found = reconstruction.from_weights(recipe.train(X, y), start=recipe)
        assert found.rank == 8
        rebuilt += found.match(X).found(0.9)
    assert rebuilt >= 16  # of 32


def test_an_unrelated_start_is_refused() -> None:
    X, y, _ = digits(10, 0)
    model = RECIPE.train(X, y)
    other = divulge.Recipe(**{**RECIPE.as_dict(), "seed": 4})
    with pytest.raises(InvalidInput, match="not the start"):
        reconstruction.from_weights(model, start=other)


def test_another_architecture_is_refused() -> None:
    X, y, _ = digits(10, 0)
    with pytest.raises(InvalidInput, match="another architecture"):
        reconstruction.from_weights(RECIPE.train(X, y), start=models.MLP([64, 300, 10]))


def test_adam_is_refused_with_the_reason() -> None:
    X, y, _ = digits(10, 0)
    recipe = divulge.Recipe(**{**RECIPE.as_dict(), "optimiser": "adam", "learning_rate": 1e-3})
    with pytest.raises(AttackFailed, match="Adam"):
        reconstruction.from_weights(recipe.train(X, y), start=recipe)


def test_more_records_than_inputs_are_refused() -> None:
    X, y, _ = digits(300, 0)
    with pytest.raises(AttackFailed, match="more records"):
        reconstruction.from_weights(RECIPE.train(X, y), start=RECIPE)


def test_the_same_weights_hold_nothing() -> None:
    with pytest.raises(InvalidInput, match="No dense layer"):
        reconstruction.from_weights(RECIPE.initial_model(), start=RECIPE)


def test_options_of_the_other_attack_are_refused() -> None:
    with pytest.raises(InvalidInput, match="known start"):
        reconstruction.from_weights(RECIPE.initial_model(), start=RECIPE, restarts=3)


def broken(model: nn.Module, start: nn.Module) -> nn.Module:
    """The model with the entries of its first layer's difference in another order: same size, no span."""
    result = copy.deepcopy(model)
    layer, first = next(iter(result.children())), next(iter(start.children()))
    assert isinstance(layer, nn.Linear)
    assert isinstance(first, nn.Linear)
    with torch.no_grad():
        difference = (layer.weight - first.weight).flatten()
        order = torch.randperm(len(difference), generator=torch.Generator().manual_seed(0))
        layer.weight.copy_(first.weight + difference[order].reshape(layer.weight.shape))
    return result


def test_a_broken_difference_gives_nothing() -> None:
    X, y, _ = digits(10, 0)
    start = RECIPE.initial_model()
    with pytest.raises(AttackFailed):
        reconstruction.from_weights(broken(RECIPE.train(X, y), start), start=start)


@pytest.mark.slow
def test_a_start_in_a_file_and_the_saved_result(tmp_path: Path) -> None:
    X, y, _ = digits(8, 1)
    models.save(RECIPE.initial_model(), tmp_path / "base")
    found = reconstruction.from_weights(RECIPE.train(X, y), start=tmp_path / "base")
    assert (found.save(tmp_path / "out") / "samples.npz").is_file()
    assert len(found.as_dict()["certified"]) == 8


class Convolutional(nn.Sequential):
    """A frozen convolution in front of two dense layers."""

    input_shape = (1, 8, 8)

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(768, 200), nn.ReLU(), nn.Linear(200, 10)
        )


@pytest.mark.slow
def test_pictures_come_back_through_a_frozen_convolution() -> None:
    start = models.initialise(Convolutional(), seed=1)
    rebuilt = 0
    for seed in range(3):  # which pictures of a set the search finds depends on the rounding of the machine
        X, y, unseen = digits(8, seed)
        model = copy.deepcopy(start)
        dense = [parameter for name, parameter in model.named_parameters() if not name.startswith("0")]
        descent = torch.optim.SGD(dense, lr=0.05, momentum=0.9)
        for _ in range(60):
            descent.zero_grad()
            nn.functional.cross_entropy(model(X.reshape(-1, 1, 8, 8)), y).backward()
            descent.step()
        found = reconstruction.from_weights(model, start=start)
        assert found.rank == 8
        assert found.facts["features"]
        rebuilt += found.match(X, unseen=unseen).found(0.9)
        likeness = correlation(found.samples, X).max(dim=1).values
        assert found.certified is not None
        assert bool((likeness[found.certified] > 0.9).all())
    assert rebuilt >= 12  # of 24


def test_a_low_rank_adapter_gives_its_inputs_away() -> None:
    X, y, _ = digits(6, 2)

    class Adapted(nn.Module):
        """A frozen dense layer with an adapter of rank 16 beside it, as in LoRA."""

        def __init__(self) -> None:
            super().__init__()
            self.base, self.head = nn.Linear(64, 100), nn.Linear(100, 10)
            self.down, self.up = nn.Linear(64, 16, bias=False), nn.Linear(16, 100, bias=False)

        def forward(self, rows: Tensor) -> Tensor:
            answer: Tensor = self.head(torch.relu(self.base(rows) + self.up(self.down(rows))))
            return answer

    start = models.initialise(Adapted(), seed=0)
    model = copy.deepcopy(start)
    descent = torch.optim.SGD([*model.down.parameters(), *model.up.parameters()], lr=0.1)
    for _ in range(50):
        descent.zero_grad()
        nn.functional.cross_entropy(model(X), y).backward()
        descent.step()
    found = reconstruction.from_weights(model, start=start)
    assert found.facts["layer"] == "down"
    assert found.rank == 6
    outside = X.double() - X.double() @ torch.linalg.pinv(found.samples) @ found.samples
    assert float(outside.norm() / X.norm()) < 1e-3


def test_every_category_of_a_table_comes_back() -> None:
    draw = torch.Generator().manual_seed(0)
    levels = (4, 7, 3, 9, 5, 8, 6, 10, 4, 7)
    blocks = [nn.functional.one_hot(torch.randint(count, (10,), generator=draw), count) for count in levels]
    X = torch.cat([*blocks, torch.randint(101, (10, 2), generator=draw) / 100], dim=1).float()
    recipe = divulge.Recipe(widths=[X.shape[1], 200, 4], learning_rate=0.1, momentum=0.9, epochs=40, seed=1)
    found = reconstruction.from_weights(recipe.train(X, blocks[0].argmax(dim=1)), start=recipe)
    nearest = torch.cdist(found.samples, X.double()).min(dim=1)
    exact = nearest.values < 0.01
    assert len(nearest.indices[exact].unique()) >= 8
    assert found.certified is not None
    assert bool(exact[found.certified].all())

"""Which layer is attacked, and layers whose difference is no span of the inputs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from divulge import models, reconstruction
from divulge.core.errors import InvalidInput, UnsupportedModel, WrongShape
from divulge.reconstruction.known_start.layers import changed_layer

Digits = Callable[[int, int], tuple[Tensor, Tensor]]
Train = Callable[..., nn.Module]


class Tied(nn.Module):
    """Two layers with the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)
        self.second.weight = self.first.weight

    def forward(self, X: Tensor) -> Tensor:
        answer: Tensor = self.head(torch.relu(self.second(torch.relu(self.first(X)))))
        return answer


class Tokens(nn.Module):
    """A layer that sees each of eight rows of a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Linear(8, 32), nn.Linear(256, 10)

    def forward(self, X: Tensor) -> Tensor:
        answer: Tensor = self.head(torch.relu(self.embedding(X.reshape(len(X), 8, 8))).flatten(1))
        return answer


def plain() -> nn.Module:
    return models.initialise(nn.Sequential(nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 10)), seed=0)


@pytest.mark.parametrize(("kind", "said"), [(Tied, "used 2 times"), (Tokens, "8 vectors of each input")])
def test_weights_that_see_an_input_more_than_once_are_refused(
    kind: type[nn.Module], said: str, few_digits: Digits, descended: Train
) -> None:
    X, y = few_digits(8, 1)
    start = models.initialise(kind(), seed=0)
    with pytest.raises(UnsupportedModel, match=said):
        reconstruction.from_weights(descended(start, X, y, steps=5), start=start, shape=(8, 8))


def test_biases_alone_hold_no_inputs(few_digits: Digits, descended: Train) -> None:
    X, y = few_digits(8, 1)
    start = plain()
    with pytest.raises(InvalidInput, match="only biases"):
        reconstruction.from_weights(descended(start, X, y, wanted=lambda name: "bias" in name), start=start)


def test_what_runs_before_the_layer_is_told_by_running_it(few_digits: Digits, descended: Train) -> None:
    X, y = few_digits(8, 1)

    class HeadFirst(nn.Module):
        """The head is registered before the layers in front of it."""

        def __init__(self) -> None:
            super().__init__()
            self.head, self.front, self.middle = nn.Linear(80, 10), nn.Linear(64, 90), nn.Linear(90, 80)

        def forward(self, X: Tensor) -> Tensor:
            answer: Tensor = self.head(torch.relu(self.middle(torch.relu(self.front(X)))))
            return answer

    start = models.initialise(HeadFirst(), seed=0)
    model = descended(start, X, y, wanted=lambda name: not name.startswith("front"), steps=5)
    layer = changed_layer(model, start, None)
    assert layer.name == "middle"
    assert layer.frozen  # the head was trained, but it runs behind


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.LayerNorm])
def test_inputs_behind_a_normalisation_can_be_scored(
    norm: Callable[[int], nn.Module], few_digits: Digits, descended: Train
) -> None:
    X, y = few_digits(16, 1)
    start = models.initialise(nn.Sequential(norm(64), nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 10)), seed=0)
    found = reconstruction.from_weights(descended(start, X, y), start=start)
    assert found.shape == (1, 8, 8)
    assert len(found.match(X).correlation) == 16


@pytest.mark.parametrize("shape", [(3, 5, 5), (2, 2, 2, 8), (0, 64)])
def test_a_shape_of_other_inputs_is_refused(shape: tuple[int, ...], few_digits: Digits, descended: Train) -> None:
    X, y = few_digits(8, 1)
    start = plain()
    with pytest.raises(WrongShape, match="shape"):
        reconstruction.from_weights(descended(start, X, y, steps=5), start=start, shape=shape)

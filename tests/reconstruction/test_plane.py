"""In the plane, training points are where kinks meet: all of a circle's, none of an untrained model's."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from divulge import reconstruction
from divulge.core.errors import AttackFailed, UnsupportedModel
from divulge.models import MLP
from divulge.models.weight_matrices import Network


def through(points: Tensor, per_point: int, seed: int, noise: float = 1e-4) -> torch.nn.Module:
    """A network whose units' kinks run through the points, in random directions, beside as many random lines."""
    generator = torch.Generator().manual_seed(seed)
    places = points.repeat(per_point, 1)
    stray = torch.randn(len(points), 2, generator=generator, dtype=torch.float64)
    places = torch.cat([places, stray])
    angle = math.pi * torch.rand(len(places), generator=generator, dtype=torch.float64)
    normal = torch.stack([angle.cos(), angle.sin()], dim=1)
    bias = -(normal * places).sum(dim=1) + noise * torch.randn(len(places), generator=generator, dtype=torch.float64)
    size = torch.rand(len(places), generator=generator, dtype=torch.float64) + 0.5
    outgoing = torch.randn(1, len(places), generator=generator, dtype=torch.float64)
    return Network((normal * size[:, None], outgoing), (bias * size, None)).module()


@pytest.mark.parametrize("seed", range(3))
def test_points_are_found_where_kinks_meet_and_nowhere_else(seed: int) -> None:
    generator = torch.Generator().manual_seed(10 + seed)
    points = torch.randn(8, 2, generator=generator, dtype=torch.float64)
    model = through(points, per_point=9, seed=seed)
    found = reconstruction.from_weights(model, method="kinks")
    distance = torch.cdist(points, found.samples)
    assert int((distance.amin(dim=1) < 0.01).sum()) == 8
    assert len(found.samples) <= 9
    assert found.votes is not None
    assert bool((found.votes.diff() <= 0).all())
    with torch.no_grad():
        assert torch.equal(found.labels, (model(found.samples)[:, 0] > 0).long())
    assert bool((found.multipliers >= 0).all())


def test_random_kinks_meet_nowhere() -> None:
    torch.manual_seed(0)
    with pytest.raises(AttackFailed, match="looks untrained"):
        reconstruction.from_weights(MLP([2, 60, 1]).double(), method="kinks")


def test_several_classes_are_labelled() -> None:
    points = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)
    first = through(points, per_point=9, seed=4)
    weights = next(layer for layer in first if isinstance(layer, torch.nn.Linear))
    outgoing = torch.randn(3, len(weights.weight), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model = Network((weights.weight.detach(), outgoing), (weights.bias.detach(), None)).module()
    found = reconstruction.from_weights(model, method="kinks")
    with torch.no_grad():
        assert torch.equal(found.labels, model(found.samples).argmax(dim=1))


def test_says_what_it_needs() -> None:
    with pytest.raises(UnsupportedModel, match="takes 3 inputs"):
        reconstruction.from_weights(MLP([3, 5, 1]), method="kinks")
    with pytest.raises(UnsupportedModel, match="without a bias"):
        reconstruction.from_weights(MLP([2, 5, 1], bias="none"), method="kinks")

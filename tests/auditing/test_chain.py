"""The weights that a copy stands for: from labels they come back up to one factor."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import divulge
from divulge.auditing.chain import weights_of_copy
from divulge.core.errors import AttackFailed
from divulge.models import MLP


def _homogeneous(seed: int) -> MLP:
    """A network of 12-5-1 without an output bias, balanced, as gradient flow from a small start leaves it."""
    generator = torch.Generator().manual_seed(seed)
    model = MLP([12, 5, 1], bias="first").double().requires_grad_(False)
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0], dtype=torch.float64)
    model[0].weight.copy_(torch.randn(5, 12, generator=generator, dtype=torch.float64))
    model[0].bias.copy_(0.3 * torch.randn(5, generator=generator, dtype=torch.float64))
    size = (model[0].weight.square().sum(dim=1) + model[0].bias.square()).sqrt()
    model[2].weight.copy_((signs * size)[None])
    return model


@pytest.mark.parametrize("seed", range(4))
def test_weights_come_back_from_labels_up_to_one_factor(seed: int) -> None:
    model = _homogeneous(seed)
    stolen = divulge.extraction.from_labels(divulge.oracle(model, access="label"), seed=seed, checks=300)
    copy = weights_of_copy(stolen)
    true, found = model[0].weight, next(layer for layer in copy if isinstance(layer, nn.Linear)).weight.detach()
    cosine = nn.functional.normalize(found, dim=1) @ nn.functional.normalize(true, dim=1).T
    assert torch.allclose(cosine.max(dim=1).values, torch.ones(5, dtype=torch.float64), atol=1e-9)
    ratio = found.norm(dim=1) / true[cosine.argmax(dim=1)].norm(dim=1)
    assert float(ratio.max() / ratio.min()) < 1 + 1e-6


def test_a_copy_from_labels_that_disagrees_is_refused() -> None:
    target = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    stolen = divulge.extraction.from_labels(divulge.oracle(target, access="label"), checks=100)
    with pytest.raises(AttackFailed, match="not"):
        weights_of_copy(stolen)

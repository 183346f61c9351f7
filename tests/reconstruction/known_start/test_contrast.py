"""Separation by sharp differences."""

from __future__ import annotations

import math

import torch

from divulge.reconstruction.ica import opponent_differences
from divulge.reconstruction.known_start.contrast import _around, _score, components, sharpness


def test_sparse_sources_are_unmixed_and_the_sharpest_come_first() -> None:
    draw = torch.Generator().manual_seed(0)
    sources = torch.randn(6, 2, 400, generator=draw, dtype=torch.float64)
    share = torch.tensor([0.1, 0.15, 0.2, 0.25, 0.3, 0.35])[:, None, None]
    sources = sources * (torch.rand(6, 1, 400, generator=draw) < share)
    mixed = torch.einsum("ij,jfp->ifp", torch.randn(6, 6, generator=draw, dtype=torch.float64), sources)
    mixed = mixed[:, None, :, None]
    found = torch.einsum("ij,jgfhw->igfhw", components(mixed, draw, math.inf), mixed)
    likeness = torch.corrcoef(torch.cat([found.flatten(1), sources.flatten(1)]))[:6, 6:].abs()
    assert float(likeness.max(dim=1).values.min()) > 0.99
    assert likeness.argmax(dim=1).tolist() == [0, 1, 2, 3, 4, 5]
    levels = sharpness(found)
    assert bool((levels[1:] >= levels[:-1]).all())


def test_differences_of_grey_pictures_are_in_the_brightness_alone() -> None:
    grey = torch.rand(2, 1, 5, 6, generator=torch.Generator().manual_seed(0)).expand(-1, 3, -1, -1)
    steps = opponent_differences(grey.flatten(1), (3, 5, 6))
    assert steps.shape == (2, 3, 2, 4, 5)
    assert float(steps[:, 1:].abs().max()) < 1e-6
    assert float(steps[:, 0].abs().min(dim=-1).values.max()) > 0
    assert opponent_differences(grey[:, 0].flatten(1), (5, 6)).shape == (2, 1, 2, 4, 5)


def test_the_score_is_the_derivative_of_the_contrast() -> None:
    draw = torch.Generator().manual_seed(0)
    groups = torch.randn(2, 3, 2, 6, 7, generator=draw, dtype=torch.float64, requires_grad=True)
    size = groups.detach().square().mean(dim=(2, 3, 4))
    energy = _around(groups.square().mean(dim=2) / size[..., None, None])
    ((energy + 0.01) ** 0.25).sum().backward()
    score = _score(groups.detach(), 0.25, 0.01)[0].reshape(groups.shape)
    assert groups.grad is not None
    assert torch.allclose(groups.grad, 2 * 0.25 / 2 * score)

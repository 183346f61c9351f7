"""Separation by sharp differences."""

from __future__ import annotations

import math

import torch

from divulge.reconstruction.known_start.contrast import components, sharpness


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

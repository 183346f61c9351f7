"""Pictures in the span: the directions with the sharpest differences between neighbouring pixels.

The span is exact and holds a bias coordinate, which is 1 for every input, so that sign and brightness follow. Sharp
contrasts need many pixels; with few of them, or where one kind of contrast leaves pictures mixed, the smoother one of
``reconstruction.ica`` is tried.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from divulge.reconstruction import ica
from divulge.reconstruction.known_start import contrast
from divulge.reconstruction.known_start.difference import Span

FEW_PIXELS = 200
"""Pixels up to which the smoother contrast is tried first."""
MOST_SMOOTH = 60
"""Directions up to which the smoother contrast, which takes the fourth power of their number, is tried at all."""
SPARSITY, SWEEPS = 0.5, 20


def separate(
    span: Span, shape: tuple[int, ...], *, seed: int, attempt: int = 0, within: Tensor | None = None,
    end: float = math.inf,
) -> Tensor:  # fmt: skip
    """Coordinates c [k, r] of the pictures that the span mixes, or that its part ``within`` [k, r] mixes."""
    basis = torch.eye(span.rank).to(span.V) if within is None else within
    images = (basis @ span.V)[:, : span.input_dim]
    generator = torch.Generator().manual_seed(seed + attempt)
    smooth = (attempt % 2 == 1) != (math.prod(shape[-2:]) <= FEW_PIXELS)
    if smooth and len(basis) <= MOST_SMOOTH:
        mixing = ica.components(ica.differences(images, shape), SPARSITY, SWEEPS, generator, end)
    else:
        mixing = contrast.components(ica.opponent_differences(images, shape), generator, end)
    return (mixing @ basis) / span.S

"""Pictures in the span: the directions with the sparsest differences between neighbouring pixels.

The separation is that of ``reconstruction.ica``. Here the span is exact and holds a bias coordinate, which is 1 for
every input, so that sign and brightness follow.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from divulge.reconstruction.ica import components, differences
from divulge.reconstruction.known_start.difference import Span

SPARSITY = 0.5
SWEEPS = 20


def separate(
    span: Span, shape: tuple[int, ...], *, seed: int, within: Tensor | None = None, sweeps: int = SWEEPS,
    end: float = math.inf,
) -> Tensor:  # fmt: skip
    """Coordinates c [k, r] of the pictures that the span mixes, or that its part ``within`` [k, r] mixes."""
    basis = torch.eye(span.rank).to(span.V) if within is None else within
    pixels = (basis @ span.V)[:, : span.input_dim]
    mixing = components(differences(pixels, shape), SPARSITY, sweeps, torch.Generator().manual_seed(seed), end)
    return (mixing @ basis) / span.S

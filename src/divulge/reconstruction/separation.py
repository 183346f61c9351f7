"""Pictures out of their own mixtures: where the search for training pictures starts.

The row space holds every training picture, mixed with all others. Differences between neighbouring pixels are mostly
near zero in a picture and much less so in a mixture of pictures, so the directions in which they are sparsest are
single pictures: blind source separation, here by independent component analysis (Hyvarinen's fixed point with tanh). It
needs no equation, takes about a second for 50 pictures, and leaves sign and size open, which the equation settles.
"""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor

from divulge.reconstruction.subspace import RowSpace

ITERATIONS = 100
LEAST, ENOUGH = 500, 8
"""Differences in all, and for each direction of the row space, below which their statistics say too little."""
REACH = 0.8
"""Share of the range of values that a picture's values cover, but for the outermost hundredth."""


def differences(pictures: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Differences between neighbours along rows and columns, [k, N], of pictures [k, d]."""
    P = pictures.reshape(len(pictures), *shape)
    return torch.cat([(P[..., 1:] - P[..., :-1]).flatten(1), (P[..., 1:, :] - P[..., :-1, :]).flatten(1)], dim=1)


def separable(space: RowSpace, shape: tuple[int, ...] | None) -> bool:
    """Whether these are pictures with enough pixels for what the row space mixes."""
    if shape is None or space.rank < 2:
        return False
    height, width = shape[-2:]
    pixels = space.V.shape[1] - space.has_bias
    return pixels * (2 - 1 / height - 1 / width) >= max(LEAST, ENOUGH * space.rank)


def separated(
    space: RowSpace, shape: tuple[int, ...], span: float, *, seed: int, end: float = math.inf
) -> Tensor:  # fmt: skip
    """Coordinates [2 r, ...] of the pictures that the row space mixes: each in both signs, the likelier signs first,
    at the size of pictures whose values range over ``span``. Goes on no longer than ``time.perf_counter() < end``."""
    basis = space.inputs(torch.eye(space.rank).to(space.V))
    mixing = _independent(differences(basis, shape), torch.Generator().manual_seed(seed), end)
    if space.has_bias:  # the bias coordinate of an input is 1, so above 0
        mixing = mixing * torch.where(mixing @ space.V[:, -1] < 0, -1.0, 1.0).to(mixing)[:, None]
    pictures = mixing @ basis
    low, high = torch.quantile(pictures, torch.tensor([0.01, 0.99]).to(pictures), dim=1)
    mixing = mixing * (REACH * span / (high - low).clamp_min(1e-30))[:, None]
    coordinates: Tensor = mixing @ space.basis
    return torch.cat([coordinates, -coordinates])


def _independent(mixed: Tensor, generator: torch.Generator, end: float) -> Tensor:
    """Rows w [r, r] such that the components w mixed [N] are as independent as can be, from a random start."""
    rank, count = mixed.shape
    values, vectors = torch.linalg.eigh(mixed @ mixed.T / count)
    whitening = vectors.T / values.clamp_min(1e-12 * float(values[-1])).sqrt()[:, None]
    white = (whitening @ mixed).float()
    W = torch.randn(rank, rank, generator=generator, dtype=torch.float64).float().to(white)
    W = _orthogonal(W)
    for _ in range(ITERATIONS):
        squashed = torch.tanh(W @ white)
        new = _orthogonal(squashed @ white.T / count - (1 - squashed.square().mean(dim=1, keepdim=True)) * W)
        moved = float((1 - (new * W).sum(dim=1).abs()).max())
        W = new
        if moved < 1e-5 or time.perf_counter() > end:
            break
    rows: Tensor = W.to(mixed) @ whitening
    return rows


def _orthogonal(W: Tensor) -> Tensor:
    """The orthogonal matrix nearest to W."""
    values, vectors = torch.linalg.eigh((W @ W.T).double())
    nearest: Tensor = ((vectors / values.clamp_min(1e-30).sqrt()) @ vectors.T).to(W) @ W
    return nearest

"""Pictures out of their own mixtures: where the search for training pictures starts.

The row space holds every training picture, mixed with all others. Differences between neighbouring pixels are mostly
near zero in a picture and much less so in a mixture of pictures, so the directions in which they are sparsest are
single pictures: blind source separation. Independent component analysis (Hyvarinen's fixed point with tanh) begins;
maximum likelihood goes on, where all differences at a place, along rows and columns and in all colours, are large
together or small together (Ono's updates for such groups). It needs no equation, takes about a second for 50 pictures,
and leaves sign and size open, which the equation settles.
"""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor

from divulge.reconstruction.subspace import RowSpace

ITERATIONS, SWEEPS = 100, 20
SPARSITY = (0.25, 0.5)
"""The log likelihood of a place is minus its energy to such a power; odd seeds take the second one."""
QUIET = 1e-3
"""Energy, as a share of the mean, below which places are alike."""
SILENT = 1e-8
"""Variance of differences, as a share of the largest, below which a direction of the row space shows no picture: one
does not where pictures are centred and there is no noise. It takes part as a constant."""
LEAST = 500
"""Differences below which their statistics say too little."""
RELIABLE = (24, 9)
"""Places for each direction: where the row space has more directions than the second allows, a search among all finds
combinations that look more like pictures than the pictures do, so restarts take the strongest only, from as many as the
first allows to as many as the second does."""
FEW = 30
"""Directions below which likelihood misleads: of few centred pictures each holds a good part of all others."""
REACH = 0.8
"""Share of the range of values that a picture's values cover, but for the outermost hundredth."""


def differences(pictures: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Differences to the neighbours to the right and below, [k, f, places], of pictures [k, d]."""
    P = pictures.reshape(len(pictures), -1, *shape[-2:])
    here = P[..., :-1, :-1]
    return torch.cat([P[..., :-1, 1:] - here, P[..., 1:, :-1] - here], dim=1).flatten(2)


def separable(space: RowSpace, shape: tuple[int, ...] | None) -> bool:
    """Whether these are pictures, mixed, and of enough pixels."""
    if shape is None or space.rank < 2:
        return False
    height, width = shape[-2:]
    pixels = space.V.shape[1] - space.has_bias
    return pixels * (2 - 1 / height - 1 / width) >= LEAST


def directions(space: RowSpace, shape: tuple[int, ...], restarts: int) -> list[int]:
    """How many of the strongest directions of the row space each restart separates."""
    height, width = shape[-2:]
    fewest, most = ((height - 1) * (width - 1) // share for share in RELIABLE)
    if space.rank <= most:
        return [space.rank] * restarts
    steps = max(restarts - 1, 1)
    return [round(fewest * (most / fewest) ** (number / steps)) for number in range(restarts)]


def by_likelihood(space: RowSpace, restart: int) -> bool:
    """Whether a restart's pictures are separated by likelihood: always, or of few pictures in every other pair, since
    the two of a pair differ in sparsity."""
    return space.rank >= FEW or restart % 4 < 2


def separated(
    space: RowSpace, shape: tuple[int, ...], span: float, *, seed: int, strongest: int | None = None,
    likelihood: bool = True, end: float = math.inf,
) -> Tensor:  # fmt: skip
    """Coordinates [2 k, ...] of the pictures that the ``strongest`` k directions of the row space mix (all, by
    default): each in both signs, the likelier signs first, at the size of pictures whose values range over ``span``.
    Without ``likelihood`` they stay as independent component analysis has them. Goes on no longer than
    ``time.perf_counter() < end``."""
    basis = space.inputs(torch.eye(space.rank).to(space.V))[:strongest]
    sparsity = SPARSITY[seed % len(SPARSITY)]
    sweeps = SWEEPS if likelihood else 0
    mixing = _components(differences(basis, shape), sparsity, sweeps, torch.Generator().manual_seed(seed), end)
    if space.has_bias:  # the bias coordinate of an input is 1, so above 0
        mixing = mixing * torch.where(mixing @ space.V[: len(basis), -1] < 0, -1.0, 1.0).to(mixing)[:, None]
    pictures = mixing @ basis
    low, high = torch.quantile(pictures, torch.tensor([0.01, 0.99]).to(pictures), dim=1)
    mixing = mixing * (REACH * span / (high - low).clamp_min(1e-30))[:, None]
    coordinates: Tensor = mixing @ space.basis[: len(basis)]
    return torch.cat([coordinates, -coordinates])


def _components(mixed: Tensor, sparsity: float, sweeps: int, generator: torch.Generator, end: float) -> Tensor:
    """Rows w [r, r] whose components of ``mixed`` [r, f, places] are as independent as can be, from a random start."""
    flat = mixed.flatten(1)
    values, vectors = torch.linalg.eigh(flat @ flat.T / flat.shape[1])
    silent = values < SILENT * values[-1]
    whitening = vectors.T / values.masked_fill(silent, math.inf).sqrt()[:, None]
    white = (whitening @ flat).float()
    W = _independent(white, generator, end)
    for _ in range(sweeps):
        before = W
        W = _sweep(W, white, silent.to(white), mixed.shape[1], sparsity, end)
        if time.perf_counter() > end or float((1 - _cosines(W, before)).max()) < 1e-5:
            break
    rows: Tensor = W.to(mixed) @ whitening
    return rows


def _cosines(A: Tensor, B: Tensor) -> Tensor:
    return torch.nn.functional.cosine_similarity(A, B, dim=1).abs()


def _independent(white: Tensor, generator: torch.Generator, end: float) -> Tensor:
    """An orthogonal W [r, r] whose components of ``white`` [r, N] are sparse, each by itself."""
    rank, count = white.shape
    W = _orthogonal(torch.randn(rank, rank, generator=generator, dtype=torch.float64).to(white))
    for _ in range(ITERATIONS):
        squashed = torch.tanh(W @ white)
        new = _orthogonal(squashed @ white.T / count - (1 - squashed.square().mean(dim=1, keepdim=True)) * W)
        moved = float((1 - _cosines(new, W)).max())
        W = new
        if moved < 1e-5 or time.perf_counter() > end:
            break
    return W


def _sweep(W: Tensor, white: Tensor, silent: Tensor, features: int, sparsity: float, end: float) -> Tensor:
    """One round of Ono's iterative projection: each component is made uncorrelated with the others where it is weak.

    A place's weight falls with its energy in the component, so that what little there is in quiet places counts.
    """
    W = W.clone()
    unit = torch.eye(len(W)).to(W)
    for i in range(len(W)):
        energy = (W[i] @ white).reshape(features, -1).square().mean(dim=0)
        weight = (energy / energy.mean().clamp_min(1e-30) + QUIET) ** (sparsity - 1)
        weighted = (white * weight.repeat(features)) @ white.T / (weight.sum() * features) + silent.diag()
        w, failed = torch.linalg.solve_ex(W @ weighted, unit[i])
        w = w / (w @ weighted @ w).sqrt()
        if not failed and bool(torch.isfinite(w).all()):
            W[i] = w
        if time.perf_counter() > end:
            break
    return W


def _orthogonal(W: Tensor) -> Tensor:
    """The orthogonal matrix nearest to W."""
    values, vectors = torch.linalg.eigh((W @ W.T).double())
    nearest: Tensor = ((vectors / values.clamp_min(1e-9 * float(values[-1])).sqrt()) @ vectors.T).to(W) @ W
    return nearest

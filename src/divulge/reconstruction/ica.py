"""Blind source separation of images in the row space, as a start for the KKT solver.

The row space holds mixtures of the training images. Differences between neighbouring pixels are sparse in an image and
less sparse in a mixture. So the directions with the sparsest differences are single images. Differences are those of
brightness and of two opponent colours, at one size: colours change at fewer places than brightness does. Of few images
they are those of the colours as they are. Independent component analysis finds the directions (the FastICA fixed point
of Hyvarinen 1999 with tanh). Maximum likelihood then refines them with groups: the differences at one pixel, along rows
and columns and in all colours, are large or small together (the updates of Ono 2011). This takes about a second for 50
images. Sign and brightness stay open; the KKT solver decides them.

The fixed point is our own because scikit-learn's FastICA cannot stop at a time: called for ten iterations at a time it
separates as many images (49 of 50), in 1.2 to 2 times the time and in as many lines.
"""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor

from divulge.reconstruction.row_space import RowSpace

OPPONENT = ((1.0, 1.0, 1.0), (1.0, 0.0, -1.0), (-0.5, 1.0, -0.5))
"""Brightness, red against blue, and green against both."""
ITERATIONS, SWEEPS = 100, 20
SPARSITY = (0.25, 0.5)
"""Exponents p of the log likelihood -energy^p of a pixel's differences. Odd seeds take the second."""
FLOOR = 1e-3
"""Energy, as a share of the mean, that is added to every pixel's energy."""
NO_VARIANCE = 1e-8
"""Variance of differences, as a share of the largest, below which a direction of the row space holds no image. There is
one such direction where images are centred and there is no noise."""
LEAST_DIFFERENCES = 500
"""Differences below which their statistics are too uncertain."""
PIXELS_PER_DIRECTION = {"grey": (24, 9), "coloured": (16, 5)}
"""Pixels for each direction, at most and at least. With fewer pixels than the second, separation finds combinations
with sparser differences than the images. Then restarts separate the strongest directions only: the first restart as
many as the first number allows, the last as many as the second."""
FEW_IMAGES = 30
"""Directions below which likelihood and colours mislead, because each of few centred images contains part of all
others."""
COVERAGE = 0.8
"""Share of the value range that an image covers, without its outermost hundredth of values."""


def differences(images: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Differences to the neighbours on the right and below, [k, f, pixels], of images [k, d]."""
    P = images.reshape(len(images), -1, *shape[-2:])
    here = P[..., :-1, :-1]
    return torch.cat([P[..., :-1, 1:] - here, P[..., 1:, :-1] - here], dim=1).flatten(2)


def opponent_differences(images: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Differences of brightness and two opponent colours, [k, g, f, height, width], of images [k, d].

    These are the groups g where there are three colours; otherwise there is one group of everything.
    """
    P = images.reshape(len(images), -1, *shape[-2:])
    coloured = P.shape[1] == len(OPPONENT)
    if coloured:
        P = torch.einsum("oc,kchw->kohw", torch.tensor(OPPONENT).to(P), P)
    here = P[..., :-1, :-1]
    steps = torch.stack([P[..., :-1, 1:] - here, P[..., 1:, :-1] - here], dim=2)
    return steps if coloured else steps.flatten(1, 2)[:, None]


def separable(space: RowSpace, shape: tuple[int, ...] | None) -> bool:
    """Whether the row space mixes images of enough pixels."""
    if shape is None or space.rank < 2:
        return False
    height, width = shape[-2:]
    pixels = space.V.shape[1] - space.has_bias
    return pixels * (2 - 1 / height - 1 / width) >= LEAST_DIFFERENCES


def directions_per_restart(space: RowSpace, shape: tuple[int, ...], restarts: int) -> list[int]:
    """How many of the strongest directions of the row space each restart separates."""
    height, width = shape[-2:]
    pixels = PIXELS_PER_DIRECTION["coloured" if shape[:-2] == (len(OPPONENT),) else "grey"]
    fewest, most = ((height - 1) * (width - 1) // share for share in pixels)
    if space.rank <= most:
        return [space.rank] * restarts
    steps = max(restarts - 1, 1)
    return [round(fewest * (most / fewest) ** (number / steps)) for number in range(restarts)]


def uses_likelihood(space: RowSpace, restart: int) -> bool:
    """Whether a restart separates by likelihood: always, or in every other pair of restarts for few images.

    The two restarts of a pair differ in sparsity.
    """
    return space.rank >= FEW_IMAGES or restart % 4 < 2


def separate(
    space: RowSpace, shape: tuple[int, ...], span: float, *, seed: int, strongest: int | None = None,
    likelihood: bool = True, end: float = math.inf,
) -> Tensor:  # fmt: skip
    """Coordinates [2 k, ...] of the images that the ``strongest`` k directions of the row space mix (default: all).

    Each image comes in both signs, the likelier signs first, scaled to a value range of width ``span``. Without
    ``likelihood`` the result is that of independent component analysis. Stops when ``time.perf_counter()`` reaches
    ``end``.
    """
    basis = space.inputs(torch.eye(space.rank).to(space.V))[:strongest]
    sparsity = SPARSITY[seed % len(SPARSITY)]
    sweeps = SWEEPS if likelihood else 0
    steps = _even_differences(basis, shape) if space.rank >= FEW_IMAGES else differences(basis, shape)
    mixing = components(steps, sparsity, sweeps, torch.Generator().manual_seed(seed), end)
    if space.has_bias:  # the bias coordinate of an input is 1, so positive
        mixing = mixing * torch.where(mixing @ space.V[: len(basis), -1] < 0, -1.0, 1.0).to(mixing)[:, None]
    images = mixing @ basis
    low, high = torch.quantile(images, torch.tensor([0.01, 0.99]).to(images), dim=1)
    mixing = mixing * (COVERAGE * span / (high - low).clamp_min(1e-30))[:, None]
    coordinates: Tensor = mixing @ space.basis[: len(basis)]
    return torch.cat([coordinates, -coordinates])


def _even_differences(basis: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Differences [k, f, pixels] of brightness and opponent colours, each of the same size."""
    steps = opponent_differences(basis, shape)
    size = steps.square().mean(dim=(0, 2, 3, 4), keepdim=True).sqrt().clamp_min(1e-30)
    return (steps / size).flatten(3).flatten(1, 2)


def components(mixed: Tensor, sparsity: float, sweeps: int, generator: torch.Generator, end: float) -> Tensor:
    """Rows w [r, r] that unmix ``mixed`` [r, f, pixels] into independent components, from a random start."""
    flat = mixed.flatten(1)
    values, vectors = torch.linalg.eigh(flat @ flat.T / flat.shape[1])
    constant = values < NO_VARIANCE * values[-1]
    whitening = vectors.T / values.masked_fill(constant, math.inf).sqrt()[:, None]
    white = (whitening @ flat).float()
    W = _fast_ica(white, generator, end)
    for _ in range(sweeps):
        before = W
        W = _sweep(W, white, constant.to(white), mixed.shape[1], sparsity, end)
        if time.perf_counter() > end or float((1 - _cosines(W, before)).max()) < 1e-5:
            break
    rows: Tensor = W.to(mixed) @ whitening
    return rows


def _cosines(A: Tensor, B: Tensor) -> Tensor:
    return torch.nn.functional.cosine_similarity(A, B, dim=1).abs()


def _fast_ica(white: Tensor, generator: torch.Generator, end: float) -> Tensor:
    """FastICA: an orthogonal W [r, r] whose components of ``white`` [r, N] are sparse."""
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


def _sweep(W: Tensor, white: Tensor, constant: Tensor, features: int, sparsity: float, end: float) -> Tensor:
    """One round of Ono's iterative projection: each component is decorrelated from the others where it is weak.

    The weight of a pixel falls with its energy in the component.
    """
    W = W.clone()
    unit = torch.eye(len(W)).to(W)
    for i in range(len(W)):
        energy = (W[i] @ white).reshape(features, -1).square().mean(dim=0)
        weight = (energy / energy.mean().clamp_min(1e-30) + FLOOR) ** (sparsity - 1)
        weighted = (white * weight.repeat(features)) @ white.T / (weight.sum() * features) + constant.diag()
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

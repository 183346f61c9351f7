"""Separation of inputs in an exact span by the sharpest differences.

Differences between neighbouring pixels are zero or nearly so at most places of a picture, and at fewer places of a
mixture. So inputs are the directions for which the mean logarithm of the differences' energy is smallest. The energy of
a pixel is taken over its directions and colours together. The search begins orthogonal, by the fixed point for
subspaces of Hyvarinen and Koster 2006, which is smooth enough to start from random directions. It ends without that
constraint, by the quasi-Newton steps of Ablin et al. 2018 with ever sharper contrasts, because the differences of real
inputs are only nearly uncorrelated.

``reconstruction.ica`` separates noisy row spaces, where so sharp a contrast sees the noise first.
"""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor

from divulge.core import progress

FIXED_POINT = (0.25, 0.01)
"""Exponent of the energy, and the energy added to it as a share of its mean, of the orthogonal search."""
SHARPER = ((0.25, 0.01), (0.1, 0.003), (0.01, 0.003))
"""The same, of the free search, one after the other."""
ITERATIONS, FREE = 400, 40
PATIENCE, PROGRESS = 20, 2e-4
"""The orthogonal search ends when the contrast has fallen by less than this share in so many iterations."""
STEP, LARGEST, CURVATURE = 0.5, 0.05, 0.3
"""Damping of a quasi-Newton step, its largest entry, and the least eigenvalue of its Hessian's blocks."""
NO_VARIANCE = 1e-10
"""Variance of differences, as a share of the largest, below which a direction of the span holds no differences."""


def components(mixed: Tensor, generator: torch.Generator, end: float, start: Tensor | None = None) -> Tensor:
    """Rows w [k, r] that unmix ``mixed`` [r, f, pixels] into inputs, the sharpest first.

    Parameters
    ----------
    mixed : Tensor
        The differences of a basis of the span, f of them at each pixel.
    generator : torch.Generator
        Draws the first directions.
    end : float
        The ``time.perf_counter()`` at which to stop.
    start : Tensor, optional
        Rows [m, r] from which to start; the other directions are random.
    """
    flat = mixed.flatten(1)
    values, vectors = torch.linalg.eigh(flat @ flat.T / flat.shape[1])
    live = values > NO_VARIANCE * values[-1]
    whitening = vectors.T[live] / values[live].sqrt()[:, None]
    white = (whitening @ flat).float()
    first = torch.randn(len(white), len(white), generator=generator, dtype=torch.float64)
    if start is not None and len(start):
        given = start @ torch.linalg.pinv(whitening)
        given = given / given.norm(dim=1, keepdim=True).clamp_min(1e-300)
        first[: len(given)] = given[: len(first)]
    W = _fixed_point(_orthogonal(first.to(white)), white, mixed.shape[1], end)
    for power, floor in SHARPER:
        W = _quasi_newton(W, white, mixed.shape[1], (power, floor), end)
    order = sharpness(W @ white, mixed.shape[1]).argsort()
    rows: Tensor = W[order].to(mixed) @ whitening
    return rows


def sharpness(Y: Tensor, features: int) -> Tensor:
    """The mean logarithm of the energy of components Y [m, f pixels], [m]: the lower the sharper."""
    energy = _energy(Y.reshape(len(Y), features, -1))
    result: Tensor = (energy + SHARPER[-1][1]).log().mean(dim=1)
    return result


def _energy(Y: Tensor) -> Tensor:
    """The energy of each pixel of components Y [m, f, pixels], as a share of the mean, [m, pixels]."""
    energy = Y.square().mean(dim=1)
    shares: Tensor = energy / energy.mean(dim=1, keepdim=True).clamp_min(1e-30)
    return shares


def _orthogonal(W: Tensor) -> Tensor:
    """The orthogonal matrix nearest to W."""
    values, vectors = torch.linalg.eigh((W @ W.T).double())
    nearest: Tensor = ((vectors / values.clamp_min(1e-9 * float(values[-1])).sqrt()) @ vectors.T).to(W) @ W
    return nearest


def _fixed_point(W: Tensor, white: Tensor, features: int, end: float) -> Tensor:
    """The orthogonal W whose components of ``white`` [r, f pixels] have the sharpest energies."""
    power, floor = FIXED_POINT
    rank, count = white.shape
    reached = math.inf
    for number in range(ITERATIONS):
        Y = (W @ white).reshape(rank, features, -1)
        energy = _energy(Y)
        weight = (energy + floor) ** (power - 1)
        bend = 2 * (power - 1) * weight * energy / (energy + floor) / features
        slope = (Y * weight[:, None]).flatten(1) @ white.T / count
        W = _orthogonal(slope - (weight + bend).mean(dim=1, keepdim=True) * W)
        if number % PATIENCE == PATIENCE - 1:
            contrast = float((weight * (energy + floor)).mean())
            progress.report("separating inputs", done=number, total=ITERATIONS)
            if contrast > (1 - PROGRESS) * reached or time.perf_counter() > end:
                break
            reached = contrast
    return W


def _quasi_newton(W: Tensor, white: Tensor, features: int, shape: tuple[float, float], end: float) -> Tensor:
    """Components that are no longer orthogonal, from W, of a likelihood with the exponent and floor in ``shape``."""
    power, floor = shape
    rank, count = white.shape
    for _ in range(FREE):
        Y = W @ white
        Y = Y / Y.square().mean(dim=1, keepdim=True).sqrt().clamp_min(1e-30)
        groups = Y.reshape(rank, features, -1)
        energy = _energy(groups)
        weight = (energy + floor) ** (power - 1)
        scale = (weight * energy).mean(dim=1)
        bend = 2 * (power - 1) * weight * energy / (energy + floor) / features
        score = (groups * weight[:, None]).flatten(1) / scale[:, None]
        slope = score @ Y.T / count - torch.eye(rank).to(Y)
        curvature = ((weight + bend).mean(dim=1) / scale)[:, None].expand(rank, rank)
        lowest = 0.5 * (curvature + curvature.T - ((curvature - curvature.T).square() + 4).sqrt())
        curvature = curvature + (CURVATURE - lowest).clamp_min(0)
        step = (curvature.T * slope - slope.T) / (curvature * curvature.T - 1)
        step = step.fill_diagonal_(0).clamp(-LARGEST, LARGEST)
        W = W - STEP * step @ W
        W = W / (W @ white).square().mean(dim=1, keepdim=True).sqrt().clamp_min(1e-30)
        if float(step.abs().max()) < 1e-3 or time.perf_counter() > end:
            break
    return W

"""Separation of inputs in an exact span by the sharpest differences.

Differences between neighbouring pixels are zero or nearly so at most places of a picture, and at fewer places of a
mixture. So inputs are the directions for which the mean logarithm of the differences' energy is smallest. Brightness
and the two opponent colours are taken for groups of their own (``opponent_differences``): colours change at fewer
places than brightness does, and with one scale for all three brightness would hide them. The search begins orthogonal,
by the fixed point for subspaces of Hyvarinen and Koster 2006, with the energy of all groups of a pixel together, which
is smooth enough to start from random directions. It ends without that constraint, by the quasi-Newton steps of Ablin et
al. 2018 with ever sharper contrasts, because the differences of real inputs are only nearly uncorrelated. There each
group has an energy of its own, averaged over the pixels around (the topographic contrast of Hyvarinen, Hoyer and Inki
2001).

``reconstruction.ica`` separates noisy row spaces, where so sharp a contrast sees the noise first.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from divulge.core import progress

FIXED_POINT = (0.25, 0.01)
"""Exponent of the energy, and the energy added to it as a share of its mean, of the orthogonal search."""
SHARPER = ((0.5, 0.01), (0.25, 0.01), (0.1, 0.003))
"""The same, of the free search, one after the other."""
ITERATIONS = 400
PATIENCE, PROGRESS = 20, 2e-4
"""The orthogonal search ends when the contrast has fallen by less than this share in so many iterations."""
STEP, LARGEST, CURVATURE = 0.5, 0.05, 0.3
"""Damping of a quasi-Newton step, its largest entry, and the least eigenvalue of its Hessian's blocks."""
FREE, SETTLED = (60, 200), (1e-4, 1e-5)
"""The most steps of the free search, and it ends when the log likelihood of a component grows by less than this in a
step: for few directions, and for many."""
MANY = 150
"""Directions from which on the second of both counts. Of 500 CIFAR-10 pictures it finds 93 instead of 64 (seed 903)."""
NO_VARIANCE = 1e-10
"""Variance of differences, as a share of the largest, below which a direction of the span holds no differences."""


@dataclass(frozen=True)
class _Whitened:
    """Uncorrelated mixtures of differences."""

    white: Tensor
    """[r, N], single precision."""
    whitening: Tensor
    """[r, k]: from the basis of the span."""
    shape: torch.Size
    """(groups, features, height, width), whose product is N."""

    def groups(self, Y: Tensor) -> Tensor:
        """Components Y [m, N] by group, feature and pixel."""
        return Y.reshape(len(Y), *self.shape)


def _whitened(mixed: Tensor) -> _Whitened:
    """The mixtures with unit covariance, all groups of the same size."""
    for _ in range(2):
        flat = mixed.flatten(1)
        values, vectors = torch.linalg.eigh(flat @ flat.T / flat.shape[1])
        live = values > NO_VARIANCE * values[-1]
        whitening = vectors.T[live] / values[live].sqrt()[:, None]
        white = (whitening @ flat).reshape(-1, *mixed.shape[1:])
        mixed = mixed / white.square().mean(dim=(0, 2, 3, 4), keepdim=True).sqrt().clamp_min(1e-30)
    return _Whitened(white.flatten(1).float(), whitening, mixed.shape[1:])


def components(mixed: Tensor, generator: torch.Generator, end: float) -> Tensor:
    """Rows w [k, r] that unmix ``mixed`` [r, g, f, height, width] into inputs, the sharpest first.

    Parameters
    ----------
    mixed : Tensor
        The differences of a basis of the span, f of them at each pixel in each of g groups.
    generator : torch.Generator
        Draws the first directions.
    end : float
        The ``time.perf_counter()`` at which to stop.
    """
    given = _whitened(mixed)
    first = torch.randn(len(given.white), len(given.white), generator=generator, dtype=torch.float64)
    W = _fixed_point(_orthogonal(first.to(given.white)), given, end)
    for power, floor in SHARPER:
        W = _quasi_newton(W, given, (power, floor), end)
    order = sharpness(given.groups(W @ given.white)).argsort()
    rows: Tensor = W[order].to(mixed) @ given.whitening
    return rows


def sharpness(Y: Tensor) -> Tensor:
    """The mean logarithm of the energy of components Y [m, g, f, height, width], [m]: the lower the sharper."""
    energy = _energy(Y)
    result: Tensor = (energy + SHARPER[-1][1]).log().mean(dim=(1, 2, 3))
    return result


def _energy(Y: Tensor) -> Tensor:
    """The energy around each pixel of components Y [m, g, f, height, width], as a share of the mean, [m, g, h, w]."""
    energy = Y.square().mean(dim=2)
    return _around(energy / energy.mean(dim=(2, 3), keepdim=True).clamp_min(1e-30))


def _around(maps: Tensor) -> Tensor:
    """The averages of maps [m, g, height, width] over each pixel and its neighbours."""
    return _sums(maps) / _sums(torch.ones_like(maps[:1]))


def _sums(maps: Tensor) -> Tensor:
    """The sums of maps [m, g, height, width] over each pixel and its neighbours; a single group stays as it is."""
    if maps.shape[1] == 1:
        return maps
    for dim in (2, 3):
        length = maps.shape[dim] - 1
        total = maps.clone()
        total.narrow(dim, 1, length).add_(maps.narrow(dim, 0, length))
        total.narrow(dim, 0, length).add_(maps.narrow(dim, 1, length))
        maps = total
    return maps


def _orthogonal(W: Tensor) -> Tensor:
    """The orthogonal matrix nearest to W."""
    values, vectors = torch.linalg.eigh((W @ W.T).double())
    nearest: Tensor = ((vectors / values.clamp_min(1e-9 * float(values[-1])).sqrt()) @ vectors.T).to(W) @ W
    return nearest


def _fixed_point(W: Tensor, given: _Whitened, end: float) -> Tensor:
    """The orthogonal W whose components have the sharpest energies, those of all groups together."""
    power, floor = FIXED_POINT
    rank, count = given.white.shape
    reached = math.inf
    together = given.shape[0] * given.shape[1]
    for number in range(ITERATIONS):
        Y = (W @ given.white).reshape(rank, together, -1)
        energy = Y.square().mean(dim=1)
        energy = energy / energy.mean(dim=1, keepdim=True).clamp_min(1e-30)
        weight = (energy + floor) ** (power - 1)
        bend = 2 * (power - 1) * weight * energy / (energy + floor) / together
        slope = (Y * weight[:, None]).flatten(1) @ given.white.T / count
        W = _orthogonal(slope - (weight + bend).mean(dim=1, keepdim=True) * W)
        if number % PATIENCE == PATIENCE - 1:
            contrast = float((weight * (energy + floor)).mean())
            progress.report("separating inputs", done=number, total=ITERATIONS)
            if contrast > (1 - PROGRESS) * reached or time.perf_counter() > end:
                break
            reached = contrast
    return W


def _score(groups: Tensor, power: float, floor: float) -> tuple[Tensor, Tensor, Tensor]:
    """Of components [m, g, f, h, w]: the derivative of the contrast [m, N], its mean slope and the energies [m, g].

    The slope leaves out how the energy of a pixel changes with its neighbours.
    """
    size = groups.square().mean(dim=(2, 3, 4))
    energy = _energy(groups)
    own = (energy + floor) ** (power - 1)
    averaged = _sums(torch.ones_like(own[:1]))
    weight = _sums(own / averaged) / size[..., None, None].clamp_min(1e-30)
    bend = 2 * (power - 1) * own * energy / (energy + floor) / (groups.shape[2] * averaged)
    slope = (weight + bend / size[..., None, None].clamp_min(1e-30)).mean(dim=(2, 3)) / groups.shape[1]
    return (groups * weight[:, :, None]).flatten(1), slope, size


def _objective(W: Tensor, energy: Tensor, size: Tensor, power: float, floor: float) -> float:
    """The negative log likelihood of components W [r, r], by their energies [m, g, h, w] and sizes [m, g]."""
    contrast = ((energy + floor) ** power).mean(dim=(1, 2, 3)).log() / (2 * power)
    return float((contrast + 0.5 * size.clamp_min(1e-30).log().mean(dim=1)).sum() - torch.linalg.slogdet(W)[1])


def _newton_step(Y: Tensor, given: _Whitened, shape: tuple[float, float]) -> Tensor:
    """The relative step [r, r] from components Y [r, N], with the Hessian of independent components."""
    score, bend, size = _score(given.groups(Y), *shape)
    scale = (score * Y).mean(dim=1, keepdim=True).clamp_min(1e-30)
    slope = (score / scale) @ Y.T / Y.shape[1] - torch.eye(len(Y)).to(Y)
    curvature = (bend / scale) @ size.T
    lowest = 0.5 * (curvature + curvature.T - ((curvature - curvature.T).square() + 4).sqrt())
    curvature = curvature + (CURVATURE - lowest).clamp_min(0)
    step = (curvature.T * slope - slope.T) / (curvature * curvature.T - 1)
    return step.fill_diagonal_(0).clamp(-LARGEST, LARGEST)


def _quasi_newton(W: Tensor, given: _Whitened, shape: tuple[float, float], end: float) -> Tensor:
    """Components that are no longer orthogonal, from W, of a likelihood with the exponent and floor in ``shape``.

    A step that makes the likelihood smaller is taken back, and a shorter one is made.
    """
    reached, pace, many = math.inf, STEP, len(W) >= MANY
    held, step = W, torch.zeros_like(W)
    for _ in range(FREE[many]):
        W = held - pace * step @ held
        Y = W @ given.white
        length = Y.square().mean(dim=1, keepdim=True).sqrt().clamp_min(1e-30)
        W, Y = W / length, Y / length
        groups = given.groups(Y)
        value = _objective(W, _energy(groups), groups.square().mean(dim=(2, 3, 4)), *shape)
        if value > reached:
            pace *= 0.5
            continue
        settled = reached - value < SETTLED[many] * len(W)
        held, reached, pace = W, value, min(STEP, 1.2 * pace)
        step = _newton_step(Y, given, shape)
        if settled or time.perf_counter() > end:
            break
    return held

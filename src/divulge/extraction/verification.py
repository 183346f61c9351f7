"""What `exact` rests on: fresh points where the copy must answer as the target does, and how much they can have seen.

Neurons that cancel outside a slab (a tent: +1, -2, +1 on three parallel hyperplanes) are invisible to every point
outside it, so no number of points proves a copy right. What can be said is how wide such a slab must be to have been
hit almost surely. A Gaussian point of standard deviation s falls into a slab of width g at distance o from the origin
with probability g / s * phi(o / s), whatever the slab's direction; so points are drawn at the distances where neurons
were found, which makes them many times more likely to hit than points at unit distance, and the widths that would have
been missed with a probability above ``MISSED`` are reported.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from divulge.extraction.network import Copy

MISSED = 1e-4
CLOSEST = -9
"""Points beside a hyperplane lie between 10 to this power and one away from it: two that were taken for one differ."""


@dataclass(frozen=True)
class Verification:
    """Fresh points, the target's answers there, and how far the copy is off."""

    X: Tensor
    truth: Tensor
    off: Tensor
    """Worst absolute difference in each row [n]."""

    def and_also(self, other: Verification) -> Verification:
        return Verification(*(torch.cat(pair) for pair in zip(vars(self).values(), vars(other).values(), strict=True)))

    @property
    def worst(self) -> float:
        return float(self.off.max())

    @property
    def scale(self) -> float:
        return spread(self.truth)


def spread(values: Tensor) -> float:
    """Standard deviation over rows, of the output where it is largest; 1 for a constant."""
    deviation = float(values.std(dim=0).max()) if len(values) > 1 else 0.0
    return deviation if deviation > 0 else max(float(values.abs().max()), 1.0)


def fresh_points(copy: Copy, count: int, generator: torch.Generator, *, farthest: float = 1e6) -> Tensor:
    """Half Gaussian; of the rest half at the neurons' distances from the origin, half beside hyperplanes found.

    None lies more than ``farthest`` lengths of a typical input away.
    """
    inputs = copy.slope.shape[1]
    X = torch.randn(count, inputs, generator=generator, dtype=torch.float64)
    if not copy.width:
        return X
    near = count // 2
    pick = torch.randint(copy.width, (near,), generator=generator)
    offset, normal = copy.neurons.offset[pick], copy.neurons.normal[pick]
    jitter = torch.exp(0.5 * torch.randn(near, generator=generator, dtype=torch.float64))
    X[:near] *= (offset.abs() * jitter).clamp(1e-6, min(farthest, 1e6))[:, None]
    beside = slice(near // 2, near)
    height = (X[beside] * normal[beside]).sum(dim=1) + offset[beside]
    exponent = CLOSEST * torch.rand(near - near // 2, generator=generator, dtype=torch.float64)
    side = torch.where(torch.rand(near - near // 2, generator=generator) < 0.5, -1.0, 1.0).to(torch.float64)
    X[beside] += (side * 10**exponent - height)[:, None] * normal[beside]
    return X


def smallest_gap(copy: Copy, points: Tensor) -> float:
    """Width of the narrowest slab, at distances like those of the neurons found, missed by all points with a
    probability of at most ``MISSED``."""
    inputs = points.shape[1]
    offsets = copy.neurons.offset.abs() if copy.width else torch.linspace(0, 1, 11, dtype=torch.float64)
    if len(offsets) > 256:
        offsets = offsets.sort().values[:: len(offsets) // 256]
    deviation = (points.norm(dim=1) / math.sqrt(inputs)).clamp_min(1e-9)
    share = torch.exp(-0.5 * (offsets[:, None] / deviation) ** 2) / (math.sqrt(2 * math.pi) * deviation)  # [o, n]
    density = share.sum(dim=1).clamp_min(1e-12)  # expected hits for a slab of width one, by its distance
    # the mean over distances of the probability that a slab is missed
    low, high = 0.0, 1e12
    for _ in range(200):
        middle = math.sqrt(max(low, 1e-12) * high)
        if float(torch.exp(-middle * density).mean()) > MISSED:
            low = middle
        else:
            high = middle
    return high

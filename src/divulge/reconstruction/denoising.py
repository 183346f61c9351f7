"""Pictures in white noise: what the first layer's initial weights add to the pictures that training wrote into it.

The noise is the same at every pixel and every frequency, and pictures are not: they are weak at high frequencies and
at the border. So frequencies and pixels that hold little more than noise are turned down before the row space is read
(Wiener's filter, its gains from the weights themselves), and single pictures, whose noise is then known, are cleaned by
thresholding the cosine transform of overlapping blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from divulge.cosines import cosines

Shape = tuple[int, ...]
BLOCK, STRIDE, THRESHOLD = 8, 2, 2.7
AT_ONCE = 64
"""Pictures cleaned at once, which bounds the memory."""


def frequencies(rows: Tensor, shape: Shape) -> Tensor:
    """The cosine transform of pictures [k, d], over rows, columns and channels."""
    channels, height, width = _whole(shape)
    P = cosines(height).to(rows) @ rows.reshape(-1, channels, height, width) @ cosines(width).T.to(rows)
    return _mixed(P, cosines(channels)).reshape(len(rows), -1)


def pictures(transformed: Tensor, shape: Shape) -> Tensor:
    """The pictures [k, d] of which ``frequencies`` made this."""
    channels, height, width = _whole(shape)
    P = _mixed(transformed.reshape(-1, channels, height, width), cosines(channels).T)
    return (cosines(height).T.to(P) @ P @ cosines(width).to(P)).reshape(len(transformed), -1)


def _whole(shape: Shape) -> tuple[int, int, int]:
    height, width = shape[-2:]
    return math.prod(shape[:-2]), height, width


def _mixed(P: Tensor, mixing: Tensor) -> Tensor:
    """Pictures [k, c, h, w] with their channels mixed."""
    return (mixing.to(P) @ P.flatten(2)).reshape(P.shape)


@dataclass(frozen=True)
class Filter:
    """Gains for pixels and for frequencies, 0 to 1: how much of each is picture and not noise."""

    shape: Shape
    pixels: Tensor
    frequencies: Tensor

    def __call__(self, rows: Tensor) -> Tensor:
        """Rows [k, d] filtered; further columns (a bias) are left as they are."""
        d = len(self.pixels)
        turned = frequencies(rows[:, :d] * self.pixels, self.shape) * self.frequencies
        return torch.cat([pictures(turned, self.shape) * self.pixels, rows[:, d:]], dim=1)


def filter_for(rows: Tensor, shape: Shape, level: float) -> Filter:
    """Wiener's gains for rows [k, d] that hold mixed pictures and white noise of standard deviation ``level``."""
    return Filter(shape, _gains(rows, level), _gains(frequencies(rows, shape), level))


def _gains(rows: Tensor, level: float) -> Tensor:
    return (1 - level**2 / rows.square().mean(dim=0).clamp_min(1e-300)).clamp_min(0)


def cleaned(samples: Tensor, shape: Shape, level: Tensor) -> Tensor:
    """Pictures [k, d] without the white noise of standard deviations ``level`` [k] in them.

    Of every block of pixels the cosine coefficients that noise explains are dropped, and blocks that overlap are
    averaged, the simpler ones counting more.
    """
    channels, height, width = _whole(shape)
    if min(height, width) < BLOCK or len(samples) == 0:
        return samples
    parts = zip(torch.split(samples, AT_ONCE), torch.split(level.to(samples), AT_ONCE), strict=True)
    return torch.cat([_cleaned(part, (channels, height, width), noise) for part, noise in parts])


def _cleaned(samples: Tensor, shape: tuple[int, int, int], level: Tensor) -> Tensor:
    channels, height, width = shape
    P = _mixed(samples.reshape(-1, *shape), cosines(channels)).reshape(-1, 1, height, width)
    C = cosines(BLOCK)
    kernels = torch.einsum("ab,cd->acbd", C, C).reshape(-1, 1, BLOCK, BLOCK).to(P)
    border = BLOCK - STRIDE
    padded = torch.nn.functional.pad(P, (border,) * 4, mode="reflect")
    blocks = torch.nn.functional.conv2d(padded, kernels, stride=STRIDE)
    kept = blocks.abs() > THRESHOLD * level.repeat_interleave(channels)[:, None, None, None]
    kept[:, 0] = True
    weight = 1 / kept.sum(dim=1, keepdim=True).to(P)
    total = torch.nn.functional.conv_transpose2d(blocks * kept * weight, kernels, stride=STRIDE)
    count = torch.nn.functional.conv_transpose2d(weight, torch.ones_like(kernels[:1]), stride=STRIDE)
    inside = (total / count)[..., border : border + height, border : border + width]
    return _mixed(inside.reshape(-1, *shape), cosines(channels).T).reshape(len(samples), -1)

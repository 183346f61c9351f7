"""Noise reduction for images: the first layer's initial weights are white noise on the images that training adds.

White noise is equally strong at every pixel and frequency. Images are weak at high frequencies and at the border. So
pixels and frequencies that hold little more than noise are attenuated before the row space is computed (a Wiener filter
with gains from the weights). The noise in a single reconstructed image is then known. It is reduced by thresholding the
cosine transform of overlapping blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from divulge.core.images import cosine_transform

Shape = tuple[int, ...]
BLOCK, STRIDE, THRESHOLD = 8, 2, 2.7
AT_ONCE = 64
"""Images processed together, which bounds the memory."""


def to_frequencies(rows: Tensor, shape: Shape) -> Tensor:
    """The cosine transform of images [k, d] over rows, columns and channels."""
    channels, height, width = _channels_first(shape)
    down, across = cosine_transform(height).to(rows), cosine_transform(width).to(rows)
    P = down @ rows.reshape(-1, channels, height, width) @ across.T
    return _mixed(P, cosine_transform(channels)).reshape(len(rows), -1)


def from_frequencies(transformed: Tensor, shape: Shape) -> Tensor:
    """The images [k, d] whose ``to_frequencies`` this is."""
    channels, height, width = _channels_first(shape)
    P = _mixed(transformed.reshape(-1, channels, height, width), cosine_transform(channels).T)
    return (cosine_transform(height).T.to(P) @ P @ cosine_transform(width).to(P)).reshape(len(transformed), -1)


def _channels_first(shape: Shape) -> tuple[int, int, int]:
    height, width = shape[-2:]
    return math.prod(shape[:-2]), height, width


def _mixed(P: Tensor, mixing: Tensor) -> Tensor:
    """Images [k, c, h, w] with their channels mixed."""
    return (mixing.to(P) @ P.flatten(2)).reshape(P.shape)


@dataclass(frozen=True)
class WienerFilter:
    """Gains for pixels and for frequencies, 0 to 1: the share of each that is image and not noise."""

    shape: Shape
    pixels: Tensor
    frequencies: Tensor

    def __call__(self, rows: Tensor) -> Tensor:
        """Rows [k, d] filtered. Further columns (a bias) stay as they are."""
        d = len(self.pixels)
        filtered = to_frequencies(rows[:, :d] * self.pixels, self.shape) * self.frequencies
        return torch.cat([from_frequencies(filtered, self.shape) * self.pixels, rows[:, d:]], dim=1)


def wiener_filter(rows: Tensor, shape: Shape, noise_std: float) -> WienerFilter:
    """The filter for rows [k, d] that hold mixed images and white noise of standard deviation ``noise_std``."""
    return WienerFilter(shape, _gains(rows, noise_std), _gains(to_frequencies(rows, shape), noise_std))


def _gains(rows: Tensor, noise_std: float) -> Tensor:
    return (1 - noise_std**2 / rows.square().mean(dim=0).clamp_min(1e-300)).clamp_min(0)


def denoise(samples: Tensor, shape: Shape, noise_std: Tensor) -> Tensor:
    """Images [k, d] with their white noise of standard deviations ``noise_std`` [k] reduced.

    In every block of pixels the cosine coefficients that noise explains are dropped. Overlapping blocks are averaged,
    with larger weights for blocks of few coefficients.
    """
    channels, height, width = _channels_first(shape)
    if min(height, width) < BLOCK or len(samples) == 0:
        return samples
    parts = zip(torch.split(samples, AT_ONCE), torch.split(noise_std.to(samples), AT_ONCE), strict=True)
    return torch.cat([_denoise(part, (channels, height, width), noise) for part, noise in parts])


def _denoise(samples: Tensor, shape: tuple[int, int, int], noise_std: Tensor) -> Tensor:
    channels, height, width = shape
    P = _mixed(samples.reshape(-1, *shape), cosine_transform(channels)).reshape(-1, 1, height, width)
    C = cosine_transform(BLOCK)
    kernels = torch.einsum("ab,cd->acbd", C, C).reshape(-1, 1, BLOCK, BLOCK).to(P)
    border = BLOCK - STRIDE
    padded = torch.nn.functional.pad(P, (border,) * 4, mode="reflect")
    blocks = torch.nn.functional.conv2d(padded, kernels, stride=STRIDE)
    kept = blocks.abs() > THRESHOLD * noise_std.repeat_interleave(channels)[:, None, None, None]
    kept[:, 0] = True
    weight = 1 / kept.sum(dim=1, keepdim=True).to(P)
    total = torch.nn.functional.conv_transpose2d(blocks * kept * weight, kernels, stride=STRIDE)
    count = torch.nn.functional.conv_transpose2d(weight, torch.ones_like(kernels[:1]), stride=STRIDE)
    inside = (total / count)[..., border : border + height, border : border + width]
    return _mixed(inside.reshape(-1, *shape), cosine_transform(channels).T).reshape(len(samples), -1)

"""Where private training takes its noise and its samples from.

A guarantee of differential privacy holds against whoever knows everything but the random numbers. So these come from
the operating system's secure source unless a seed is asked for. torch's own generator does not serve: it is a Mersenne
twister with 32 bits of seed, which can be searched.

The noise is the sum of four Gaussians over two. One floating-point Gaussian can give away the value that it was added
to (Mironov 2012); recovering four from their sum is infeasible (Holohan and Braghin 2021).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_SAMPLING_STREAM = 0x9E3779B9  # separates a seeded run's samples from its noise
_SUMMED = 4


class Randomness(Protocol):
    """A source of noise and of Poisson samples."""

    def normal(self, shape: Sequence[int], deviation: float, dtype: torch.dtype) -> Tensor:
        """Independent Gaussians with mean 0 and this standard deviation."""

    def sample(self, n: int, rate: float) -> Tensor:
        """The indices of a Poisson sample: each of n rows is in it with probability ``rate``, independently."""


class SystemRandomness:
    """The operating system's secure source; nothing that is written to disk repeats it."""

    def normal(self, shape: Sequence[int], deviation: float, dtype: torch.dtype) -> Tensor:
        count = int(np.prod(shape))
        total = sum(_box_muller(count) for _ in range(_SUMMED)) / np.sqrt(_SUMMED)
        return torch.from_numpy(deviation * total).reshape(*shape).to(dtype)

    def sample(self, n: int, rate: float) -> Tensor:
        return torch.from_numpy(np.flatnonzero(_uniform(n) < rate))


class SeededRandomness:
    """A seeded source, for training that can be repeated; it gives no guarantee."""

    def __init__(self, seed: int) -> None:
        self._noise = torch.Generator().manual_seed(seed)
        self._samples = torch.Generator().manual_seed(seed ^ _SAMPLING_STREAM)

    def normal(self, shape: Sequence[int], deviation: float, dtype: torch.dtype) -> Tensor:
        return torch.normal(0.0, deviation, tuple(shape), generator=self._noise, dtype=dtype)

    def sample(self, n: int, rate: float) -> Tensor:
        return torch.nonzero(torch.rand(n, generator=self._samples, dtype=torch.float64) < rate)[:, 0]


def randomness(seed: int | None) -> Randomness:
    """The operating system's source for None, a seeded one otherwise."""
    return SystemRandomness() if seed is None else SeededRandomness(seed)


def _uniform(count: int) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1) with 53 bits each."""
    numbers = np.frombuffer(os.urandom(8 * count), dtype=np.uint64) >> np.uint64(11)
    return numbers.astype(np.float64) * 2.0**-53


def _box_muller(count: int) -> NDArray[np.float64]:
    """Standard Gaussians."""
    half = (count + 1) // 2
    radius = np.sqrt(-2 * np.log(1 - _uniform(half)))
    angle = 2 * np.pi * _uniform(half)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]

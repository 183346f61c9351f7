"""How precisely an oracle answers, and whether it answers for a piecewise linear function at all.

Two tiny segments tell the rounding noise of values (whatever its cause: number format, rounding to decimals, added
noise), because no piecewise linear function bends there; two longer ones tell a smooth function, which bends
everywhere and like a parabola, from a piecewise linear one, which bends at few places and with a corner.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from divulge.extraction.lines import Array
from divulge.oracles.base import Oracle


@dataclass(frozen=True)
class Precision:
    """Standard error of an oracle's values: ``floor`` everywhere, and ``relative`` times the length of the row."""

    dtype: torch.dtype
    floor: float
    relative: float
    step: float
    """What all values are multiples of, or 0."""
    deterministic: bool
    smooth: bool
    """True if the function bends everywhere: not piecewise linear."""

    def noise(self, rows: Array) -> Array:
        length = np.maximum(np.linalg.norm(rows, axis=1), np.sqrt(rows.shape[1]))
        return np.asarray(np.hypot(self.floor, self.relative * length)) + SMALLEST

    def store(self, rows: Array) -> Array:
        """The rows as the oracle will see them, in its own number format."""
        if self.dtype == torch.float64:
            return rows
        return torch.from_numpy(rows).to(self.dtype).to(torch.float64).numpy()

    def describe(self) -> str:
        if not self.deterministic:
            return f"the same row is answered differently each time (standard deviation about {self.floor:.1e})"
        if self.step:
            return f"the answers are rounded to multiples of {self.step:g}"
        return f"the answers come in {str(self.dtype).removeprefix('torch.')}"


POINTS = 6
AWAY = 10.0
"""One segment lies this much farther out, where other neurons are on."""
SMALLEST = 1e-140
"""Noise is never zero, so that it can be divided by: a constant function has none."""


def measure(oracle: Oracle, rng: np.random.Generator, seen: Array) -> Precision:
    """Ask 25 rows and tell the oracle's precision; ``seen`` are values [n, k] at typical rows."""
    d = oracle.input_dim
    eps = oracle.eps
    offsets = np.linspace(-0.5, 0.5, POINTS)
    lengths = (2e3 * eps, 2e3 * eps, eps**0.25, eps**0.25)
    segments = []
    for length, away in zip(lengths, (1.0, AWAY, 1.0, 1.0), strict=True):
        base, direction = rng.normal(size=d), rng.normal(size=d)
        segments.append(away * (base + length * offsets[:, None] * direction))
    rows = np.concatenate([*segments, segments[0][:1]])
    rows = torch.from_numpy(rows).to(oracle.dtype).to(torch.float64).numpy()
    values = oracle.value(torch.from_numpy(rows)).to(torch.float64).cpu().numpy()
    inner = np.delete(values, slice(POINTS, 2 * POINTS), axis=0)  # without the segment farther out
    largest = float(max(np.abs(inner).max(), np.abs(seen).max()))
    deterministic = bool(np.abs(values[0] - values[-1]).max() <= eps**0.75 * largest)  # batches are summed in any order
    blocks = values[:-1].reshape(len(lengths), POINTS, -1)
    tiny = [_bend(blocks[0], offsets, 1), _bend(blocks[1], offsets, 1) / AWAY]  # rounding grows with the row
    step = quantum(np.concatenate([values, seen]))
    floor = max(largest * eps, 0.3 * step)
    sigma = max(float(np.sqrt(np.mean(np.square(tiny)))), np.finfo(float).tiny)
    coarse = step > 0 or not deterministic
    smooth = all(
        _bend(block, offsets, 1) > 50 * max(sigma, floor) and _bend(block, offsets, 2) < 0.1 * _bend(block, offsets, 1)
        for block in blocks[2:]
    )
    return Precision(
        dtype=oracle.dtype,
        floor=max(sigma, floor) if coarse else 0.0,
        relative=max(sigma, floor) / np.sqrt(d) if not coarse else eps * largest / np.sqrt(d),
        step=step,
        deterministic=deterministic,
        smooth=smooth,
    )


def _bend(values: Array, offsets: Array, degree: int) -> float:
    """Root mean square distance of values [n, k] from a polynomial of the given degree."""
    basis = np.vander(offsets, degree + 1)
    residual = values - basis @ np.linalg.lstsq(basis, values, rcond=None)[0]
    return float(np.sqrt((residual**2).sum(axis=0).max() / (len(offsets) - degree - 1)))


def quantum(values: Array) -> float:
    """The largest power of ten down to 1e-9 that all values are multiples of, or 0 if there is none."""
    seen = np.abs(values[values != 0.0])
    if not len(seen):
        return 0.0
    largest = float(seen.max())
    for digits in range(0, 10):
        scaled = seen * 10.0**digits
        error = np.abs(scaled - np.round(scaled)).max()
        if error <= 1e-9 + 8e-16 * largest * 10.0**digits and 1.0 <= largest * 10.0**digits < 1e12:
            return float(10.0**-digits)
    return 0.0

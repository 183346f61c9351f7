"""How precisely an oracle answers, and whether it answers for a piecewise linear function at all.

Two tiny segments tell the rounding noise of values (whatever its cause: number format, rounding to decimals, added
noise), because no piecewise linear function bends there; two longer ones tell a smooth function, which bends
everywhere and like a parabola, from a piecewise linear one, which bends at few places and with a corner.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from divulge.extraction.values.line_scan import Array
from divulge.oracles.base import Oracle
from divulge.oracles.outputs import rounding_step


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

    @property
    def faithful(self) -> bool:
        """Whether the answers are neither rounded to decimals nor noisy."""
        return self.deterministic and not self.step

    def plain(self, eps: float) -> bool:
        """Whether answers of this relative precision are those of a network in float64, as they were computed."""
        return self.faithful and eps <= torch.finfo(torch.float64).eps

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
SMALLEST = 1e-140
"""Noise is never zero, so that it can be divided by: a constant function has none."""


def measure(
    oracle: Oracle, rng: np.random.Generator, seen: Array, *, away: float = 10.0, at: Array | None = None
) -> Precision:
    """The oracle's precision, from 25 rows; ``seen`` are values [n, k] at typical rows.

    One segment lies ``away`` times as far out, on the other side of the origin, where other neurons are active. All of
    them lie at the rows ``at`` [4, d] where answers are precise at some rows only.
    """
    d = oracle.input_dim
    eps = oracle.eps
    offsets = np.linspace(-0.5, 0.5, POINTS)
    lengths = (2e3 * eps, 2e3 * eps, eps**0.25, eps**0.25)
    segments = []
    bases = rng.normal(size=(3, d))
    places = np.stack([bases[0], -away * bases[0], *bases[1:]])
    if at is not None:
        places, away = at, 1.0
    for length, base in zip(lengths, places, strict=True):
        size = float(np.linalg.norm(base)) / np.sqrt(d)
        segments.append(base + size * length * offsets[:, None] * rng.normal(size=d))
    rows = np.concatenate([*segments, segments[0][:1]])
    rows = torch.from_numpy(rows).to(oracle.dtype).to(torch.float64).numpy()
    values = oracle.value(torch.from_numpy(rows)).to(torch.float64).cpu().numpy()
    inner = np.delete(values, slice(POINTS, 2 * POINTS), axis=0)  # without the segment farther out
    largest = float(max(np.abs(inner).max(), np.abs(seen).max()))
    deterministic = bool(np.abs(values[0] - values[-1]).max() <= eps**0.75 * largest)  # batches are summed in any order
    blocks = values[:-1].reshape(len(lengths), POINTS, -1)
    tiny = [_bend(blocks[0], offsets, 1), _bend(blocks[1], offsets, 1) / away]  # rounding grows with the row
    step = rounding_step(np.concatenate([values, seen]), float(torch.finfo(oracle.dtype).eps))
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


def worst_precision_at(
    precision: Precision, ask: Callable[[Array], Array], rows: Array, rng: np.random.Generator
) -> Precision:
    """The precision at the worst of these rows [n, d], if that is worse than was thought: rounding differs by place."""
    n, d = rows.shape
    offsets = np.linspace(-0.5, 0.5, POINTS)
    size = np.linalg.norm(rows, axis=1) / np.sqrt(d)
    length = 2e3 * torch.finfo(precision.dtype).eps * size
    beside = rows[:, None] + (length[:, None] * offsets)[:, :, None] * rng.normal(size=(n, 1, d))
    values = ask(precision.store(beside.reshape(-1, d))).reshape(n, POINTS, -1)
    bend = np.array([_bend(block, offsets, 1) for block in values])
    return replace(
        precision,
        floor=max(precision.floor, float(bend.min())) if precision.floor else 0.0,
        relative=max(precision.relative, float((bend / size).max()) / np.sqrt(d)),
    )


def _bend(values: Array, offsets: Array, degree: int) -> float:
    """Root mean square distance of values [n, k] from a polynomial of the given degree."""
    basis = np.vander(offsets, degree + 1)
    residual = values - basis @ np.linalg.lstsq(basis, values, rcond=None)[0]
    return float(np.sqrt((residual**2).sum(axis=0).max() / (len(offsets) - degree - 1)))

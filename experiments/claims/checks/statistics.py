"""How far a measured share or mean may lie from the stated one by chance alone."""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import beta

from experiments.claims.subject import Array

RARE = 1e-4
"""A difference that chance alone gives less often than this is a false claim."""


def share_interval(hits: int, rows: int, *, error: float = RARE) -> tuple[float, float]:
    """Clopper-Pearson interval of a share."""
    low = 0.0 if hits == 0 else float(beta.ppf(error / 2, hits, rows - hits + 1))
    high = 1.0 if hits == rows else float(beta.ppf(1 - error / 2, hits + 1, rows - hits))
    return low, high


def intervals_meet(first: tuple[float, float], second: tuple[float, float]) -> bool:
    """Whether two intervals have a point in common."""
    return first[0] <= second[1] and second[0] <= first[1]


def explained(truth: Array, guess: Array) -> float:
    """The share of variance that a guess explains."""
    spread = float(np.square(truth - truth.mean(axis=0)).sum())
    error = float(np.square(truth - guess).sum())
    return 1 - error / spread if spread > 0 else float(error == 0)


def resampled(truth: Array, guess: Array, *, draws: int = 400, seed: int = 0) -> tuple[float, float]:
    """The share of variance explained over resamples of the rows, widened to an interval that chance rarely leaves."""
    random = np.random.default_rng(seed)
    places = random.integers(len(truth), size=(draws, len(truth)))
    shares = np.array([explained(truth[place], guess[place]) for place in places])
    middle, deviation = float(np.median(shares)), float(shares.std())
    return middle - 4 * deviation - 1e-9, middle + 4 * deviation + 1e-9


def in_percent(share: float) -> str:
    """A share for a person."""
    return "no number" if not math.isfinite(share) else f"{share:.2%}"

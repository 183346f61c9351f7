"""Models without an intercept (Balle 2022, Theorem 8, here for every family).

x is a multiple of the left-over gradient and only its length is open: x = a (-G) with s a slope(a c, y) = 1,
c = -G . theta. A squared loss gives the printed quadratic; other families are solved on a grid of lengths. Two roots
are the rule, and they explain the model equally well. All of them come back, ranked by their distance to the known
rows with that label; ``plausibility`` decides whether all but one can be excluded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from divulge.core.errors import AttackFailed, InvalidInput
from divulge.informed.linear.equations import Equations, Solution, refine
from divulge.informed.linear.models import Array

_GRID = 400  # lengths of either sign, on a logarithmic scale
_TOUCHING = 1e-2  # a model short of its optimum shifts the equation, and may part a double root from the axis
_SOLVED = 1e-3  # a misfit below this share of G is a solution of an overdetermined system


def solve_without_intercept(eq: Equations, label: Any, G: Array | None = None) -> list[Solution]:
    """Every record that explains the left-over gradient, most plausible first."""
    if label is None and not eq.model.discrete:
        raise InvalidInput(
            "A regression without intercept needs the unknown record's target: pass label=, or fit an intercept."
        )
    found: list[Solution] = []
    for guess in eq.guesses(label):
        left, s = eq.gradient(guess)
        left = left if G is None else G
        if float(np.linalg.norm(left)) == 0.0:
            raise AttackFailed("The known records alone already explain this model; nothing can be rebuilt.")
        found += _by_length(eq, left, s, guess) if left.shape[1] == 1 else _by_direction(eq, left, s, guess)
    if not found:
        raise AttackFailed("No record with the given label explains this model; check the label, penalty and weights.")
    return sorted(found, key=lambda solution: solution.misfit)


def _by_length(eq: Equations, G: Array, s: float, guess: Any) -> list[Solution]:
    """One output: every root of the equation for the length."""
    direction = -G[:, 0]
    c = float(direction @ eq.theta[:, 0])
    Y = eq.model.encode(np.asarray([guess]))
    typical = float(np.linalg.norm(eq.rows, axis=1).mean()) / float(np.linalg.norm(direction))

    def excesses(lengths: Array) -> Array:
        with np.errstate(over="ignore"):
            values: Array = s * lengths * eq.model.slope(c * lengths[:, None], Y)[:, 0] - 1
        return values

    def excess(a: float) -> float:
        return float(excesses(np.array([a]))[0])

    if eq.model.family == "linear":
        lengths = _quadratic(s * c, -s * float(Y[0, 0]))
    else:
        grid = np.concatenate([sign * typical * np.logspace(-6, 6, _GRID) for sign in (-1, 1)])
        grid.sort()
        values = excesses(grid)
        turns = np.flatnonzero(np.sign(values[:-1]) * np.sign(values[1:]) < 0)
        lengths = [brentq(excess, grid[i], grid[i + 1], xtol=1e-300, rtol=1e-15) for i in turns]
        lengths += _nearly_double(excess, grid, values)
    return [
        Solution(a * direction, guess, np.array([1 / a]), _implausibility(eq, a * direction, guess), G)
        for a in dict.fromkeys(lengths)
        if a != 0
    ]


def _nearly_double(excess: Callable[[float], float], grid: Array, values: Array) -> list[float]:
    """Lengths at which the equation touches zero, or nearly: two roots there may have fallen between grid points."""
    found = []
    inner, before, after = values[1:-1], values[:-2], values[2:]
    for sign in (-1, 1):  # a maximum below zero, a minimum above
        extremum = (sign * inner > 0) & (sign * inner <= sign * before) & (sign * inner <= sign * after)
        for i in np.flatnonzero(extremum & (np.abs(inner) < 0.5)) + 1:
            best = minimize_scalar(
                lambda a, sign=sign: sign * excess(a), bounds=(grid[i - 1], grid[i + 1]), method="bounded",
                options={"xatol": 1e-12 * abs(grid[i])},
            )  # fmt: skip
            if best.fun <= 0:
                ends = ((grid[i - 1], best.x), (best.x, grid[i + 1]))
                found += [brentq(excess, *pair, xtol=1e-300, rtol=1e-15) for pair in ends]
            elif best.fun <= _TOUCHING:
                found.append(float(best.x))
    return found


def _quadratic(c: float, b: float) -> list[float]:
    """The real roots of c a^2 + b a = 1; a discriminant that is hardly negative counts as 0."""
    if c == 0:
        return [1 / b] if b else []
    discriminant = b * b + 4 * c
    if discriminant < -_TOUCHING * max(b * b, 4 * abs(c)):
        return []
    root = np.sqrt(max(0.0, discriminant))
    larger = -(b + np.copysign(root, b)) / 2  # no cancellation
    return [float(larger / c), float(-1 / larger)] if larger else [float(root / (2 * c)), float(-root / (2 * c))]


def _by_direction(eq: Equations, G: Array, s: float, guess: Any) -> list[Solution]:
    """Several outputs: the direction of x is G's first left singular vector, and its length is overdetermined.

    Returns every distinct solution under this label, or the nearest miss where there is none.
    """
    left, _, _ = np.linalg.svd(G, full_matrices=False)
    sizes = np.quantile(np.linalg.norm(eq.rows, axis=1), [0.1, 0.5, 0.9])
    tries = [refine(eq, G, s, sign * size * left[:, 0], guess) for size in sizes for sign in (-1, 1)]
    tries.sort(key=lambda solution: solution.misfit)
    kept = tries[:1]
    for other in tries[1:]:
        apart = min(float(np.linalg.norm(other.x - one.x)) for one in kept)
        if other.misfit <= _SOLVED * float(np.linalg.norm(G)) and apart > 1e-3 * float(np.linalg.norm(other.x)):
            kept.append(other)
    return kept


def _implausibility(eq: Equations, x: Array, guess: Any) -> float:
    """The mean squared Mahalanobis distance to the known rows (of that label, if discrete), and more out of bounds."""
    rows = eq.rows
    if eq.model.discrete:
        same = np.asarray(eq.raw_y).reshape(-1) == guess
        rows = rows[same] if same.sum() > 1 else rows
    spread = rows - rows.mean(axis=0)
    covariance = spread.T @ spread / max(1, len(rows) - 1)
    shrunk = 0.9 * covariance + 0.1 * np.eye(len(x)) * max(float(np.trace(covariance)) / len(x), 1e-300)
    away = x - rows.mean(axis=0)
    distance = float(away @ np.linalg.solve(shrunk, away)) / len(x)
    if eq.bounds is not None:
        low, high = (eq.standardised(np.full(len(x), bound)) for bound in eq.bounds)
        outside = np.maximum(low - x, 0) + np.maximum(x - high, 0)
        distance += float(np.square(outside).mean()) / max(1e-300, float(np.square(high - low).mean())) * 1e3
    return distance

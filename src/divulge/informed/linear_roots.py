"""Models without an intercept (Balle 2022, Theorem 8, for every family here).

x is a multiple of the left-over gradient and only its length is open: x = a (-G) with s a slope(a c, y) = 1,
c = -G . theta. A squared loss gives the printed quadratic; other families are solved on a grid of lengths. Two roots
are the rule, and a box such as [0, 1] tells them apart little better than a coin, so all come back, ranked by how far
they lie from the known rows with that label.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import brentq

from divulge.errors import AttackFailed, InvalidInput
from divulge.informed.linear_models import Array
from divulge.informed.linear_solve import CERTAIN, Equations, Solution, refine

_GRID = 400


def solve_without_intercept(eq: Equations, label: Any, G: Array | None) -> list[Solution]:
    """Every record that explains the left-over gradient, most plausible first."""
    if label is None and not eq.model.discrete:
        raise InvalidInput(
            "A regression without intercept needs the unknown record's target: pass label=, or fit an intercept."
        )
    found = []
    for guess in eq.guesses(label):
        left, s = eq.gradient(guess)
        left = left if G is None else G
        if float(np.linalg.norm(left)) == 0.0:
            raise AttackFailed("The known records alone already explain this model; nothing can be rebuilt.")
        if left.shape[1] == 1:
            found += _by_length(eq, left, s, guess)
            continue
        found.append(_by_direction(eq, left, s, guess))
        if found[-1].misfit <= CERTAIN * float(np.linalg.norm(left)):
            return found[-1:]
    if not found:
        raise AttackFailed("No record with the given label explains this model; check the label, penalty and weights.")
    return sorted(found, key=lambda solution: solution.misfit)


def _by_length(eq: Equations, G: Array, s: float, guess: Any) -> list[Solution]:
    direction = -G[:, 0]
    c = float(direction @ eq.model.theta[:, 0])
    Y = eq.model.encode(np.asarray([guess]))
    typical = float(np.linalg.norm(eq.X, axis=1).mean()) / float(np.linalg.norm(direction))

    def excess(a: float) -> float:
        with np.errstate(over="ignore"):
            return float(s * a * eq.model.slope(np.array([[a * c]]), Y)[0, 0]) - 1

    if eq.model.family == "linear":  # s (c a^2 - y a) = 1
        roots = np.roots([s * c, -s * Y[0, 0], -1.0]) if c else np.array([-1 / (s * Y[0, 0])])
        lengths = [float(root.real) for root in roots if abs(root.imag) <= 1e-9 * abs(root)]
    else:
        grid = np.concatenate([sign * typical * np.logspace(-6, 6, _GRID) for sign in (-1, 1)])
        grid.sort()
        values = np.array([excess(a) for a in grid])
        turns = np.flatnonzero(np.sign(values[:-1]) * np.sign(values[1:]) < 0)
        lengths = [brentq(excess, grid[i], grid[i + 1], xtol=1e-300, rtol=1e-15) for i in turns]
    return [
        Solution(a * direction, guess, np.array([1 / a]), _implausibility(eq, a * direction, guess), G)
        for a in lengths
        if a != 0
    ]


def _by_direction(eq: Equations, G: Array, s: float, guess: Any) -> Solution:
    """Several outputs: the direction of x is G's first left singular vector, and its length is overdetermined."""
    left, _, _ = np.linalg.svd(G, full_matrices=False)
    sizes = np.quantile(np.linalg.norm(eq.X, axis=1), [0.1, 0.5, 0.9])
    tries = [refine(eq, G, s, sign * size * left[:, 0], guess) for size in sizes for sign in (-1, 1)]
    return min(tries, key=lambda solution: solution.misfit)


def _implausibility(eq: Equations, x: Array, guess: Any) -> float:
    """The squared Mahalanobis distance to the known rows (of that label, if discrete), and more if out of bounds."""
    rows = eq.X
    if eq.model.discrete:
        same = np.asarray(eq.raw_y).reshape(-1) == guess
        rows = rows[same] if same.sum() > 1 else rows
    spread = rows - rows.mean(axis=0)
    covariance = spread.T @ spread / max(1, len(rows) - 1)
    shrunk = 0.9 * covariance + 0.1 * np.eye(len(x)) * max(float(np.trace(covariance)) / len(x), 1e-300)
    away = x - rows.mean(axis=0)
    distance = float(away @ np.linalg.solve(shrunk, away)) / len(x)
    if eq.bounds is not None:
        low, high = eq.bounds
        outside = np.maximum(low - x, 0) + np.maximum(x - high, 0)
        distance += float(np.square(outside).mean()) / max(1e-300, (high - low) ** 2) * 1e3
    return distance

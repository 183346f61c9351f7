"""The equation G = -s x r(x, y)^T of one unknown record, and its solutions.

``Equations`` holds what is known; ``solve`` gives the closed form, refined by Gauss-Newton where the label is discrete.
The normal matrix of that refinement is a multiple of the identity plus a matrix of rank k + 2, so a step costs
d k^2 whatever the number of features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from divulge.errors import AttackFailed, InvalidInput
from divulge.informed.linear_models import Array, LinearModel

_EPS = float(np.finfo(np.float64).eps)
_SETTLED = 1e-7  # a refinement ends when a step gains less than this share of the misfit
CERTAIN = 1e-3  # a misfit below this share of G settles the label


@dataclass(frozen=True)
class Solution:
    """A record that solves the equations: x in the model's features, its target, the slope r and the misfit."""

    x: Array
    y: Any
    r: Array
    """s * slope, [k]."""
    misfit: float
    G: Array
    """What the known records left over, under this solution's label."""

    def model_gradient(self) -> Array:
        """What G would be if the released model were at its optimum."""
        x = self.x if len(self.G) == len(self.x) else np.append(self.x, 1.0)
        return -np.outer(x, self.r)


@dataclass(frozen=True)
class Equations:
    """The released model and the known records."""

    model: LinearModel
    X: Array
    raw_y: Any
    s: Array
    unknown_weight: float
    bounds: tuple[float, float] | None

    def gradient(self, guess: Any) -> tuple[Array, float]:
        """G [d (+1), k] of the known records, and the unknown one's weight, if its label is ``guess``."""
        class_weights, own = self.model.class_weights(self.raw_y, guess)
        weights = self.s * class_weights
        s = self.unknown_weight * own
        eta = self.augmented @ self.model.theta
        slopes = weights[:, None] * self.model.slope(eta, self.model.encode(self.raw_y))
        return self.augmented.T @ slopes + self.model.penalties(
            self.s.sum() + self.unknown_weight
        ) * self.model.theta, s

    @property
    def augmented(self) -> Array:
        """The known rows with a column of ones for the intercept, where the model has one."""
        return self.X if self.model.intercept is None else np.column_stack([self.X, np.ones(len(self.X))])

    @property
    def freedom(self) -> int:
        """How many more equations there are than unknowns."""
        size, k = self.model.theta.shape
        columns = k - 1 if self.model.family == "softmax" else k
        unknowns = self.X.shape[1] + (0 if self.model.discrete else k)
        return max(0, int(size * columns - unknowns))

    def centred(self, E: Array) -> Array:
        """A random leftover as the family can have one: softmax gradients sum to zero over the classes."""
        return E - E.mean(axis=1, keepdims=True) if self.model.family == "softmax" else E

    def rounding(self, G: Array) -> float:
        """The size of rounding errors in G, from the sums that made it."""
        eta = self.augmented @ self.model.theta
        scale = np.abs(self.augmented).T @ (self.s[:, None] * (np.abs(eta) + 1)) * np.sqrt(1 / max(1, len(self.X)))
        return float(_EPS * np.linalg.norm(scale)) + _EPS * float(np.linalg.norm(G))

    def typical_gradient(self) -> float:
        """The median size of a known record's own gradient."""
        slopes = self.model.slope(self.augmented @ self.model.theta, self.model.encode(self.raw_y))
        return float(np.median(np.linalg.norm(self.augmented, axis=1) * np.linalg.norm(slopes, axis=1)))

    def guesses(self, label: Any) -> list[Any]:
        """The labels the unknown record may have: the given one, each class, or None where it is not discrete."""
        if not self.model.discrete:
            return [label]
        return [label] if label is not None else self.model.classes.tolist()


def solve(
    eq: Equations, label: Any = None, *, G: Array | None = None, among: list[Any] | None = None
) -> list[Solution]:
    """Every solution, best first. For simulations ``G`` replaces the left-over gradient, and ``among`` the labels."""
    if eq.model.intercept is None:
        from divulge.informed.linear_roots import solve_without_intercept

        return solve_without_intercept(eq, label, G)
    if not eq.model.discrete:
        left, s = (eq.gradient(None)) if G is None else (G, eq.unknown_weight)
        return [_closed_form(eq, left, s)]
    starts = []
    for guess in eq.guesses(label) if among is None else among:
        left, s = eq.gradient(guess)
        left = left if G is None else G
        closed = _closed_form(eq, left, s)
        starts.append((closed.y != guess, guess, left, s, closed.x))
    found: list[Solution] = []
    for other, guess, left, s, x in sorted(starts, key=lambda start: start[0]):
        if not other or len(starts) == 1:
            found.append(refine(eq, left, s, x, guess))
            if found[-1].misfit <= CERTAIN * float(np.linalg.norm(left)):
                return found[-1:]  # no other label comes close
        same = np.asarray(eq.raw_y).reshape(-1) == guess
        found.append(refine(eq, left, s, (eq.X[same] if same.any() else eq.X).mean(axis=0), guess))
    return sorted(found, key=lambda solution: solution.misfit)


def _closed_form(eq: Equations, G: Array, s: float) -> Solution:
    """Theorem 1, corrected: r from the intercept's row, x from the others, y from r at x."""
    r = -G[-1]
    size = float(r @ r)
    if not math.isfinite(size) or size <= 0:
        raise AttackFailed(
            "The known records alone already explain this model's intercept: the known set contains the target, or "
            "its loss had no slope left; nothing can be rebuilt."
        )
    x = -(G[:-1] @ r) / size
    eta = (np.append(x, 1.0) @ eq.model.theta)[None]
    with np.errstate(over="ignore"):
        Y = (eq.model.mean(eta) - (r / s) / eq.model.weight(eta))[0]
    misfit = float(np.linalg.norm(G + np.outer(np.append(x, 1.0), r)))
    return Solution(x, eq.model.decode(Y), r, misfit, G)


# -- refinement -------------------------------------------------------------------------------------------------------


def refine(eq: Equations, G: Array, s: float, x: Array, guess: Any, *, steps: int = 40) -> Solution:
    """Least squares for x in G + s x r(x, guess)^T = 0 by Levenberg-Marquardt."""
    Y = eq.model.encode(np.asarray([guess]))
    x = _clip(x, eq.bounds)
    misfit, r = _misfit(eq, G, s, x, Y)
    damping = 0.0
    for _ in range(steps):
        step = _normal_step(eq, G, s, x, r, damping)
        proposal = _clip(x + step, eq.bounds)
        value, slope = _misfit(eq, G, s, proposal, Y)
        if value < misfit:
            done = misfit - value < _SETTLED * misfit
            x, r, misfit, damping = proposal, slope, value, damping / 5 if damping > 1e-8 else 0.0
            if done:
                break
        elif damping > 1e8:
            break
        else:
            damping = max(1e-3, damping * 8)
    return Solution(x, guess, r, misfit, G)


def _misfit(eq: Equations, G: Array, s: float, x: Array, Y: Array) -> tuple[float, Array]:
    point = _point(eq, x)
    with np.errstate(over="ignore", invalid="ignore"):
        r = s * eq.model.slope((point @ eq.model.theta)[None], Y)[0]
        value = float(np.linalg.norm(G + np.outer(point, r)))
    return (value if math.isfinite(value) else math.inf), r


def _normal_step(eq: Equations, G: Array, s: float, x: Array, r: Array, damping: float) -> Array:
    """The damped Gauss-Newton step, by the Woodbury identity on (|r|^2 + damping) I + B M B^T."""
    point = _point(eq, x)
    D = s * slope_jacobian(eq.model, point @ eq.model.theta) @ eq.model.coef  # [k, d]: how r moves with x
    F = G + np.outer(point, r)
    rD = r @ D
    gradient = F[: len(x)] @ r + D.T @ (F.T @ point)
    scale = float(r @ r) + damping * (float(r @ r) + float(point @ point) * float(np.square(D).sum()) / len(x))
    k = len(r)
    B = np.column_stack([x, rD, D.T])
    inverse_M = np.zeros((k + 2, k + 2))
    inverse_M[0, 1] = inverse_M[1, 0] = 1.0
    inverse_M[range(2, k + 2), range(2, k + 2)] = 1 / max(float(point @ point), 1e-12)
    core = np.linalg.lstsq(scale * inverse_M + B.T @ B, B.T @ gradient, rcond=None)[0]
    step: Array = -(gradient - B @ core) / max(scale, 1e-300)
    return step


def slope_jacobian(model: LinearModel, eta: Array) -> Array:
    """The derivative [k, k] of the slope in the linear predictor, for the families with discrete targets."""
    mean = model.mean(eta[None])[0]
    if model.family == "softmax":
        jacobian: Array = np.diag(mean) - np.outer(mean, mean)
        return jacobian
    return np.diag(mean * (1 - mean)) if model.family == "logistic" else np.eye(len(mean))


def _point(eq: Equations, x: Array) -> Array:
    return x if eq.model.intercept is None else np.append(x, 1.0)


def _clip(x: Array, bounds: tuple[float, float] | None) -> Array:
    if bounds is None:
        return x
    if not bounds[0] < bounds[1]:
        raise InvalidInput(f"bounds are (low, high) with low below high; got {bounds!r}.")
    clipped: Array = np.clip(x, *bounds)
    return clipped

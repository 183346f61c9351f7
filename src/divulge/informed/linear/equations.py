"""The equation G = -s x r(x, y)^T of one unknown record, and its solutions (Balle 2022, Theorem 1).

G is what the known records' gradients leave over; s is the unknown record's weight and r the slope of its loss.
``Equations`` holds what is known, in units in which the solver leaves over as much in every column. Those are the
columns' spreads where rounding limits it, and the columns' own units where an iteration was stopped early. ``solve``
gives the closed form, refined by Levenberg-Marquardt where the label is discrete. The normal matrix of that refinement
is a multiple of the identity plus a matrix of rank k + 2, so a step costs d k^2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from divulge.core.errors import AttackFailed
from divulge.core.optim import levenberg_marquardt
from divulge.informed.linear.models import Array, LinearModel
from divulge.informed.linear.scale import column_spread

_EPS = float(np.finfo(np.float64).eps)
_SETTLED = 1e-7  # a refinement ends when a step changes the misfit by less than this share
CERTAIN = 1e-3
"""A misfit below this share of G settles the label, where G does not depend on it."""


@dataclass(frozen=True)
class Solution:
    """A record that solves the equations."""

    x: Array
    """The standardised features [d]."""
    y: Any
    """The label or target."""
    r: Array
    """s times the slope of the loss [k]."""
    misfit: float
    """The norm of what the record leaves of G."""
    G: Array
    """What the known records left over, under this solution's label."""

    def model_gradient(self) -> Array:
        """What G would be if the released model were exactly at its optimum."""
        x = self.x if len(self.G) == len(self.x) else np.append(self.x, 1.0)
        return -np.outer(x, self.r)


@dataclass(frozen=True)
class Equations:
    """The released model and the known records."""

    model: LinearModel
    X: Array
    """The known rows in the model's features [n, d]."""
    raw_y: Any
    s: Array
    """The known records' weights [n]."""
    unknown_weight: float
    bounds: tuple[float, float] | None
    """The range of a feature, in the model's features."""
    evenness: float = 1.0
    """1 where the solver leaves over as much in every column, for its spread; 0 where it does in the columns' units."""

    # -- standardised coordinates: x = centre + unit * x' -----------------------------------------------------------

    @cached_property
    def unit(self) -> Array:
        """The unit of each column [d]: its spread, to the power of ``evenness``."""
        unit: Array = column_spread(self.X) ** self.evenness
        return unit

    @cached_property
    def centre(self) -> Array:
        """The origin of each column [d]; without an intercept the origin cannot move."""
        centre: Array = np.zeros(self.X.shape[1]) if self.model.intercept is None else self.X.mean(axis=0)
        return centre

    @cached_property
    def rows(self) -> Array:
        """The known rows, standardised [n, d]."""
        rows: Array = (self.X - self.centre) / self.unit
        return rows

    @cached_property
    def augmented(self) -> Array:
        """The standardised rows with a column of ones for the intercept, where the model has one."""
        return self.rows if self.model.intercept is None else np.column_stack([self.rows, np.ones(len(self.rows))])

    @cached_property
    def coef(self) -> Array:
        """The coefficients of standardised features [k, d]."""
        coef: Array = self.model.coef * self.unit
        return coef

    @cached_property
    def theta(self) -> Array:
        """The coefficients of standardised features [d, k], with the intercepts as a last row where there are any."""
        if self.model.intercept is None:
            return self.coef.T
        return np.concatenate([self.coef.T, (self.model.intercept + self.model.coef @ self.centre)[None]])

    def features(self, x: Array) -> Array:
        """A standardised row in the model's features."""
        row: Array = self.centre + self.unit * x
        return row

    def standardised(self, x: Array) -> Array:
        """A row of the model's features, standardised."""
        row: Array = (x - self.centre) / self.unit
        return row

    def standardised_gradient(self, G: Array, *, sizes: bool = False) -> Array:
        """A gradient in the model's coefficients [d (+1), k] as one in ``theta``.

        With ``sizes`` the entries are sizes of errors, which add up instead of cancelling.
        """
        if self.model.intercept is None:
            scaled: Array = G / self.unit[:, None]
            return scaled
        shift = self.centre[:, None] * G[-1]
        moved = G[:-1] + np.abs(shift) if sizes else G[:-1] - shift
        return np.concatenate([moved / self.unit[:, None], G[-1:]])

    # -- the equations ------------------------------------------------------------------------------------------------

    def gradient(self, guess: Any) -> tuple[Array, float]:
        """G [d (+1), k] of the known records, and the unknown record's weight, if its label is ``guess``."""
        _, own = self.model.class_weights(self.raw_y, guess)
        return self.standardised_gradient(self.plain_gradient(guess)), self.unknown_weight * own

    def plain_gradient(self, guess: Any) -> Array:
        """G in the model's own coefficients."""
        class_weights, _ = self.model.class_weights(self.raw_y, guess)
        theta, rows = self.model.theta, self._plain_augmented
        slopes = (self.s * class_weights)[:, None] * self.model.slope(rows @ theta, self.model.encode(self.raw_y))
        return rows.T @ slopes + self.model.penalties(self.s.sum() + self.unknown_weight) * theta

    @property
    def _plain_augmented(self) -> Array:
        return self.X if self.model.intercept is None else np.column_stack([self.X, np.ones(len(self.X))])

    @property
    def freedom(self) -> int:
        """How many more equations there are than unknowns."""
        size, k = self.theta.shape
        columns = k - 1 if self.model.family == "softmax" else k
        unknowns = self.X.shape[1] + (0 if self.model.discrete else k)
        return max(0, int(size * columns - unknowns))

    def centred(self, E: Array) -> Array:
        """A random leftover as the family can have one: softmax gradients sum to zero over the classes."""
        return E - E.mean(axis=1, keepdims=True) if self.model.family == "softmax" else E

    @cached_property
    def rounding(self) -> Array:
        """The size of rounding errors in each entry of G [d (+1), k], from the sums that made it.

        The coefficients themselves are rounded, so terms count before they cancel in the linear predictor.
        """
        theta, rows = self.model.theta, np.abs(self._plain_augmented)
        terms = rows @ np.abs(theta) + np.abs(self.model.encode(self.raw_y)) + 1
        sizes = rows.T @ (self.s[:, None] * terms) + self.model.penalties(self.s.sum()) * np.abs(theta)
        return _EPS * self.standardised_gradient(sizes, sizes=True)

    def typical_gradient(self) -> float:
        """The median norm of a known record's own gradient."""
        slopes = self.model.slope(self.augmented @ self.theta, self.model.encode(self.raw_y))
        return float(np.median(np.linalg.norm(self.augmented, axis=1) * np.linalg.norm(slopes, axis=1)))

    def guesses(self, label: Any) -> list[Any]:
        """The labels that the unknown record may have: the given one, each class, or None where it is not discrete."""
        if not self.model.discrete:
            return [label]
        return [label] if label is not None else self.model.classes.tolist()


def solve(
    eq: Equations, label: Any = None, *, G: Array | None = None, among: list[Any] | None = None
) -> list[Solution]:
    """Every solution, best first. For simulations ``G`` replaces the left-over gradient, and ``among`` the labels."""
    if eq.model.intercept is None:
        from divulge.informed.linear.no_intercept import solve_without_intercept

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
            if eq.model.class_weight is None and found[-1].misfit <= CERTAIN * float(np.linalg.norm(left)):
                return found[-1:]  # G does not depend on the label, and only one label has this slope
        same = np.asarray(eq.raw_y).reshape(-1) == guess
        found.append(refine(eq, left, s, (eq.rows[same] if same.any() else eq.rows).mean(axis=0), guess))
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
    eta = (np.append(x, 1.0) @ eq.theta)[None]
    with np.errstate(over="ignore"):
        Y = (eq.model.mean(eta) - (r / s) / eq.model.weight(eta))[0]
    misfit = float(np.linalg.norm(G + np.outer(np.append(x, 1.0), r)))
    return Solution(x, eq.model.decode(Y), r, misfit, G)


# -- refinement -------------------------------------------------------------------------------------------------------


def refine(eq: Equations, G: Array, s: float, x: Array, guess: Any, *, steps: int = 40) -> Solution:
    """Least squares for x in G + s x r(x, guess)^T = 0 by Levenberg-Marquardt."""
    Y = eq.model.encode(np.asarray([guess]))

    def propose(x: Array, r: Array, damping: float) -> Array:
        return _clip(eq, x + _normal_step(eq, G, s, x, r, damping))

    fit = levenberg_marquardt(
        _clip(eq, x), lambda x: _misfit(eq, G, s, x, Y), propose, damping=0.0,
        eased=lambda damping: damping / 5 if damping > 1e-8 else 0.0, raised=lambda damping: max(1e-3, damping * 8),
        proposals=steps, most_damping=1e8, settled=_SETTLED, level=_SETTLED,
    )  # fmt: skip
    return Solution(fit.point, guess, fit.state, fit.cost, G)


def _misfit(eq: Equations, G: Array, s: float, x: Array, Y: Array) -> tuple[float, Array]:
    point = _point(eq, x)
    with np.errstate(over="ignore", invalid="ignore"):
        r = s * eq.model.slope((point @ eq.theta)[None], Y)[0]
        value = float(np.linalg.norm(G + point[:, None] * r))
    return (value if math.isfinite(value) else math.inf), r


def _normal_step(eq: Equations, G: Array, s: float, x: Array, r: Array, damping: float) -> Array:
    """The damped Gauss-Newton step, by the Woodbury identity on (|r|^2 + damping) I + B M B^T."""
    point = _point(eq, x)
    D = s * slope_jacobian(eq.model, point @ eq.theta) @ eq.coef  # [k, d]: how r moves with x
    F = G + point[:, None] * r
    gradient = F[: len(x)] @ r + (point @ F) @ D
    length, size, k = float(point @ point), float(r @ r), len(r)
    scale = size + damping * (size + length * float(np.vdot(D, D)) / len(x))
    B = np.vstack([x, r @ D, D])
    core = B @ B.T
    core[0, 1] += scale
    core[1, 0] += scale
    core[range(2, k + 2), range(2, k + 2)] += scale / max(length, 1e-12)
    step: Array = (_solved(core, B @ gradient) @ B - gradient) / max(scale, 1e-300)
    return step


def _solved(matrix: Array, right: Array) -> Array:
    """The solution, or the least squares solution of a matrix that is singular or nearly so."""
    try:
        found = np.asarray(np.linalg.solve(matrix, right), dtype=np.float64)
    except np.linalg.LinAlgError:
        found = np.array([np.nan])
    if np.isfinite(found).all():
        return found
    return np.asarray(np.linalg.lstsq(matrix, right, rcond=None)[0], dtype=np.float64)


def slope_jacobian(model: LinearModel, eta: Array) -> Array:
    """The derivative [k, k] of the slope in the linear predictor, for the families with discrete targets."""
    mean = model.mean(eta[None])[0]
    if model.family == "softmax":
        jacobian: Array = np.diag(mean) - np.outer(mean, mean)
        return jacobian
    return np.diag(mean * (1 - mean)) if model.family == "logistic" else np.eye(len(mean))


def _point(eq: Equations, x: Array) -> Array:
    return x if eq.model.intercept is None else np.append(x, 1.0)


def _clip(eq: Equations, x: Array) -> Array:
    if eq.bounds is None:
        return x
    low, high = (eq.standardised(np.full(len(x), bound)) for bound in eq.bounds)
    clipped: Array = np.clip(x, low, high)
    return clipped

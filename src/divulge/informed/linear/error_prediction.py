"""What error to expect of a rebuilt record: the same attack on simulated leftovers.

A released model is never quite at its optimum. What its solver left over, E, is the attack's error. E is not known, but
its size is: from refits of the estimator on the known records, from the equations' own misfit, and from rounding. The
attack is run again on the gradient that the rebuilt record would have left, with such leftovers added.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from divulge.core.errors import AttackFailed
from divulge.core.progress import report
from divulge.informed.linear.equations import Equations, Solution, solve
from divulge.informed.linear.models import Array, LinearModel, read
from divulge.informed.linear.preprocessing import Preprocessing
from divulge.informed.linear.scale import column_spread

if TYPE_CHECKING:
    from collections.abc import Sequence

_ALIKE = 0.1  # standard deviation of log spreads below which the columns' units are alike
_DRAWS = 4  # simulated leftovers drawn from the equations' own misfit, and from rounding


@dataclass(frozen=True)
class ExpectedError:
    """The error of the same attack on simulated leftovers, in units of each column's spread."""

    mean: float
    """The geometric mean of the mean squared errors."""
    worst: float
    """The largest of them."""
    columns: Array
    """The largest error of each column [d], in the units of the known rows."""
    basis: str
    """Where the leftovers came from."""

    def or_larger(self, other: ExpectedError) -> ExpectedError:
        """The larger of two expectations."""
        basis = self.basis if self.mean >= other.mean else other.basis
        return ExpectedError(
            max(self.mean, other.mean), max(self.worst, other.worst), np.maximum(self.columns, other.columns), basis
        )


def leftovers(final: Any, eq: Equations, refits: int, seed: int) -> list[Array]:
    """The gradients that the estimator's solver leaves over when fitted to the known records without one of them.

    They are in the model's own coefficients.
    """
    if isinstance(final, LinearModel) or refits < 1 or len(eq.X) < 2:
        return []
    rng = np.random.default_rng(seed)
    found = []
    for turn in range(refits):
        keep = np.arange(len(eq.X)) != rng.integers(len(eq.X))
        report("refitting", turn, refits)
        model = _fit(final, eq.X[keep], eq.raw_y[keep], eq.s[keep])
        if model is not None and model.theta.shape == eq.model.theta.shape:
            other = Equations(model, eq.X[keep], eq.raw_y[keep], eq.s[keep], 0.0, None)
            found.append(other.plain_gradient(None))
    return found


def evenness(eq: Equations, samples: list[Array]) -> float:
    """How leftovers grow with the spread of a column: the exponent of the least-squares line, between 0 and 1.

    1 where there are no leftovers above rounding, which is as large as the numbers that are rounded.
    """
    plain = dataclasses.replace(eq, evenness=0.0)
    sizes = [np.linalg.norm(plain.standardised_gradient(E)[: eq.X.shape[1]], axis=1) for E in samples]
    floor = np.linalg.norm(plain.rounding[: eq.X.shape[1]], axis=1)
    if not sizes or float(np.median(np.mean(sizes, axis=0) / np.maximum(floor, 1e-300))) < 1:
        return 1.0
    left = np.log(np.maximum(np.sqrt(np.mean(np.square(sizes), axis=0)), floor) + 1e-300)
    spread = np.log(column_spread(eq.X))
    if len(spread) < 2 or float(spread.std()) < _ALIKE:
        return 1.0
    slope = float(np.cov(spread, left, bias=True)[0, 1] / spread.var())
    return min(1.0, max(0.0, slope))


@dataclass(frozen=True)
class Retrained:
    """The estimator trained again with the rebuilt record."""

    apart: float
    """How far it ends from the released model, over the distance of a model trained without the record."""
    leftovers: list[Array]
    """What its solver left over, with the record and without it."""


def retrain(final: Any, eq: Equations, features: Array, y: Any) -> Retrained:
    """Train again on the known records with the rebuilt record, and without it.

    Distances are in coefficients of standardised features. An estimator that cannot be fitted again is infinitely far.
    """
    labels = np.asarray(eq.raw_y)
    target = np.asarray(y, dtype=labels.dtype).reshape(1, *labels.shape[1:])
    larger = np.vstack([eq.X, features]), np.concatenate([labels, target]), np.append(eq.s, eq.unknown_weight)
    fits = [(_fit(final, *data), data) for data in (larger, (eq.X, labels, eq.s))]
    thetas, found = [], []
    for model, (X, own, s) in fits:
        if model is None or model.theta.shape != eq.model.theta.shape:
            continue
        thetas.append(dataclasses.replace(eq, model=model).theta)
        found.append(eq.standardised_gradient(Equations(model, X, own, s, 0.0, None).plain_gradient(None)))
    if len(thetas) < len(fits):
        return Retrained(0.0 if thetas else math.inf, found)
    moved = float(np.linalg.norm(thetas[1] - eq.theta))
    return Retrained(float(np.linalg.norm(thetas[0] - eq.theta)) / moved if moved > 0 else 0.0, found)


def _fit(final: Any, X: Array, y: Any, weights: Array) -> LinearModel | None:
    """The estimator fitted again; None where too few records, or a single class, are left."""
    from sklearn.base import clone

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return read(clone(final).fit(X, y, sample_weight=None if bool((weights == 1).all()) else weights))
        except ValueError:
            return None


def expected_error(
    eq: Equations,
    space: Preprocessing,
    best: Solution,
    labels: Sequence[Any],
    samples: list[Array],
    label: Any,
    seed: int,
) -> ExpectedError:
    """Simulate the attack on ``best`` with leftovers like ``samples``, like the misfit, and like rounding."""
    rng = np.random.default_rng(seed)
    scale, truth = space.scale, space.back(eq.features(best.x))
    if eq.model.intercept is None and eq.model.discrete:
        label = best.y  # other labels are candidates of their own

    def simulated(draws: list[Array]) -> list[Array]:
        errors = []
        for E in draws:
            try:
                again = solve(eq, label, G=best.model_gradient() + E, among=list(labels) or None)
            except AttackFailed:
                errors.append(scale)
                continue
            rows = np.stack([space.back(eq.features(one.x)) for one in again])
            apart = np.square((rows - truth) / scale).mean(axis=1)
            chosen = 0 if eq.model.intercept is not None else int(apart.argmin())  # so are other roots
            errors.append(np.abs(rows[chosen] - truth))
        return errors

    groups: list[tuple[str, list[Array]]] = []
    if samples:
        groups.append((f"{len(samples)} refits", simulated(_similar(samples))))
    if eq.freedom > 1 or (eq.freedom == 1 and not samples):
        spread = float(np.linalg.norm(best.G - best.model_gradient())) / np.sqrt(eq.freedom)
        draws = [spread * eq.centred(rng.standard_normal(best.G.shape)) for _ in range(_DRAWS)]
        groups.append(("the equations' misfit", simulated(draws)))
    rounding = simulated([eq.rounding * eq.centred(rng.standard_normal(best.G.shape)) for _ in range(_DRAWS)])
    groups = groups or [("rounding alone (raw coefficients are taken as the optimum)", rounding)]
    means = [_geometric_mean([_scaled(error, scale) for error in errors]) for _, errors in groups]
    every = [error for _, errors in groups for error in errors] + rounding
    floor = _geometric_mean([_scaled(error, scale) for error in rounding])
    return ExpectedError(
        max(_geometric_mean(means), floor),
        max(_scaled(error, scale) for error in every),
        np.max(every, axis=0),
        " and ".join(name for name, _ in groups),
    )


def _scaled(error: Array, scale: Array) -> float:
    return float(np.square(error / scale).mean())


def _geometric_mean(values: list[float]) -> float:
    return float(np.exp(np.mean(np.log(np.maximum(values, 1e-300)))))


def _similar(samples: list[Array]) -> list[Array]:
    """Leftovers as probable as the given ones: either sign, and sums of two."""
    pairs = [(a + b) / np.sqrt(2) for a, b in itertools.combinations(samples, 2)]
    pairs += [(a - b) / np.sqrt(2) for a, b in itertools.combinations(samples, 2)]
    return [sign * E for E in [*samples, *pairs] for sign in (1.0, -1.0)]

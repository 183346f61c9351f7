"""The missing record of a generalised linear model, in closed form (Balle 2022, section III).

At the optimum the gradients of all records sum to zero, so what the known records leave over, G, is minus the unknown
record's own gradient: G = -x r^T, r the slope of its loss. With an intercept the last row of G is -r itself, and
x = -G r / |r|^2. Two departures from the printed Theorem 1: its y is wrong (y = g^-1(<x, theta>) - r here, with r the
slope), and scikit-learn does not penalise the intercept. Without an intercept (Theorem 8, here for every family) x is
a multiple of G and its length solves an equation in one unknown with up to two roots; both are returned, ranked.

A released model is never quite at its optimum, and what its solver left over, E, is the attack's error: about
(|E| / |r|)^2. Two things are done about it. Where the label is one of a few, r is a function of x, so G holds more
equations than unknowns and x is refined by least squares. And the error is predicted: the same attack is run on
simulated leftovers, taken from refits of the estimator on the known records and from the equations' own misfit.
"""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from divulge.errors import AttackFailed, InvalidInput, NonFiniteInput, UnsupportedModel, WrongShape
from divulge.informed import checks, linear_solve
from divulge.informed.linear_models import Array, LinearModel, read
from divulge.informed.linear_solve import Equations, Solution
from divulge.informed.record import Candidate, Record
from divulge.progress import report
from divulge.whole import checked_seed

_DRAWS = 4  # simulated leftovers drawn from the equations' own misfit


def glm(
    estimator: Any,
    known_X: Any,
    known_y: Any,
    *,
    label: Any = None,
    unknown: int = 1,
    sample_weight: Any = None,
    unknown_weight: float = 1.0,
    bounds: tuple[float, float] | None = None,
    refits: int = 2,
    seed: int = 0,
) -> Record:
    """Rebuild the record that ``estimator`` was trained on besides ``known_X`` and ``known_y``.

    ``estimator`` is a fitted scikit-learn estimator, a Pipeline that ends in one, or a LinearModel of raw
    coefficients. ``label`` is the unknown record's target, where it is known (it must be, for a regression without
    intercept). ``unknown`` is the number of unknown records; more than one can be solved for a softmax model only.
    ``refits`` is how often the estimator is fitted again, on the known records, to predict the error.
    """
    started, seed = time.perf_counter(), checked_seed(seed)
    steps, final = _split(estimator)
    model = read(final)
    X, y = _checked(known_X, known_y)
    space = _Space.of(steps, X)
    weights = _weights(sample_weight, unknown_weight, len(X))
    rows = space.forward(X)
    if rows.shape[1] != model.coef.shape[1]:
        raise WrongShape(f"The model has {model.coef.shape[1]} features; the known rows have {rows.shape[1]}.")
    equations = Equations(model, rows, y, weights, float(unknown_weight), bounds if not steps else None)
    if unknown != 1:
        return _several(equations, space, unknown, label, started, seed)
    if label is not None and model.discrete and label not in model.classes.tolist():
        raise InvalidInput(f"The label {label!r} is none of the model's classes.")
    solutions = linear_solve.solve(equations, label)
    leftovers = _leftovers(final, equations, refits, seed)
    return _finish(equations, space, solutions, leftovers, label, started, seed)


def _finish(
    equations: Equations,
    space: _Space,
    solutions: list[Solution],
    leftovers: list[Array],
    label: Any,
    started: float,
    seed: int,
) -> Record:
    best = solutions[0]
    x = space.back(best.x)
    predicted, basis = _predict(equations, space, solutions, leftovers, label, seed)
    facts: dict[str, Any] = {}
    leak = space.from_scaler
    if leak is not None:
        facts["scaler_alone_error"] = float(np.square(leak - x).mean())
        if space.scaler_error < predicted:  # no solver stands between the record and the mean
            x, predicted, basis = leak, space.scaler_error, "the rounding of the scaler's mean"
            if equations.model.discrete:
                best = _labelled(equations, space.forward(leak[None])[0], label)
    guess = float(np.square(space.known - space.known.mean(axis=0)).mean())
    notes = [*space.notes, f"error predicted from {basis}"]
    candidates = tuple(Candidate(torch.from_numpy(space.back(s.x)), s.y, s.misfit) for s in solutions)
    twin = np.flatnonzero(np.square(space.known - x).mean(axis=1) <= max(predicted, 1e-12 * (1 + guess)))
    if len(twin) and predicted <= 1e-2 * guess:
        notes.append(f"the record is also known row {twin[0]}: the known set holds the target, or a copy of it")
    nearest = checks.nearest(torch.from_numpy(space.known))
    reason = _doubt(equations, best, leftovers, predicted, guess, nearest)
    facts |= {"slope": best.r.tolist(), "guessing_the_mean": guess, "predicted_from": basis}
    return Record(
        torch.from_numpy(x), best.y, predicted, "glm", time.perf_counter() - started, seed, not reason, reason,
        candidates if equations.model.intercept is None else (), notes=tuple(notes), facts=facts,
    )  # fmt: skip


def _labelled(eq: Equations, x: Array, label: Any) -> Solution:
    """The label that fits a record whose row is known."""
    named = (linear_solve.refine(eq, *eq.gradient(guess), x, guess, steps=0) for guess in eq.guesses(label))
    return min(named, key=lambda solution: solution.misfit)


def _doubt(
    eq: Equations, best: Solution, leftovers: list[Array], predicted: float, guess: float, nearest: float
) -> str:
    """Why the answer should not be believed, if it should not."""
    leftover = max((float(np.linalg.norm(E)) for E in leftovers), default=0.0)
    size = float(np.linalg.norm(best.G))
    if size <= 5 * leftover <= 1e-5 * eq.typical_gradient() or size <= 3 * eq.rounding(best.G):
        raise AttackFailed(
            "The known records alone already explain this model: the known set contains the target, or the target's "
            "loss had no slope left; nothing can be rebuilt."
        )
    if predicted > checks.TRUST * min(guess, nearest):
        text = (
            f"the model was not trained far enough: predicted error {predicted:.2g}, guessing the mean {guess:.2g}, "
            f"the nearest known record {nearest:.2g}"
        )
        if size <= 2 * leftover:
            text += "; what the known records leave over is no larger than what the solver leaves (or they hold it all)"
        return text
    return ""


# -- predicting the error ---------------------------------------------------------------------------------------------


def _predict(
    eq: Equations, space: _Space, solutions: list[Solution], leftovers: list[Array], label: Any, seed: int
) -> tuple[float, str]:
    """The (geometric mean of the) error of the same attack on simulated leftovers, and where those came from."""
    best = solutions[0]
    labels = list(dict.fromkeys(s.y for s in solutions))[:3] if eq.model.discrete else None
    truth = space.back(best.x)

    def simulated(samples: list[Array]) -> float:
        errors = []
        for E in samples:
            again = linear_solve.solve(eq, label, G=best.model_gradient() + E, among=labels)[0]
            errors.append(float(np.square(space.back(again.x) - truth).mean()))
        return float(np.exp(np.mean(np.log(np.maximum(errors, 1e-300)))))

    estimates, basis = [], []
    if leftovers:
        estimates.append(simulated(_likenesses(leftovers)))
        basis.append(f"{len(leftovers)} refits")
    freedom = eq.freedom
    if freedom > 0:
        spread = float(np.linalg.norm(best.G - best.model_gradient())) / np.sqrt(freedom)
        rng = np.random.default_rng(seed)
        draws = [spread * eq.centred(rng.standard_normal(best.G.shape)) for _ in range(_DRAWS)]
        if freedom > 1 or not estimates:
            estimates.append(simulated(draws))
            basis.append("the equations' misfit")
    if not estimates:
        floor = eq.rounding(best.G) / float(np.linalg.norm(best.r))
        return floor**2, "rounding alone (raw coefficients are taken as the optimum)"
    return float(np.exp(np.mean(np.log(np.maximum(estimates, 1e-300))))), " and ".join(basis)


def _likenesses(leftovers: list[Array]) -> list[Array]:
    """Leftovers as likely as the given ones: either sign, and sums of two."""
    pairs = [(a + b) / np.sqrt(2) for a, b in itertools.combinations(leftovers, 2)]
    pairs += [(a - b) / np.sqrt(2) for a, b in itertools.combinations(leftovers, 2)]
    return [sign * E for E in [*leftovers, *pairs] for sign in (1.0, -1.0)]


def _leftovers(final: Any, eq: Equations, refits: int, seed: int) -> list[Array]:
    """The gradient that the estimator's solver leaves over when fitted to the known records less one."""
    if isinstance(final, LinearModel) or refits < 1:
        return []
    from sklearn.base import clone

    rng = np.random.default_rng(seed)
    found = []
    for turn in range(refits):
        keep = np.arange(len(eq.X)) != rng.integers(len(eq.X))
        report("refitting", turn, refits)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fit = clone(final).fit(eq.X[keep], eq.raw_y[keep], sample_weight=_or_none(eq.s[keep]))
        other = Equations(read(fit), eq.X[keep], eq.raw_y[keep], eq.s[keep], 0.0, None)
        if other.model.theta.shape == eq.model.theta.shape:
            found.append(other.gradient(None)[0])
    return found


def _or_none(weights: Array) -> Array | None:
    return None if bool((weights == 1).all()) else weights


# -- what comes in ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Space:
    """The preprocessing in front of the linear model, and the way back through it."""

    known: Array
    forward: Callable[[Array], Array]
    back: Callable[[Array], Array]
    notes: tuple[str, ...] = ()
    from_scaler: Array | None = None
    """The record as the scaler's mean gives it away."""

    @property
    def scaler_error(self) -> float:
        """What rounding leaves of it: the mean and the sum of n rows are good to n units in the last place."""
        return float(np.square(np.finfo(float).eps * len(self.known) * np.abs(self.known).max(axis=0)).mean())

    @classmethod
    def of(cls, steps: list[tuple[str, Any]], X: Array) -> _Space:
        steps = [(name, step) for name, step in steps if step is not None and step != "passthrough"]
        for name, step in steps:
            if not hasattr(step, "inverse_transform"):
                raise UnsupportedModel(
                    f"The pipeline's step {name!r} ({type(step).__name__}) cannot be undone; give the last step itself "
                    "with the known rows already transformed, to get the record in its features."
                )

        def forward(rows: Array) -> Array:
            for _, step in steps:
                rows = np.asarray(step.transform(rows), dtype=np.float64)
            return rows

        def back(row: Array) -> Array:
            rows = row[None]
            for _, step in reversed(steps):
                rows = np.asarray(step.inverse_transform(rows), dtype=np.float64)
            first: Array = rows[0]
            return first

        notes: tuple[str, ...] = ()
        leak = None
        if steps and type(steps[0][1]).__name__ == "StandardScaler" and steps[0][1].mean_ is not None:
            scaler = steps[0][1]
            seen = np.asarray(scaler.n_samples_seen_)
            if np.all(seen == len(X) + 1):
                leak = scaler.mean_ * seen - X.sum(axis=0)
                notes = ("the fitted StandardScaler alone gives the record away: n * mean - sum of the known rows",)
        return cls(X, forward, back, notes, leak)


def _split(estimator: Any) -> tuple[list[tuple[str, Any]], Any]:
    if hasattr(estimator, "steps") and hasattr(estimator, "named_steps"):
        return list(estimator.steps[:-1]), estimator.steps[-1][1]
    return [], estimator


def _checked(known_X: Any, known_y: Any) -> tuple[Array, Any]:
    X = np.asarray(known_X, dtype=np.float64)
    y = np.asarray(known_y)
    if X.ndim != 2 or len(X) == 0:
        raise WrongShape(f"The known rows come as [n, d] with n at least 1; got shape {X.shape}.")
    if len(y) != len(X):
        raise WrongShape(f"There are {len(X)} known rows but {len(y)} known targets.")
    numbers = y.dtype.kind in "fiub"
    if not np.isfinite(X).all() or (numbers and not np.isfinite(y.astype(np.float64)).all()):
        raise NonFiniteInput("The known records hold NaN or infinite values; give them as they were used in training.")
    return X, y


def _weights(sample_weight: Any, unknown_weight: float, n: int) -> Array:
    if not (np.isfinite(unknown_weight) and unknown_weight > 0):
        raise InvalidInput(f"unknown_weight is a positive number; got {unknown_weight!r}.")
    if sample_weight is None:
        return np.ones(n)
    weights = np.asarray(sample_weight, dtype=np.float64).reshape(-1)
    if len(weights) != n:
        raise WrongShape(f"There are {n} known rows but {len(weights)} sample weights; the unknown record's is apart.")
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise InvalidInput("Sample weights are finite and at least 0.")
    return weights


def _several(eq: Equations, space: _Space, unknown: int, labels: Any, started: float, seed: int) -> Record:
    from divulge.informed.linear_several import solve_several

    if unknown < 1:
        raise InvalidInput(f"unknown is a whole number of at least 1; got {unknown!r}.")
    report("solving for several records")
    xs, ys, misfit, unique = solve_several(eq, unknown, labels, seed)
    x = torch.from_numpy(np.stack([space.back(row) for row in xs]))
    reason = "" if unique else "the equations were not solved to their precision; other records fit as well"
    return Record(
        x, ys, float("nan"), "glm", time.perf_counter() - started, seed, unique, reason,
        notes=space.notes, facts={"misfit": misfit, "unknown": unknown},
    )  # fmt: skip

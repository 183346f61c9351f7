"""The missing record of a generalised linear model, in closed form (Balle 2022, section III).

At the optimum the gradients of all records sum to zero, so what the known records leave over, G, is minus the unknown
record's own gradient: G = -x r^T, r the slope of its loss. With an intercept the last row of G is -r itself, and
x = -G r / |r|^2. Two departures from the printed Theorem 1: its y is wrong (y = g^-1(<x, theta>) - r here, with r the
slope), and scikit-learn does not penalise the intercept. Without an intercept (Theorem 8, here for every family) x is
a multiple of G and its length solves an equation in one unknown, usually with two roots. Both explain the model equally
well; the record is trusted only where all roots but one can be excluded (``linear.plausibility``).

A released model is never quite at its optimum, and what its solver left over is the attack's error. Two things are done
about it. Where the label is one of a few, r is a function of x, so G holds more equations than unknowns and x is
refined by least squares. And the error is predicted by simulation (``linear.error_prediction``). Errors are measured in
units of each column's spread over the known rows, so that no column counts for more because its unit is small.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from divulge.core.errors import AttackFailed, InvalidInput, NonFiniteInput, WrongShape
from divulge.core.progress import report
from divulge.core.validation import checked_interval, checked_number, checked_seed, checked_whole
from divulge.informed import checks
from divulge.informed.linear.equations import Equations, Solution, refine, solve
from divulge.informed.linear.error_prediction import ExpectedError, evenness, expected_error, leftovers, retrain
from divulge.informed.linear.models import Array, LinearModel, read
from divulge.informed.linear.plausibility import Plausibility
from divulge.informed.linear.preprocessing import Preprocessing, without_gaps
from divulge.informed.result import Candidate, Record
from divulge.training.recipe import ArrayLike

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

Label = float | int | str | list[float] | list[int] | list[str]
"""A target value, a class label, or a list of labels for several unknown records."""
_FITS = 3.0  # times the best misfit, or the leftovers: a solution with no more explains the model as well,
_NATS, _CORRELATED = 6.0, 4.0  # or one whose likelihood is within so many nats, if so many leftovers move together
_COMPARED = 6  # solutions, at most, that are compared
_FEW = 5  # known records: with fewer, neither a column's spread nor the solver's leftover can be estimated
_REPEATS = 0.1  # of the effect of the record: so near, training again has ended at the released model
_NAMED = 8  # columns, at most, that a reason names
_EXACT = 1e-6  # a predicted error so small is accepted nevertheless


def glm(
    estimator: BaseEstimator | LinearModel,
    known_X: ArrayLike,
    known_y: ArrayLike,
    *,
    label: Label | None = None,
    unknown: int = 1,
    sample_weight: ArrayLike | None = None,
    unknown_weight: float = 1.0,
    bounds: tuple[float, float] | None = None,
    refits: int = 2,
    seed: int = 0,
) -> Record:
    """Rebuild the record that a linear model was trained on besides the known records.

    Parameters
    ----------
    estimator : fitted scikit-learn estimator, Pipeline or LinearModel
        The released model: linear or ridge regression, ridge classification, logistic or softmax regression, Poisson,
        gamma or Tweedie regression; a Pipeline that ends in one, after a ColumnTransformer too; or raw coefficients.
    known_X : array [n, d] or DataFrame
        All training rows but the unknown ones; a DataFrame of mixed columns for a ColumnTransformer.
    known_y : array [n]
        Their targets.
    label : target, class label or list of labels, optional
        The unknown record's target, where it is known. A regression without an intercept needs it.
    unknown : int, default 1
        The number of unknown records. Several can be solved for a softmax model with an intercept only.
    sample_weight : array [n], optional
        The known records' weights in training.
    unknown_weight : float, default 1.0
        The unknown record's weight.
    bounds : (float, float), optional
        The range of every feature.
    refits : int, default 2
        How often the estimator is fitted again to the known records, to predict the error.
    seed : int, default 0
        Seed of the simulations that predict the error.

    Returns
    -------
    Record
        The rebuilt record. ``predicted_error`` and ``error`` are in units of each column's spread (``scale``).
        ``candidates`` lists every record that explains the model as well. ``trusted`` is False where more than one of
        them remains, or where the predicted error is not well below the distance to the nearest known record. For a
        ColumnTransformer ``row`` has the record by column.

    Raises
    ------
    AttackFailed
        The known records already explain the model, or the equations have no solution.
    InvalidInput
        An argument does not make sense.
    UnsupportedModel
        The estimator has no closed form, or a step of the pipeline cannot be undone.

    Examples
    --------
    >>> import divulge
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import Ridge
    >>> X, y = load_diabetes(return_X_y=True, scaled=False)
    >>> record = divulge.informed.glm(Ridge().fit(X, y), X[1:], y[1:])
    >>> record.trusted, record.error(X[0]) < 1e-12, round(record.y)
    (True, True, 151)
    """
    started, seed = time.perf_counter(), checked_seed(seed)
    estimator = getattr(estimator, "best_estimator_", estimator)  # of a search, fitted to all records
    steps, final = _split(estimator)
    if steps and hasattr(steps[0][1], "transformers_"):
        if unknown != 1 or bounds is not None:
            raise InvalidInput("For a ColumnTransformer one record is unknown at a time, and bounds are not taken.")
        return _of_table(
            estimator, known_X, known_y, label=label, sample_weight=sample_weight, unknown_weight=unknown_weight,
            refits=refits, seed=seed,
        )  # fmt: skip
    model = read(final)
    steps, known_X = without_gaps(steps, _in_order(estimator, known_X))
    X, y = _checked(known_X, known_y)
    space = Preprocessing.of(steps, X)
    weights = _weights(sample_weight, unknown_weight, len(X))
    rows = space.forward(X)
    if rows.shape[1] != model.coef.shape[1]:
        raise WrongShape(f"The model has {model.coef.shape[1]} features; the known rows have {rows.shape[1]}.")
    bounds = None if bounds is None else checked_interval("bounds", bounds)
    equations = Equations(model, rows, y, weights, float(unknown_weight), bounds if not steps else None)
    if unknown != 1:
        return _several(equations, space, unknown, label, started, seed)
    if label is not None and model.discrete and label not in model.classes.tolist():
        raise InvalidInput(f"The label {label!r} is none of the model's classes.")
    samples = leftovers(final, equations, refits, seed)
    equations = replace(equations, evenness=evenness(equations, samples))
    samples = [equations.standardised_gradient(E) for E in samples]
    choice = _Choice(equations, space, Plausibility(X, bounds), samples, label, seed)
    return _record(choice, solve(equations, label), final if refits > 0 else model, started)


class _Choice:
    """Which of the solutions is the record, what error to expect of it, and which others remain."""

    def __init__(
        self, eq: Equations, space: Preprocessing, plausible: Plausibility, samples: list[Array], label: Any, seed: int
    ) -> None:
        self.eq, self.space, self.plausible, self.samples = eq, space, plausible, samples
        self.label, self.seed = label, seed
        self.leftover = max([float(np.linalg.norm(E)) for E in samples], default=0.0)

    def row(self, solution: Solution) -> Array:
        """A solution in the units of the known rows."""
        return self.space.back(self.eq.features(solution.x))

    def expected(self, solution: Solution, labels: list[Any], samples: list[Array] | None = None) -> ExpectedError:
        """The error of the same attack with leftovers like ``samples`` (those of the refits by default)."""
        samples = self.samples if samples is None else samples
        return expected_error(self.eq, self.space, solution, labels, samples, self.label, self.seed)

    def fitting(self, solutions: list[Solution]) -> list[Solution]:
        """The distinct solutions that explain the model as well as the best one, best first."""
        one_output = self.eq.model.intercept is None and self.eq.theta.shape[1] == 1
        limit = math.inf  # without an intercept every root is exact
        if not one_output:
            freedom, rounding = self.eq.freedom, float(np.linalg.norm(self.eq.rounding))
            if freedom > 1:  # the misfit itself measures what the solver left over
                limit = min(_FITS, math.exp(_NATS * _CORRELATED / freedom)) * max(solutions[0].misfit, rounding)
            else:
                limit = _FITS * max(solutions[0].misfit, self.leftover, rounding)
        kept: list[Solution] = []
        for solution in solutions:
            same = any(
                one.y == solution.y and float(np.square(one.x - solution.x).mean()) <= 1e-6 * (1 + np.mean(one.x**2))
                for one in kept
            )
            if solution.misfit <= limit and not same:
                kept.append(solution)
        return kept[:_COMPARED]

    def __call__(self, fits: list[Solution]) -> tuple[Solution, ExpectedError, list[Solution]]:
        """The most plausible solution, its expected error, and the others that cannot be excluded."""
        labels = list(dict.fromkeys(one.y for one in fits))[:3] if self.eq.model.discrete else []
        expected = [self.expected(one, labels) for one in fits]
        if len(fits) == 1:
            return fits[0], expected[0], []
        remaining = [
            place for place, one in enumerate(fits)
            if not self.plausible.excluded(self.row(one), expected[place].columns)
        ]  # fmt: skip
        chosen = remaining[0] if remaining else 0
        others = remaining[1:] if remaining else list(range(1, len(fits)))
        return fits[chosen], expected[chosen], [fits[place] for place in others]


def _record(choice: _Choice, solutions: list[Solution], final: Any, started: float) -> Record:
    """The record that the solutions leave; ``final`` is trained again with it."""
    eq, space = choice.eq, choice.space
    _refuse_explained(eq, solutions[0], choice.leftover)
    fits = choice.fitting(solutions)
    best, expected, others = choice(fits)
    again = None if isinstance(final, LinearModel) else retrain(final, eq, eq.features(best.x), best.y)
    if again is not None and again.leftovers:
        expected = expected.or_larger(choice.expected(best, [best.y] if eq.model.discrete else [], again.leftovers))
    x, predicted, basis = choice.row(best), expected.mean, expected.basis
    away = [float(np.square((choice.row(one) - x) / space.scale).mean()) for one in others]
    loss = float(space.loss.mean()) if space.lost and space.loss is not None else 0.0
    predicted, worst = max([predicted, *away]) + loss, max([expected.worst, *away]) + loss
    facts: dict[str, Any] = {"lost": space.lost} if space.lost else {}
    if space.from_scaler is not None:
        facts["scaler_alone_error"] = float(np.square((space.from_scaler - x) / space.scale).mean())
        if space.scaler_error < predicted:  # the mean is exact, whatever the model's solver left over
            x, basis, others, again = space.from_scaler, "the rounding of the scaler's mean", [], None
            predicted = worst = space.scaler_error
            facts.pop("lost", None)
            if eq.model.discrete:
                best = _labelled(eq, space.forward(x[None])[0], choice.label)
    guess, anyway = _without_attack(space)
    reason = _dropped(facts, len(x)) or _doubt(best, others, choice.leftover, predicted, worst, guess, anyway)
    if not reason and len(space.known) < _FEW and worst > _EXACT:
        reason = f"{len(space.known)} known records are too few to judge a predicted error of {predicted:.2g}"
    if not reason and again is not None and again.apart > checks.TRUST:
        reason = f"training again with the record ends {again.apart:.0%} of its effect away from the released model"
    notes = [*space.notes, f"error predicted from {basis}"]
    copies = np.flatnonzero(np.square((space.known - x) / space.scale).mean(axis=1) <= max(predicted, 1e-12))
    if len(copies) and predicted <= 1e-2 * guess:
        notes.append(f"the record is also known row {copies[0]}: the known set holds the target, or a copy of it")
    facts |= {"slope": best.r.tolist(), "guessing_the_mean": guess, "nearest_known": anyway, "predicted_from": basis}
    listed = fits if len(fits) > 1 or eq.model.intercept is None else []
    listed = sorted(listed, key=lambda one: one is not best)
    return Record(
        torch.from_numpy(x), best.y, predicted, not reason,
        tuple(Candidate(torch.from_numpy(choice.row(one)), one.y, one.misfit) for one in listed),
        method="glm", seconds=time.perf_counter() - started, seed=choice.seed, reason=reason, notes=tuple(notes),
        facts=facts, scale=torch.from_numpy(space.scale),
    )  # fmt: skip


def _labelled(eq: Equations, features: Array, label: Any) -> Solution:
    """The label that fits a record whose row is known."""
    x = eq.standardised(features)
    named = (refine(eq, *eq.gradient(guess), x, guess, steps=0) for guess in eq.guesses(label))
    return min(named, key=lambda solution: solution.misfit)


def _without_attack(space: Preprocessing) -> tuple[float, float]:
    """The scaled errors of the mean of the known rows, and of the nearest known row at the median."""
    rows = (space.known - space.known.mean(axis=0)) / space.scale
    guess = float(np.square(rows).mean()) or 1.0  # one known row, or copies of one, have no spread
    nearest = checks.nearest(torch.from_numpy(rows))
    return guess, nearest if math.isfinite(nearest) else guess


def _refuse_explained(eq: Equations, best: Solution, leftover: float) -> None:
    size, rounding = float(np.linalg.norm(best.G)), float(np.linalg.norm(eq.rounding))
    if size <= 5 * leftover <= 1e-5 * eq.typical_gradient() or size <= 3 * rounding:
        raise AttackFailed(
            "The known records alone already explain this model: the known set contains the target, or the target's "
            "loss had no slope left; nothing can be rebuilt."
        )


def _dropped(facts: dict[str, Any], columns: int) -> str:
    """Which columns the steps of a pipeline lose; empty if none."""
    lost = facts.get("lost", [])
    if not lost:
        return ""
    named = ", ".join(map(str, lost[:_NAMED])) + (", ..." if len(lost) > _NAMED else "")
    return (
        f"the steps before the model drop or merge {len(lost)} of {columns} columns ({named}, counted from 0), which "
        "cannot be rebuilt"
    )


def _doubt(
    best: Solution, others: list[Solution], leftover: float, predicted: float, worst: float, guess: float, anyway: float
) -> str:
    """Why the record should not be trusted; empty where it can be."""
    if others:
        cause = "" if len(best.G) == len(best.x) else "the model was not trained far enough to tell labels apart: "
        return (
            f"{cause}{len(others) + 1} records explain this model equally well, and neither bounds, whole-number "
            "columns nor columns of known values exclude all but one; candidates lists them"
        )
    if predicted <= checks.TRUST * min(guess, anyway) and worst <= min(guess, anyway):
        return ""
    text = (
        f"the model was not trained far enough: predicted error {predicted:.2g}, at worst {worst:.2g}, guessing the "
        f"mean {guess:.2g}, the nearest known record {anyway:.2g}, all in units of each column's spread"
    )
    if float(np.linalg.norm(best.G)) <= 2 * leftover:
        text += "; what the known records leave over is no larger than what the solver leaves (or they hold it all)"
    return text


def _of_table(estimator: Any, known_X: Any, known_y: Any, **options: Any) -> Record:
    """The record of a table of mixed columns: solved in the features of the pipeline's ColumnTransformer."""
    from divulge.informed.linear.table_columns import TableColumns

    columns, rest = TableColumns(estimator[0], known_X), estimator[1:]
    found = glm(rest, columns.features, known_y, **options)
    record = columns.record(found)
    if record.trusted and not found.trusted and not _repeats(rest, columns.features, known_y, record, options):
        return replace(record, trusted=False, reason=found.reason)
    return record


def _repeats(estimator: Any, X: Array, known_y: Any, record: Record, options: dict[str, Any]) -> bool:
    """Whether training again with the record ends at the released model, by far nearer than without it."""
    if options["refits"] == 0:
        return False
    steps, final = _split(estimator)
    space, weight = Preprocessing.of(steps, X), float(options["unknown_weight"])
    weights = _weights(options["sample_weight"], weight, len(X))
    equations = Equations(read(final), space.forward(X), np.asarray(known_y), weights, weight, None)
    features = space.forward(np.nan_to_num(record.x.numpy())[None])[0]  # what a step drops may be anything
    again = retrain(final, equations, features, record.y)
    return len(again.leftovers) > 1 and again.apart <= _REPEATS


# -- arguments --------------------------------------------------------------------------------------------------------


def _split(estimator: Any) -> tuple[list[tuple[str, Any]], Any]:
    if hasattr(estimator, "steps") and hasattr(estimator, "named_steps"):
        return list(estimator.steps[:-1]), estimator.steps[-1][1]
    return [], estimator


def _in_order(estimator: Any, known_X: Any) -> Any:
    """The columns of a DataFrame in the order in which the model takes them."""
    names = getattr(estimator, "feature_names_in_", None)
    if names is None or not hasattr(known_X, "columns"):
        return known_X
    lost = [name for name in names if name not in known_X.columns]
    if lost:
        raise WrongShape(f"The known rows lack the columns {', '.join(lost)}.")
    return known_X[list(names)]


def _checked(known_X: ArrayLike, known_y: ArrayLike) -> tuple[Array, Any]:
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


def _weights(sample_weight: ArrayLike | None, unknown_weight: float, n: int) -> Array:
    checked_number("unknown_weight", unknown_weight, above=0)
    if sample_weight is None:
        return np.ones(n)
    weights = np.asarray(sample_weight, dtype=np.float64).reshape(-1)
    if len(weights) != n:
        raise WrongShape(f"There are {n} known rows but {len(weights)} sample weights; the unknown record's is apart.")
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise InvalidInput("Sample weights are finite and at least 0.")
    return weights


def _several(eq: Equations, space: Preprocessing, unknown: int, labels: Any, started: float, seed: int) -> Record:
    from divulge.informed.linear.several_records import solve_several

    checked_whole("unknown", unknown, at_least=1)
    report("solving for several records")
    xs, ys, misfit, determined = solve_several(eq, unknown, labels, seed)
    x = torch.from_numpy(np.stack([space.back(row) for row in xs]))
    reason = "" if determined else "the equations were not solved to their precision; other records fit as well"
    return Record(
        x, ys, float("nan"), determined, method="glm", seconds=time.perf_counter() - started, seed=seed, reason=reason,
        notes=space.notes, facts={"misfit": misfit, "unknown": unknown}, scale=torch.from_numpy(space.scale),
    )  # fmt: skip

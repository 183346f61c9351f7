"""The price of protection, measured: what each epsilon costs in accuracy, and what attacks still get there.

At each epsilon the same training is repeated privately. The model is judged on unseen records, and attacked:
membership, hidden columns, the right record among ten candidates, and where an attack exists, the insider's
reconstruction. Beside every attack stands what is proven at that epsilon. The recommendation for the limits that
somebody accepts is made in two ways, which are kept apart: the largest epsilon at which theorems keep the limits, and
the largest one at which the attacks that ran stayed within them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from divulge import attributes, membership
from divulge.core.errors import InvalidInput
from divulge.core.roc import Estimate, area
from divulge.core.statistics import clopper_pearson
from divulge.core.validation import checked_number, checked_rows, checked_seed, checked_whole
from divulge.oracles import oracle
from divulge.oracles.outputs import label_probabilities
from divulge.protection import inverse_bounds
from divulge.protection.information import Units
from divulge.protection.price_curve import Limits, PriceCurve, PricePoint, Recommendation
from divulge.protection.private_training import OfFunction, OfPipeline, Sides, training_of
from divulge.protection.recommend import Schedule
from divulge.training.private import accounting
from divulge.training.private.preprocessing import Scaling

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0)
CANDIDATES = 10
CLOSE = 0.1
"""A reconstruction counts when its mean squared error is below this part of the variance."""
FEWEST = 30


@dataclass(frozen=True)
class PriceStudy:
    """What :func:`price` measures, point by point, for callers with a deadline."""

    training: Any
    sides: Sides
    limits: Limits
    kappa: float | None
    runs: int
    targets: int
    shadows: int
    seed: int
    hidden_columns: int = 1

    @property
    def fpr(self) -> float:
        """The false positive rate at which membership is measured."""
        return 0.01 if self.limits.membership is None else self.limits.membership[1]

    def point(self, epsilon: float) -> PricePoint:
        """Train, judge and attack at one epsilon."""
        training, sides = self.training, self.sides
        seeds = range(self.seed, self.seed + self.runs)
        models = [training.train(sides.X, sides.y, epsilon, seed) for seed in seeds]
        scores = np.array([_judged(model, sides.unseen, sides.unseen_labels) for model in models])
        risk = self._membership(models[0], epsilon)
        rebuilt, error = self._rebuilt(epsilon)
        accuracy, balanced, auc = (float(mean) for mean in scores.mean(axis=0))
        return PricePoint(
            epsilon, training.noise(epsilon), accuracy, balanced, auc, float(scores[:, 1].std()),
            risk.rates_at(self.fpr), risk.auc, training.proven(self.fpr, epsilon), self._attribute(models[0]),
            risk.candidates(), training.proven(1 / CANDIDATES, epsilon), rebuilt, error,
            None if self.kappa is None else training.proven(self.kappa, epsilon),
        )  # fmt: skip

    def curve(self, points: Sequence[PricePoint], notes: Sequence[str] = ()) -> PriceCurve:
        """The points that were measured, with the recommendation for the limits."""
        ordered = tuple(sorted(points, key=lambda point: point.epsilon))
        why = self.training.why_not_rebuilt
        said = (*notes, *((f"Reconstructions were not tried: {why}",) if why else ()))
        return PriceCurve(
            ordered,
            self.limits,
            _recommended(ordered, self),
            self.training.delta,
            self.fpr,
            _words(self.training),
            said,
        )

    def _membership(self, model: Any, epsilon: float) -> _Risk:
        train = None
        if self.shadows:

            def train(X: Any, y: Any, seed: int) -> Any:
                return self.training.train(X, y, epsilon, seed)

        found = membership.attack(
            model, (self.sides.X, self.sides.y), (self.sides.unseen, self.sides.unseen_labels), train=train,
            shadows=max(1, self.shadows), check_distribution=False, seed=self.seed,
        )  # fmt: skip
        return _Risk(found)

    def _attribute(self, model: Any) -> tuple[str, float, float] | None:
        X, found = self.sides.X, []
        if X.ndim > 2 or len(X) < 2 * FEWEST or not self.hidden_columns:
            return None
        counts = {c: len(torch.unique(X[:1000, c])) for c in range(min(200, X.shape[1]))}
        for column in sorted((c for c, n in counts.items() if n > 1), key=lambda c: counts[c])[: self.hidden_columns]:
            try:
                risk = attributes.attack(model, X[:1000], self.sides.y[:1000], column=column, seed=self.seed)
            except InvalidInput:
                continue
            found.append((str(column), float(risk.advantage), float(risk.advantage.low)))
        return max(found, key=lambda one: one[2], default=None)

    def _rebuilt(self, epsilon: float) -> tuple[Estimate | None, float | None]:
        errors = self.training.rebuilt(epsilon, self.targets, self.seed) if self.targets else None
        if errors is None:
            return None, None
        means = errors.mean(axis=1)
        hits = int((means <= CLOSE).sum())
        return Estimate(hits / len(means), *clopper_pearson(hits, len(means))), float(np.median(means))


@dataclass(frozen=True)
class _Risk:
    """A membership attack, read in the ways that a point needs."""

    found: Any

    @property
    def auc(self) -> float:
        return float(self.found.auc)

    def rates_at(self, fpr: float) -> Estimate | None:
        try:
            return Estimate(*self.found.tpr(fpr))
        except InvalidInput:
            return None

    def candidates(self) -> Estimate:
        """How often a member scores highest among ten candidates, the other nine drawn from the non-members."""
        ordered = np.sort(self.found.non_member_scores)
        low, high = (np.searchsorted(ordered, self.found.scores, side) / len(ordered) for side in ("left", "right"))
        chances = (low**CANDIDATES - high**CANDIDATES) / np.where(low == high, 1, low - high) / CANDIDATES
        chances = np.where(low == high, low ** (CANDIDATES - 1), chances)  # ties are broken at random
        half = 1.96 * chances.std() / math.sqrt(len(chances))
        mean = float(chances.mean())
        return Estimate(mean, max(0.0, mean - half), min(1.0, mean + half))


def price(
    train: Any,
    members: tuple[Any, Any],
    unseen: tuple[Any, Any],
    *,
    limits: Limits | None = None,
    epsilons: Sequence[float] = EPSILONS,
    delta: float | None = None,
    kappa: float | None = None,
    ranges: Any = None,
    scaling: Scaling = "ranges",
    units: Units = "scaled",
    runs: int = 3,
    targets: int = 60,
    shadows: int = 4,
    hidden_columns: int = 1,
    seed: int = 0,
) -> PriceCurve:
    """Measure what protection costs and brings: private training, judged and attacked, along a grid of epsilon.

    Parameters
    ----------
    train : Recipe, estimator or callable
        How the model is trained: a recipe (full batches or mini-batches), a logistic or softmax regression of
        scikit-learn alone or in a pipeline, or a function from ``(X, y, epsilon, seed)`` to a model.
    members, unseen : (array [n, d] or DataFrame, array [n])
        Training records, and records of the same kind that are not trained on, with their classes.
    limits : Limits, optional
        What is accepted; a recommendation is made for it.
    epsilons : sequence of float
        The grid. Training without noise is always added.
    delta : float, optional
        Of (epsilon, delta)-DP; by default a tenth of one over the number of records.
    kappa : float, optional
        The chance of the best blind guess at a record, for the limit on reconstructions.
    ranges : array [d, 2], optional
        Declared ranges of the columns, for estimators. By default those of the unseen records stand in for them.
    scaling : {"ranges", "moments", "quantiles"}, default "ranges"
        How a private pipeline scales its columns.
    units : {"scaled", "data"}, default "scaled"
        Errors of reconstructions count in units of each column's spread, or in the units of the data (for pictures).
    runs : int, default 3
        How often each training is repeated to judge it.
    targets : int, default 60
        Records that the insider tries to rebuild at each epsilon; 0 for none.
    shadows : int, default 4
        Reference models of the membership attack at each epsilon; 0 for the attack without.
    hidden_columns : int, default 1
        Columns that the attack on hidden columns tries, those with the fewest different values first; 0 for none. Each
        costs an imputation without the model, which takes longer than the private training of a linear model.
    seed : int, default 0
        Fixes every random choice. Nothing that is trained here is for release.

    Returns
    -------
    PriceCurve
        The points, the recommendation and a plot.

    Raises
    ------
    InvalidInput
        There are too few records, or they have no classes.
    UnsupportedModel
        There is no private training for this estimator.

    Examples
    --------
    >>> import divulge
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> curve = divulge.protection.price(LogisticRegression(max_iter=5000), (X[:280], y[:280]), (X[280:], y[280:]),
    ...     epsilons=[1.0, 16.0], limits=divulge.protection.Limits((0.05, 0.01)), runs=1, targets=0, shadows=0,
    ...     hidden_columns=0)
    >>> [point.epsilon for point in curve.points]
    [1.0, 16.0, inf]
    >>> round(curve.recommendation.proven, 1)
    2.2
    """
    if hasattr(members[0], "dtypes"):
        from divulge.protection.private_tables import in_numbers

        train, members, unseen = in_numbers(train, members, unseen)
        if ranges is not None and hasattr(train, "view"):
            raise InvalidInput("Ranges are declared for arrays of numbers; of a table the unseen records say them.")
    sides = _sides(members, unseen, classes=hasattr(train, "fit"))
    delta = 1 / (10 * len(sides.X)) if delta is None else checked_number("delta", delta, above=0, below=1)
    for epsilon in epsilons:
        checked_number("epsilon", epsilon, above=0)
    training = training_of(train, sides, delta=delta, ranges=ranges, scaling=scaling, units=units)
    study = PriceStudy(
        training, sides, limits or Limits(), kappa, checked_whole("runs", runs, at_least=1),
        checked_whole("targets", targets, at_least=0), checked_whole("shadows", shadows, at_least=0),
        checked_seed(seed), checked_whole("hidden_columns", hidden_columns, at_least=0),
    )  # fmt: skip
    return study.curve([study.point(epsilon) for epsilon in (*epsilons, math.inf)])


def _sides(members: tuple[Any, Any], unseen: tuple[Any, Any], *, classes: bool) -> Sides:
    """The records; with ``classes`` any labels but fractions become places among them, those of the members first."""
    own, other = (np.asarray(y) for _, y in (members, unseen))
    if classes and "f" not in (own.dtype.kind, other.dtype.kind):
        order = {label: place for place, label in enumerate(dict.fromkeys([*np.unique(own), *np.unique(other)]))}
        own, other = (np.array([order[label] for label in y], dtype=np.int64) for y in (own, other))
    parts = []
    for X, y in ((members[0], own), (unseen[0], other)):
        if y.dtype.kind not in "iubf":
            raise InvalidInput("Labels are whole numbers here; text is taken for scikit-learn estimators.")
        rows, labels = checked_rows(X, what="records"), torch.as_tensor(y)
        if labels.is_floating_point() or len(labels) != len(rows):
            raise InvalidInput("The price of protection is measured for classes: give one whole number a record.")
        if len(rows) < FEWEST:
            raise InvalidInput(f"It takes at least {FEWEST} records of each side; got {len(rows)}.")
        parts += [rows, labels]
    return Sides(*parts)


def _judged(model: Any, rows: Tensor, labels: Tensor) -> tuple[float, float, float]:
    """Accuracy, balanced accuracy and AUC."""
    asked = oracle(model, access="value")
    chances = label_probabilities(asked.value(rows).double())
    known = torch.unique(labels)
    right = (asked.label(rows) == labels).double()
    balanced = torch.stack([right[labels == one].mean() for one in known]).mean()
    columns = range(1, 2) if chances.shape[1] == 2 else range(chances.shape[1])
    areas = [
        area(chances[labels == one, one].numpy(), chances[labels != one, one].numpy()).value
        for one in columns
        if 0 < int((labels == one).sum()) < len(labels)
    ]
    return float(right.mean()), float(balanced), float(np.mean(areas)) if areas else math.nan


def _words(training: Any) -> str:
    if isinstance(training, OfPipeline):
        scaled = {"ranges": "declared ranges", "moments": "private moments", "quantiles": "private quartiles"}
        return f"logistic regression with noise in its weights, columns scaled by {scaled[training.scaling]}"
    if isinstance(training, OfFunction):
        return "a training function of the user"
    schedule = training.schedule
    batches = "full batches" if schedule.full_batch else f"batches of {schedule.sampling_rate:.3g} of the records"
    return f"DP-SGD, {schedule.steps:,} steps, {batches}"


def _recommended(points: Sequence[PricePoint], study: PriceStudy) -> Recommendation:
    limits, kappa = study.limits, study.kappa
    wanted = [] if limits.membership is None else [(limits.membership[1], limits.membership[0])]
    covers, untested = ["membership"] * len(wanted), []
    if limits.reconstruction is not None and kappa is not None and kappa < limits.reconstruction:
        wanted.append((kappa, limits.reconstruction))
        covers.append("reconstruction")
    elif limits.reconstruction is not None:
        blind = "is not known" if kappa is None else f"may be {kappa:.1%}, not below the accepted one"
        untested.append(f"Nothing is proven of reconstructions: the chance of a blind guess {blind}.")
    noise, proven = _proven(wanted, study.training)
    certain, measured = True, None
    for point in points:
        within, sure, open_ones = _within(point, limits)
        untested += open_ones
        if not within:
            break
        certain, measured = certain and sure, point.epsilon
    sure, open_limits = certain and measured is not None, tuple(dict.fromkeys(untested))
    return Recommendation(proven, noise, measured, sure, open_limits, tuple(covers) if proven is not None else ())


def _proven(wanted: list[tuple[float, float]], training: Any) -> tuple[float | None, float | None]:
    """The least noise, and largest epsilon, at which every (blind chance, accepted chance) is kept by a theorem."""
    if not wanted:
        return None, None
    if isinstance(training, OfFunction):
        low = min(inverse_bounds.largest_epsilon(math.log(k), g - training.delta) for k, g in wanted)
        return None, low
    schedule = getattr(training, "schedule", Schedule(1))
    noise = max(
        inverse_bounds.smallest_noise(math.log(k), g, steps=schedule.steps, sampling_rate=schedule.sampling_rate)
        for k, g in wanted
    )
    return noise, accounting.epsilon_spent(
        noise_multiplier=noise, steps=schedule.steps, sampling_rate=schedule.sampling_rate, delta=training.delta
    )


def _within(point: PricePoint, limits: Limits) -> tuple[bool, bool, list[str]]:
    """Whether the attacks at a point stayed within the limits, whether their intervals did, and what was not tried."""
    checks, untested = [], []
    if limits.membership is not None:
        if point.membership is None:
            untested.append("Too few records to measure membership at this false positive rate.")
        else:
            checks.append((point.membership, limits.membership[0]))
    if limits.reconstruction is not None:
        if point.rebuilt is None:
            untested.append("No reconstruction attack ran.")
        else:
            checks.append((point.rebuilt, limits.reconstruction))
    within = all(found.value <= limit for found, limit in checks)
    return within and bool(checks), all(found.high <= limit for found, limit in checks), untested

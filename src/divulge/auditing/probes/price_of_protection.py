"""What does protection cost this model, and which epsilon keeps the limits that its owner accepts? Measured."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from typing import Any

from divulge.auditing.probes.dp_training import CLOSE, _records
from divulge.auditing.probes.membership import sides_of
from divulge.auditing.probes.probe import Probe, TimeUp, deadline, too_short
from divulge.auditing.sentences import price as sentences
from divulge.auditing.target import Target
from divulge.core.errors import DivulgeError
from divulge.protection import priors
from divulge.protection.price_curve import Limits, PriceCurve, PricePoint
from divulge.protection.price_study import FEWEST, PriceStudy
from divulge.protection.private_training import Sides, training_of
from divulge.protection.recommend import Schedule
from divulge.report.findings import Finding, Picture, Table

NAME = "price-of-protection"
EPSILONS = (math.inf, 8.0, 1.0, 64.0, 2.0, 16.0, 4.0, 0.5)
"""The order in which epsilons are measured, after the recommended one: a curve that is cut short still spans them."""
FEWEST_POINTS = 3


def _limits(target: Target) -> Limits:
    return Limits.parse(target.options.accept_membership_tpr, target.options.accept_reconstruction)


def _obstacle(target: Target) -> str:
    if _limits(target) == Limits():
        return "no limits were given; say what you accept with --accept-membership-tpr or --accept-reconstruction."
    if target.guarantee is not None:
        return "the model was trained privately already."
    if target.inputs is None or target.labels is None or target.unseen is None or target.unseen_labels is None:
        return "it takes training records and unseen ones, both with labels."
    if target.labels.is_floating_point() and target.estimator is None:
        return "it is measured for classes."
    if min(len(target.inputs), len(target.unseen)) < FEWEST:
        return f"it takes at least {FEWEST} records of each side."
    if target.recipe is None and target.estimator is None:
        return "it takes the training recipe, or a scikit-learn model."
    try:
        _study(target)
    except DivulgeError as error:
        return str(error)
    return ""


def _study(target: Target, kappa: float | None = None) -> PriceStudy:
    (X, y), (unseen, others) = sides_of(target)
    sides = Sides(X, y.long(), unseen, others.long())
    units: Any = "scaled" if target.shape is None else "data"
    train = target.recipe if target.recipe is not None else target.estimator
    training = training_of(train, sides, delta=1 / (10 * len(X)), units=units)
    linear = target.recipe is None
    alone = not linear and not training.schedule.full_batch  # models of sampled batches train one after the other
    return PriceStudy(
        training, sides, _limits(target), kappa, runs=3 if linear else 1, targets=60 if linear else 20 if alone else 40,
        shadows=4 if linear else 0, seed=target.seed,
    )  # fmt: skip


def _run(target: Target, seconds: float) -> Finding:
    started = time.perf_counter()
    records = _records(target)
    assert records is not None
    points: list[PricePoint] = []
    with suppress(TimeUp), deadline(0.95 * seconds):
        kappa = None
        if len(records) >= 20:
            eta = CLOSE * float(records.var(dim=0).mean())
            kappa = min(1 - 1e-9, priors.estimate_kappa(records, eta, seed=target.seed).upper)
        study = _study(target, kappa)
        proven = study.curve([]).recommendation.proven
        first = [] if proven is None else [proven]
        for epsilon in (*first, *EPSILONS):
            points.append(study.point(epsilon))  # noqa: PERF401  # kept when the time ends
    if len(points) < FEWEST_POINTS:
        raise TimeUp(too_short(seconds))
    left = [e for e in EPSILONS if e not in {point.epsilon for point in points}]
    return _finding(target, study.curve(points, [sentences.cut_short(left)] if left else []), kappa, started)


def _finding(target: Target, curve: PriceCurve, kappa: float | None, started: float) -> Finding:
    chosen = curve.recommendation
    plain = next((point for point in curve.points if math.isinf(point.epsilon)), None)
    at = [p for p in curve.points if chosen.proven is not None and math.isclose(p.epsilon, chosen.proven)]
    best = at[0] if at else None
    measures: dict[str, Any] = {
        "recommended_epsilon_by_theorems": chosen.proven,
        "noise_multiplier": chosen.proven_noise,
        "largest_epsilon_within_limits_as_measured": chosen.measured,
        "measured_with_confidence": chosen.certain,
        "delta": curve.delta,
        "membership_false_positive_rate": curve.fpr,
        "blind_guess_upper_limit": kappa,
    }
    return Finding(
        name=NAME,
        question="protection",
        adversary=None,
        title=sentences.title(curve),
        outcome="succeeded",
        severity="none",
        meaning=sentences.meaning(curve, plain, best),
        certainty=sentences.CERTAINTY,
        measures=measures,
        seconds=time.perf_counter() - started,
        seed=target.seed,
        remedies=tuple(sentences.remedies(curve, plain, best)),
        pictures=(Picture(curve.plot(), sentences.alt(curve), sentences.CAPTION),),
        tables=(Table(sentences.TABLE, sentences.COLUMNS, tuple(_row(point) for point in curve.points)),),
        notes=(*curve.notes, *chosen.untested, *_caveats(target, curve)),
    )


def _caveats(target: Target, curve: PriceCurve) -> tuple[str, ...]:
    others = 0 if target.unseen is None else len(target.unseen)
    return (
        *sentences.by_chance(curve, others),
        *sentences.stand_in(target.recipe is None, target.options.table is not None),
    )


def _row(point: PricePoint) -> tuple[Any, ...]:
    return (
        "none" if math.isinf(point.epsilon) else point.epsilon, point.accuracy, point.balanced_accuracy, point.auc,
        None if point.membership is None else point.membership.value, point.membership_bound,
        None if point.attribute is None else point.attribute[1], point.candidates.value,
        None if point.rebuilt is None else point.rebuilt.value, point.rebuilt_bound,
        *((None, None) if point.membership is None else (point.membership.low, point.membership.high)),
    )  # fmt: skip


def _seconds(target: Target) -> float:
    """From runs on one core: nine points of a recipe, or of a linear model."""
    if target.recipe is None or target.inputs is None:
        return 60.0
    schedule = Schedule.of(target.recipe, len(target.inputs))
    return 30.0 + (0.1 if schedule.full_batch else 0.7) * schedule.steps


PROBES = (Probe(NAME, "The price of protection, measured", _obstacle, _run, _seconds, "none"),)

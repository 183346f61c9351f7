"""``membership.attack``: was this record in the training set? Every member gets a score, and the scores are judged.

The auditor knows who was in (members) and holds records of the same kind that were not (non-members). The attack sees
the model through an oracle, and where it may train, through reference models. Methods: ``calibration`` (one model
alone), ``combined`` (several of those), ``label_only``, ``likelihood_ratios`` (reference models), ``white_box``
(weights).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from divulge.core.errors import InvalidInput
from divulge.core.roc import Estimate, area, rate_at
from divulge.core.validation import checked_choice, checked_number, checked_seed, checked_whole
from divulge.core.workers import Workers
from divulge.membership import calibration, combined, label_only, likelihood_ratios, white_box
from divulge.membership.distribution import distribution_area
from divulge.membership.epsilon import epsilon_of_scores
from divulge.membership.exposure import kinds_of_exposed
from divulge.membership.records import Records, checked_sides
from divulge.membership.reference_models import MOST, References, Train, reference_models
from divulge.membership.result import LEVELS, Membership, exposed_class_of
from divulge.oracles import Access
from divulge.oracles.factory import is_plain_function
from divulge.oracles.local.named_inputs import vocabulary_of
from divulge.oracles.record_scores import Asked, asked

Method = Literal[
    "auto", "loss", "confidence", "quantile", "combined", "rmia", "rmia-offline", "lira", "lira-offline", "label",
    "gradient",
]  # fmt: skip
METHODS: tuple[Method, ...] = get_args(Method)
WITH_REFERENCES: frozenset[str] = frozenset({"rmia", "rmia-offline", "lira", "lira-offline"})
CONFIDENCE = 0.95
MOST_CLASSES = 100
"""Classes and subgroups that a result lists."""
FEWEST_OF_A_CLASS = 30
"""Members and non-members that a class needs for a claim of its own: the interval of its area is asymptotic."""
CLASS_CONFIDENCE = 0.99
"""That no class is called exposed by chance, over all classes together."""
STRONGER = "With train=, reference models make the attack stronger (rmia, lira)."
"""The note of an attack that had no reference models."""
Array = NDArray[np.float64]
Pair = tuple[Array, Array]
Sides = tuple[NDArray[Any], NDArray[Any]]


@dataclass(frozen=True)
class _Case:
    """What an attack has: the model, both sides, and how it may train."""

    model: Asked
    inside: Records
    outside: Records
    train: Train | None
    shadows: int
    seed: int
    workers: Workers
    folder: str | Path | None


@dataclass(frozen=True)
class _Scores:
    """The scores of both sides; and ``blind`` ones, which no record's side went into, for the limit on epsilon."""

    inside: Array
    outside: Array
    blind: Pair


def attack(
    model: object,
    members: object,
    non_members: object,
    *,
    train: Train | None = None,
    method: Method = "auto",
    shadows: int = 8,
    access: Access | None = None,
    groups: object = None,
    delta: float = 1e-5,
    check_distribution: bool = True,
    seed: int = 0,
    workers: Workers = None,
    folder: str | Path | None = None,
) -> Membership:
    """Score every member of a training set, and say how well the scores tell members from others.

    Parameters
    ----------
    model : object
        An oracle, or anything that :func:`divulge.oracle` takes.
    members : (array [n, d], array [n])
        Records that the model was trained on, with their labels or targets.
    non_members : (array [m, d], array [m])
        Records of the same kind that it was not trained on.
    train : Recipe, estimator, callable or None, default None
        How models like this one are trained: a recipe, an estimator to clone, or a function from ``(X, y, seed)`` to a
        model. Without it the methods run that need no reference models.
    method : str, default "auto"
        ``"loss"`` and ``"confidence"`` (thresholds; the second calibrated by class), ``"quantile"`` (a regression on
        the non-members), ``"combined"`` (these three, and gradient where the weights are granted, weighed by what
        tells other members from other non-members), ``"rmia"`` and ``"lira"`` (reference models; with ``-offline`` only
        those that never saw the record), ``"label"`` (decisions only), ``"gradient"`` (weights). ``"auto"`` takes rmia
        with ``train``, label where only labels are shown, and combined otherwise.
    shadows : int, default 8
        Number of reference models.
    access : {"label", "value", "gradient", "weights"}, optional
        What the attacker may ask of a model that is not an oracle yet; by default values, or labels where there is
        nothing else.
    groups : (array [n], array [m]), optional
        A subgroup for each member and each non-member; the result then says how exposed each is.
    delta : float, default 1e-5
        The delta of the lower limit on epsilon.
    check_distribution : bool, default True
        Whether a classifier that never sees the model tries to tell members from non-members.
    seed : int, default 0
        Fixes every random choice.
    workers : int, str or None, default None
        Where reference models are trained, as in ``divulge.workers``.
    folder : str or Path, optional
        Keeps what the reference models answer. A run that was stopped continues from there.

    Returns
    -------
    Membership
        The scores and the figures. It succeeds where the area under the ROC curve lies above one half, and above what
        the rows give away without the model.

    Raises
    ------
    InvalidInput
        If members and non-members overlap, are too few, or have labels of another kind, or the method does not fit.

    Examples
    --------
    >>> import divulge, numpy
    >>> from sklearn.ensemble import RandomForestClassifier
    >>> draw = numpy.random.default_rng(0)
    >>> X, y = draw.normal(size=(400, 5)), draw.integers(0, 2, 400)  # nothing to learn, so it memorises
    >>> forest = RandomForestClassifier(20, random_state=0).fit(X[:200], y[:200])
    >>> risk = divulge.membership.attack(forest, (X[:200], y[:200]), (X[200:], y[200:]))
    >>> risk.success, risk.auc > 0.9, risk.scores.shape
    (True, True, (200,))
    """
    started = time.perf_counter()
    seed = checked_seed(seed)
    checked_choice("method", method, METHODS)
    shadows = checked_whole("shadows", shadows, at_least=1, at_most=MOST)
    checked_number("delta", delta, above=0, below=1)
    inside, outside, kept = checked_sides(members, non_members, getattr(model, "input_dim", None))
    subgroups = _checked_groups(groups, len(inside), members_of(non_members), kept)
    view = asked(model, np.concatenate([inside.y, outside.y]), access=access, **_shape(model, inside))
    case = _Case(view, inside, outside, train, shadows, seed, workers, folder)
    chosen = _chosen(method, case)
    before = view.oracle.ledger.snapshot()
    scores = _scores(chosen, case)
    spent = view.oracle.ledger.snapshot() - before
    shift = distribution_area(inside.X, outside.X, seed) if check_distribution else Estimate(*[float("nan")] * 3)
    left_out = members_of(non_members) - len(kept)
    return _result(
        case, scores, shift, delta=delta, groups=subgroups, method=chosen, ledger=spent,
        notes=_notes(case, chosen, shift, left_out), seconds=time.perf_counter() - started,
    )  # fmt: skip


def _result(
    case: _Case, scores: _Scores, shift: Estimate, *, delta: float, groups: Sides | None, **run: Any
) -> Membership:
    inside, outside, seed = case.inside, case.outside, case.seed
    scored, rest = scores.inside, scores.outside
    auc = area(scored, rest)
    half = np.random.default_rng([seed, 5]).permutation(len(rest))
    by_class = _by_value(scored, rest, inside.y, outside.y) if case.model.task == "classification" else {}
    return Membership(
        scores=scored,
        non_member_scores=rest,
        auc=auc.value,
        auc_interval=(auc.low, auc.high),
        control=area(rest[half[::2]], rest[half[1::2]]),
        distribution=shift,
        epsilon=epsilon_of_scores(*scores.blind, delta=delta, confidence=CONFIDENCE, seed=seed),
        delta=delta,
        confidence=CONFIDENCE,
        by_class=by_class,
        by_group={} if groups is None else _by_value(scored, rest, *groups),
        kinds=kinds_of_exposed(inside, scored, seed),
        seed=seed,
        reason=_reason(auc, shift, by_class),
        facts={
            "reference_models": case.shadows if run["method"] in WITH_REFERENCES else 0,
            "task": case.model.task,
        },
        **run,
    )


# -- the methods ------------------------------------------------------------------------------------------------------


def _chosen(method: Method, case: _Case) -> Method:
    """The method that runs; refuses one that the access or the data does not allow."""
    values = case.model.oracle.allows("value")
    if method == "auto":
        return "label" if not values else "rmia" if case.train is not None else "combined"
    if method in WITH_REFERENCES and case.train is None:
        raise InvalidInput(
            f"{method} compares with reference models; say with train= how they are trained, or choose combined."
        )
    if method != "label" and not values:
        raise InvalidInput(f'{method} needs values, and this oracle shows labels only; choose method="label".')
    if method == "gradient" and not case.model.oracle.allows("weights"):
        raise InvalidInput('gradient needs the weights; open the model with access="weights".')
    return method


def _scores(method: Method, case: _Case) -> _Scores:
    if case.model.task == "regression" and not case.model.oracle.allows("value"):
        raise InvalidInput("Labels alone say nothing about a regression; membership needs its predictions.")
    inside, outside = case.inside, case.outside
    if method == "label":
        spread = outside.X.std(dim=0, correction=0)
        own, others = (label_only.label_scores(case.model, side, spread, case.seed) for side in (inside, outside))
        return _Scores(own, others, (own, others))
    if method == "gradient":
        calibrated, blind = white_box.gradient_scores(case.model, inside, outside)
        return _Scores(*calibrated, blind)
    fits = case.model.fits(inside.X, inside.y), case.model.fits(outside.X, outside.y)
    if method in WITH_REFERENCES:
        compared = _against_references(method, case, np.concatenate(fits))
        return _Scores(*compared, compared)
    return _Scores(*_without_references(method, case, fits), fits)


def _without_references(method: Method, case: _Case, fits: Pair) -> Pair:
    if method == "loss":
        return fits
    standardised = calibration.by_class(*fits, *_classes(case))
    if method == "confidence":
        return standardised
    if method == "quantile":
        return _by_quantile(case, fits)
    found = [fits, standardised]
    if (
        len(case.outside) >= calibration.FEWEST_TO_LEARN
        and len(case.inside) + len(case.outside) <= combined.MOST_RANKED
    ):
        found.append(_by_quantile(case, fits))
    if case.model.oracle.allows("weights"):
        found.append(white_box.gradient_scores(case.model, case.inside, case.outside)[0])
    return combined.weighed(found, case.seed)


def _by_quantile(case: _Case, fits: Pair) -> Pair:
    inside, outside = case.inside, case.outside
    return calibration.by_quantile(*fits, inside.X, outside.X, inside.y, outside.y, case.seed)


def _against_references(method: Method, case: _Case, target: Array) -> Pair:
    assert case.train is not None
    inside, outside = case.inside, case.outside
    pool = Records(torch.cat([inside.X, outside.X]), np.concatenate([inside.y, outside.y]))
    references = reference_models(
        case.train, pool, case.shadows, task=case.model.task, seed=case.seed, workers=case.workers, folder=case.folder
    )
    online = not method.endswith("-offline")
    if method.startswith("lira"):
        scores = likelihood_ratios.lira(target, references, online=online)
    else:
        scale = float(np.median(np.exp(-target[len(inside) :])))
        logs = [log_probability(fits, case.model.task, scale) for fits in (target, references.fits)]
        scores = likelihood_ratios.rmia(logs[0], References(logs[1], references.inside), online=online)
    return scores[: len(inside)], scores[len(inside) :]


def log_probability(fits: Array, task: str, scale: float) -> Array:
    """log p of a record's label from its logit; for a regression the log density of a Gaussian, variance ``scale``."""
    if task == "classification":
        return -np.logaddexp(0.0, -fits)
    return -np.exp(-fits) / (2 * max(scale, np.finfo(float).tiny))


def _classes(case: _Case) -> tuple[Any, Any]:
    if case.model.task == "regression":
        return np.zeros(len(case.inside)), np.zeros(len(case.outside))
    return case.inside.y, case.outside.y


# -- what is said of the scores ---------------------------------------------------------------------------------------


def _by_value(scored: Array, rest: Array, own: Any, others: Any) -> dict[str, dict[str, Any]]:
    """The area, and the rate at 1 %, for each class or subgroup that both sides have."""
    sides = {value: (scored[own == value], rest[others == value]) for value in np.unique(own)[:MOST_CLASSES]}
    judged = max(1, sum(min(map(len, pair)) >= FEWEST_OF_A_CLASS for pair in sides.values()))
    level = 1 - (1 - CLASS_CONFIDENCE) / judged
    found: dict[str, dict[str, Any]] = {}
    for value, (mine, theirs) in sides.items():
        if len(theirs) == 0:
            continue
        judgeable = min(len(mine), len(theirs)) >= FEWEST_OF_A_CLASS
        found[str(value)] = {
            "members": len(mine),
            "non_members": len(theirs),
            "auc": list(area(mine, theirs)),
            "auc_at_least": area(mine, theirs, level).low if judgeable else None,
            "tpr_at_0.01": list(rate_at(mine, theirs, 0.01)) if len(theirs) >= 100 else None,
        }
    return found


def _reason(auc: Estimate, shift: Estimate, by_class: dict[str, dict[str, Any]]) -> str:
    if auc.low <= 0.5 and exposed_class_of(by_class) is None:
        return (
            f"The scores do not tell members from non-members: AUC {auc.value:.3f}, 95 % interval {auc.low:.3f} to "
            f"{auc.high:.3f}."
        )
    if shift.low > 0.5 and auc.value <= shift.high:
        return (
            f"Members and non-members differ by themselves: a classifier that never saw the model reaches an AUC of "
            f"{shift.value:.3f}, and the attack {auc.value:.3f}."
        )
    return ""


def _notes(case: _Case, method: Method, shift: Estimate, left_out: int) -> tuple[str, ...]:
    notes = []
    if left_out:
        notes.append(f"{left_out:,} non-members equal a member in every column and were left out.")
    if shift.low > 0.5:
        notes.append(
            f"Members and non-members differ in distribution: a classifier on the rows alone has an AUC of "
            f"{shift.value:.3f}. The attack measures that difference too; draw both from the same records."
        )
    few = [level for level in LEVELS if len(case.outside) * level < 1]
    if few:
        notes.append(
            f"{len(case.outside):,} non-members are too few for a false positive rate of {few[0]:g}; that takes "
            f"{round(1 / few[0]):,}."
        )
    if case.train is None and method != "gradient":
        notes.append(STRONGER)
    notes.append("The limit on epsilon holds where chance decided who became a member.")
    return tuple(notes)


# -- what is handed in ------------------------------------------------------------------------------------------------


def members_of(side: Any) -> int:
    """How many records were handed in."""
    return len(side[1])


def _shape(model: object, records: Records) -> dict[str, Any]:
    """A plain function and a model of tokens do not say how many numbers they take; the members do."""
    tokens = isinstance(model, torch.nn.Module) and vocabulary_of(model) is not None
    silent = is_plain_function(model) or (tokens and not hasattr(model, "input_shape"))
    return {"input_shape": (records.X.shape[1],)} if silent else {}


def _checked_groups(groups: Any, members: int, non_members: int, kept: Any) -> Sides | None:
    if groups is None:
        return None
    try:
        own, others = (np.asarray(side) for side in groups)
    except (TypeError, ValueError) as error:
        raise InvalidInput("groups is a pair: a subgroup for each member, and one for each non-member.") from error
    if own.shape != (members,) or others.shape != (non_members,):
        raise InvalidInput(
            f"groups names a subgroup for each of the {members:,} members and {non_members:,} non-members; got "
            f"{own.shape} and {others.shape}."
        )
    return own, others[kept]

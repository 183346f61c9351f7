"""How much noise in training keeps the chance of a reconstruction small, and what does it cost this model?"""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any

import torch
from torch import Tensor

from divulge.auditing import commands
from divulge.auditing.fidelity import balanced
from divulge.auditing.probes.probe import Probe, TimeUp, deadline
from divulge.auditing.remedies import PRIVATE_TRAINING
from divulge.auditing.sentences import protections
from divulge.auditing.target import Target
from divulge.core.errors import DivulgeError
from divulge.oracles import oracle
from divulge.protection import priors
from divulge.protection.guarantee import Guarantee
from divulge.report.findings import Finding, Picture, Table

ACCEPTED = 0.05
"""The chance of a reconstruction that the recommendation accepts."""
CLOSE = 0.1
"""A reconstruction counts when its error is below this part of the data's variance."""
_MOST_RECORDS = 10_000
"""Records of each part of the data, about, from which a blind guess is estimated."""
_SAMPLED_POINTS, _POINTS_SHOWN = 6, 10


def _records(target: Target) -> Tensor | None:
    """Records like the ones to protect, for what an attacker knows of them beforehand.

    A table's columns come in units of their spread: no column counts for more because its unit is small.
    """
    if "records to protect" not in target.memo:  # once: it is asked for several times, and may be large
        target.memo["records to protect"] = _scaled_records(target)
    records: Tensor | None = target.memo["records to protect"]
    return records


def _scaled_records(target: Target) -> Tensor | None:
    known = [part for part in (target.inputs, target.unseen) if part is not None]
    if not known:
        return None
    known = [part[:: max(1, len(part) // _MOST_RECORDS)] for part in known]
    records = known[0] if len(known) == 1 else torch.cat(known)
    if target.shape is not None or len(records) < 2:
        return records
    spread = records.std(dim=0)
    return records / torch.where(spread > 0, spread, torch.ones_like(spread))


def _obstacle(target: Target) -> str:
    records = _records(target)
    if records is None:
        return "no data was given; what an attacker knows beforehand is estimated from it."
    if len(records) < 20:
        return f"{len(records)} records are too few to estimate how well a blind guess does."
    return ""


@dataclasses.dataclass(frozen=True)
class _Needed:
    """Private training that is enough, by every bound; the first is what is recommended."""

    schedule: Any
    kappa: Any
    eta: float
    accepted: float
    delta: float
    names: tuple[str, ...]
    rows: list[Any]

    @property
    def log_kappa(self) -> float:
        return math.log(min(self.kappa.upper, 1 - 1e-9))

    @property
    def noise(self) -> float:
        found: float = self.rows[0].noise_multiplier
        return found

    @property
    def epsilon(self) -> float:
        found: float = self.rows[0].epsilon
        return found

    def measures(self) -> dict[str, Any]:
        return {
            "accepted_error_mse": self.eta,
            "blind_guess_estimate": self.kappa.estimate,
            "blind_guess_upper_limit": self.kappa.upper,
            "blind_guess_ceiling": self.kappa.ceiling,
            "chance_at_most_with_the_ceiling": self.at_ceiling,
            "accepted_chance": self.accepted,
            "training_steps": self.schedule.steps,
            "sampling_rate": self.schedule.sampling_rate,
            "delta": self.delta,
        }

    @property
    def at_ceiling(self) -> float:
        """The chance at this noise if a blind guess is as good as the ceiling allows."""
        from divulge.protection.recommend import TIGHT, guarantees

        ceiling = math.log(min(self.kappa.ceiling, 1 - 1e-9))
        _, gammas = guarantees(self.noise, log_kappa=ceiling, schedule=self.schedule, delta=self.delta, names=(TIGHT,))
        return math.exp(gammas[TIGHT])

    @property
    def command(self) -> str:
        return commands.bound(
            kappa=self.kappa.upper,
            gamma=self.accepted,
            steps=self.schedule.steps,
            sampling_rate=self.schedule.sampling_rate,
            delta=self.delta,
        )


def _needed(target: Target) -> _Needed:
    from divulge.protection import Schedule, required_privacy
    from divulge.protection.recommend import BOUNDS, TIGHT

    X = _records(target)
    assert X is not None
    count = len(X if target.inputs is None else target.inputs)
    eta = CLOSE * float(X.var(dim=0).mean())
    kappa = priors.estimate_kappa(X, eta, error="mse", seed=target.seed)
    accepted = max(target.options.accept_reconstruction or ACCEPTED, min(0.99, 2 * kappa.upper))
    schedule = Schedule() if target.recipe is None else Schedule.of(target.recipe, count)
    names = BOUNDS if schedule.full_batch else (TIGHT,)  # for sampled batches the accountant is slow
    wanted = _Needed(schedule, kappa, eta, accepted, 1 / (10 * count), names, [])
    rows = required_privacy(wanted.log_kappa, accepted, schedule=schedule, delta=wanted.delta, names=names)
    return dataclasses.replace(wanted, rows=list(rows))


def _run(target: Target, seconds: float) -> Finding:
    if target.guarantee is not None:
        with deadline(seconds):
            return _private(target, target.guarantee)
    return _advice(target, seconds)


def _private(target: Target, guarantee: Guarantee) -> Finding:
    """What the training of a private model guarantees. It needs no advice to train privately."""
    started = time.perf_counter()
    X = _records(target)
    assert X is not None
    eta = CLOSE * float(X.var(dim=0).mean())
    kappa = priors.estimate_kappa(X, eta, error="mse", seed=target.seed)
    bound, at_ceiling = (guarantee.bound(min(limit, 1 - 1e-9)) for limit in (kappa.upper, kappa.ceiling))
    epsilon, reason = guarantee.accounted_epsilon, guarantee.reason
    return Finding(
        name=PRIVATE_TRAINING,
        question="protection",
        adversary=None,
        title=protections.private_title(epsilon, guarantee.delta, reason),
        outcome="succeeded",
        severity="none",
        meaning=protections.private_meaning(
            protections.bounded_chance(CLOSE, bound, kappa.upper, kappa.ceiling, at_ceiling), reason
        ),
        certainty=protections.noise_certainty(kappa.records, kappa.guesses, kappa.confidence),
        measures={
            "epsilon": guarantee.epsilon,
            "accounted_epsilon": epsilon,
            "delta": guarantee.delta,
            "noise_multiplier": guarantee.noise_multiplier,
            "training_steps": guarantee.schedule.steps,
            "sampling_rate": guarantee.schedule.sampling_rate,
            "blind_guess_upper_limit": kappa.upper,
            "blind_guess_ceiling": kappa.ceiling,
            "chance_at_most": bound,
            "chance_at_most_with_the_ceiling": at_ceiling,
        },
        seconds=time.perf_counter() - started,
        seed=target.seed,
        command=commands.bound(
            kappa=kappa.upper,
            gamma=bound,
            steps=guarantee.schedule.steps,
            sampling_rate=guarantee.schedule.sampling_rate,
            delta=guarantee.delta,
        ),
        notes=tuple(protections.not_covered(what) for what in guarantee.not_covered),
    )


def _advice(target: Target, seconds: float) -> Finding:
    started = time.perf_counter()
    with deadline(seconds):
        needed = _needed(target)
    price, said = _price_of_noise(target, needed.noise, seconds - (time.perf_counter() - started))
    curves, notes = _curves(needed, seconds - (time.perf_counter() - started))
    accepted, kappa = needed.accepted, needed.kappa
    rows = tuple((row.bound, row.noise_multiplier, row.epsilon) for row in needed.rows)
    tables = [Table("Private training that is enough", ("bound", "noise multiplier", "epsilon"), rows)]
    pictures = []
    if curves is not None:
        words = "Upper bounds on the chance of a reconstruction rise from the blind guess to one as epsilon grows"
        pictures.append(Picture(curves.plot(accepted), words, protections.CURVES))
        tables.append(_bounds_table(curves))
    bounded = protections.bounded_chance(CLOSE, accepted, kappa.upper, kappa.ceiling, needed.at_ceiling)
    kept = protections.noise_remedy(needed.noise, needed.epsilon, needed.delta, accepted, said)
    return Finding(
        name=PRIVATE_TRAINING,
        question="protection",
        adversary=None,
        title=protections.noise_title(needed.epsilon, accepted, kappa.upper, accepted <= ACCEPTED),
        outcome="succeeded",
        severity="none",
        meaning=protections.noise_meaning(needed.noise, said, bounded),
        certainty=protections.noise_certainty(kappa.records, kappa.guesses, kappa.confidence),
        measures={**needed.measures(), **price},
        seconds=time.perf_counter() - started,
        seed=target.seed,
        remedies=(kept,),
        command=needed.command,
        pictures=tuple(pictures),
        tables=tuple(tables),
        notes=notes,
    )


def _curves(needed: _Needed, seconds: float) -> tuple[Any, tuple[str, ...]]:
    """The bounds against epsilon, or None and why they were not drawn."""
    from divulge.protection import bound_curves

    points = 100 if needed.schedule.full_batch else _SAMPLED_POINTS
    try:
        with deadline(seconds):
            return bound_curves(
                needed.log_kappa, schedule=needed.schedule, delta=needed.delta, points=points, names=needed.names
            ), ()
    except TimeUp as error:
        return None, (f"The bounds were not drawn: {error}",)


def _bounds_table(curves: Any) -> Table:
    """The numbers of the curves, thinned out."""
    every = max(1, len(curves.epsilons) // _POINTS_SHOWN)
    rows = zip(curves.epsilons, curves.noises, *curves.log_gammas.values(), strict=True)
    return Table(
        "The chance of a reconstruction is at most",
        ("epsilon", "noise multiplier", *curves.log_gammas),
        tuple((epsilon, noise, *map(math.exp, logs)) for epsilon, noise, *logs in list(rows)[::every]),
    )


def _price_of_noise(target: Target, noise: float, seconds: float) -> tuple[dict[str, Any], str]:
    """The same training once more with this noise: how right it still is on unseen records; nothing without those."""
    from divulge.training import Privacy

    unmeasured = protections.unmeasured_price(noise)
    if target.recipe is None or target.model is None or target.inputs is None or target.labels is None or seconds < 1:
        return {}, unmeasured
    if target.labels.is_floating_point() or target.unseen is None or target.unseen_labels is None:
        return {}, unmeasured
    private = dataclasses.replace(target.recipe, privacy=Privacy(noise_multiplier=noise, noise_seed=target.seed))
    try:
        with deadline(seconds):
            trained = private.train(target.inputs, target.labels)
            now, then = (_accuracies(model, target.unseen, target.unseen_labels) for model in (target.model, trained))
    except DivulgeError:
        return {}, unmeasured
    measures = {
        "accuracy_on_unseen_records": now[0],
        "accuracy_on_unseen_records_if_private": then[0],
        "balanced_accuracy_on_unseen_records": now[1],
        "balanced_accuracy_on_unseen_records_if_private": then[1],
    }
    return measures, protections.measured_price(then[1], now[1])


def _accuracies(model: Any, rows: Tensor, labels: Tensor) -> tuple[float, float]:
    """Accuracy and balanced accuracy."""
    decisions = oracle(model).label(rows)
    return float((decisions == labels.long()).double().mean()), balanced(decisions, labels.long())


def _seconds(target: Target) -> float:
    """From runs on one core: the bounds, and one private training."""
    if target.recipe is None or target.inputs is None:
        return 5.0
    steps: int = target.recipe.epochs * max(1, len(target.inputs) // (target.recipe.batch_size or len(target.inputs)))
    return 10.0 + 5e-3 * steps


PROBES = (Probe(PRIVATE_TRAINING, "How much protection is enough", _obstacle, _run, _seconds, "none"),)

"""How much noise in training is enough? What keeps every attacker's chance of a reconstruction small, and what it costs
this model."""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any

import torch
from torch import Tensor

from divulge.auditing.finding import Finding, Picture, Table
from divulge.auditing.probe import Probe, TimeUp, deadline
from divulge.auditing.target import Target
from divulge.errors import DivulgeError

ACCEPTED = 0.05
"""The chance of a reconstruction that the recommendation accepts."""
CLOSE = 0.1
"""A reconstruction counts when its error is below this part of the data's variance."""
_SAMPLED_POINTS, _POINTS_TOLD = 6, 10


def _records(target: Target) -> Tensor | None:
    """Records like the ones to protect, for what an attacker knows of them beforehand.

    A table's columns come in units of their spread: no column counts for more because its unit is small.
    """
    known = [part for part in (target.inputs, target.unseen) if part is not None]
    if not known:
        return None
    records = torch.cat(known)
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
            "accepted_chance": self.accepted,
            "training_steps": self.schedule.steps,
            "sampling_rate": self.schedule.sampling_rate,
            "delta": self.delta,
        }

    @property
    def command(self) -> str:
        return (
            f"divulge bound --kappa {self.kappa.upper:.4g} --gamma {self.accepted:.4g} --steps {self.schedule.steps} "
            f"--sampling-rate {self.schedule.sampling_rate:.4g} --delta {self.delta:.3g}"
        )


def _needed(target: Target) -> _Needed:
    from divulge.protection import Schedule, enough, priors
    from divulge.protection.page import BOUNDS, TIGHT

    X = _records(target)
    assert X is not None
    count = len(X if target.inputs is None else target.inputs)
    eta = CLOSE * float(X.var(dim=0).mean())
    kappa = priors.estimate_kappa(X, eta, error="mse", seed=target.seed)
    accepted = max(ACCEPTED, min(0.99, 2 * kappa.upper))
    schedule = Schedule() if target.recipe is None else Schedule.of(target.recipe, count)
    names = BOUNDS if schedule.full_batch else (TIGHT,)  # for sampled batches the accountant is slow
    wanted = _Needed(schedule, kappa, eta, accepted, 1 / (10 * count), names, [])
    rows = enough(wanted.log_kappa, accepted, schedule=schedule, delta=wanted.delta, names=names)
    return dataclasses.replace(wanted, rows=list(rows))


def _run(target: Target, seconds: float) -> Finding:
    started = time.perf_counter()
    with deadline(seconds):
        needed = _needed(target)
    price, told = _price_of_noise(target, needed.noise, seconds - (time.perf_counter() - started))
    curves, notes = _curves(needed, seconds - (time.perf_counter() - started))
    accepted, kappa = needed.accepted, needed.kappa
    rows = tuple((row.bound, row.noise_multiplier, row.epsilon) for row in needed.rows)
    tables = [Table("Private training that is enough", ("bound", "noise multiplier", "epsilon"), rows)]
    pictures = []
    if curves is not None:
        words = "Upper bounds on the chance of a reconstruction rise from the blind guess to one as epsilon grows"
        pictures.append(
            Picture(curves.plot(accepted), words, "What no attacker can exceed, against the privacy spent.")
        )
        tables.append(_bounds_table(curves))
    return Finding(
        name="protection-needed",
        question="protection",
        adversary=None,
        title=f"Private training at epsilon {needed.epsilon:.3g} would keep any reconstruction below a {accepted:.0%} "
        "chance" + (f" (a blind guess has up to {kappa.upper:.0%})" if accepted > ACCEPTED else ""),
        outcome="succeeded",
        severity="none",
        meaning=f"Trained privately with noise multiplier {needed.noise:.3g}, no attacker whatever rebuilds a record "
        f"to within {CLOSE:.0%} of the data's variance with a chance above {accepted:.1%}; a blind guess has at "
        f"most {kappa.upper:.2%}. {told}",
        certainty="Proven (Balle et al. 2022, section VII; Hayes et al. 2023), given the chance of a blind guess, "
        f"which is estimated from {kappa.records:,} records with {kappa.confidence:.0%} confidence.",
        measures={**needed.measures(), **price},
        seconds=time.perf_counter() - started,
        seed=target.seed,
        remedies=(
            f"Private training with noise multiplier {needed.noise:.3g} (epsilon {needed.epsilon:.3g} at delta "
            f"{needed.delta:.2g}): proven to keep the chance of a reconstruction below {accepted:.1%}. {told}",
        ),
        command=needed.command,
        pictures=tuple(pictures),
        tables=tuple(tables),
        notes=notes,
    )


def _curves(needed: _Needed, seconds: float) -> tuple[Any, tuple[str, ...]]:
    """The bounds against epsilon, or None and why they were not drawn."""
    from divulge.protection import page

    points = 100 if needed.schedule.full_batch else _SAMPLED_POINTS
    try:
        with deadline(seconds):
            return page(
                needed.log_kappa, schedule=needed.schedule, delta=needed.delta, points=points, names=needed.names
            ), ()
    except TimeUp as error:
        return None, (f"The bounds were not drawn: {error}",)


def _bounds_table(curves: Any) -> Table:
    """The numbers of the curves, thinned out."""
    every = max(1, len(curves.epsilons) // _POINTS_TOLD)
    rows = zip(curves.epsilons, curves.noises, *curves.log_gammas.values(), strict=True)
    return Table(
        "The chance of a reconstruction is at most",
        ("epsilon", "noise multiplier", *curves.log_gammas),
        tuple((epsilon, noise, *map(math.exp, logs)) for epsilon, noise, *logs in list(rows)[::every]),
    )


def _price_of_noise(target: Target, noise: float, seconds: float) -> tuple[dict[str, Any], str]:
    """The same training once more with this noise: the decisions that it still gets right, where it can be repeated."""
    from divulge.training import Privacy, evaluate

    unmeasured = f"What it costs in accuracy: train with Privacy(noise_multiplier={noise:.3g}) and audit the result."
    if target.recipe is None or target.model is None or target.inputs is None or target.labels is None or seconds < 1:
        return {}, unmeasured
    private = dataclasses.replace(target.recipe, privacy=Privacy(noise_multiplier=noise, noise_seed=target.seed))
    try:
        with deadline(seconds):
            trained = private.train(target.inputs, target.labels)
            now, then = (evaluate(m, target.inputs, target.labels).accuracy for m in (target.model, trained))
    except DivulgeError:
        return {}, unmeasured
    if now is None or then is None:
        return {}, unmeasured
    told = f"Measured price: one private run of the same recipe gets {then:.1%} of the training records right"
    measures = {"accuracy_on_training_records": now, "accuracy_on_training_records_if_private": then}
    return measures, f"{told} (this model {now:.1%})."


PROBES = (Probe("protection-needed", "How much protection is enough", _obstacle, _run, share=1.0),)

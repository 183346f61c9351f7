"""How much protection is enough? The noise in training that keeps every attacker's chance of a reconstruction small,
with what it costs this model; and the guards at an endpoint, each with what it leaves and what it costs."""

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
FIDELITY = 0.9
"""A copy that decides alike this often is a copy; guards and budgets are judged by it."""
HARMLESS = 0.02
"""A guard that changes more decisions than this is not recommended."""
QUERIES, COUNTS = 300, (30, 100, 300)
STEPS, JUDGES = 500, 500
_SAMPLED_POINTS, _POINTS_TOLD = 6, 10
Measured = dict[str, tuple[Any, list[Any]]]
"""The price of each guard and what each attack got behind it (``protection.endpoint``); "" is no guard."""


def _records(target: Target) -> Tensor | None:
    """Records like the ones to protect, for what an attacker knows of them beforehand."""
    known = [part for part in (target.inputs, target.unseen) if part is not None]
    return torch.cat(known) if known else None


# -- noise in training ------------------------------------------------------------------------------------------------


def _obstacle(target: Target) -> str:
    records = _records(target)
    if records is None:
        return "no data was given; what an attacker knows beforehand is estimated from it."
    if len(records) < 20:
        return f"{len(records)} records are too few to estimate how well a blind guess does."
    return ""


def _run(target: Target, seconds: float) -> Finding:
    from divulge.protection import Schedule, enough, page, priors
    from divulge.protection.page import BOUNDS, TIGHT

    started = time.perf_counter()
    X = _records(target)
    assert X is not None
    count = len(X if target.inputs is None else target.inputs)
    with deadline(seconds):
        eta = CLOSE * float(X.var(dim=0).mean())
        kappa = priors.estimate_kappa(X, eta, error="mse", seed=target.seed)
        log_kappa = math.log(min(kappa.upper, 1 - 1e-9))
        accepted = max(ACCEPTED, min(0.99, 2 * kappa.upper))
        schedule = Schedule() if target.recipe is None else Schedule.of(target.recipe, count)
        delta = 1 / (10 * count)
        names = BOUNDS if schedule.full_batch else (TIGHT,)  # for sampled batches the accountant is slow
        rows = enough(log_kappa, accepted, schedule=schedule, delta=delta, names=names)
    noise, epsilon = rows[0].noise_multiplier, rows[0].epsilon
    assert noise is not None
    price, told = _price_of_noise(target, noise, seconds - (time.perf_counter() - started))
    points = 100 if schedule.full_batch else _SAMPLED_POINTS
    curves, notes = None, []
    try:
        with deadline(seconds - (time.perf_counter() - started)):
            curves = page(log_kappa, schedule=schedule, delta=delta, points=points, names=names)
    except TimeUp as error:
        notes.append(f"The bounds were not drawn: {error}")
    words = "Upper bounds on the chance of a reconstruction rise from the blind guess to one as epsilon grows"
    return Finding(
        name="protection-needed",
        question="protection",
        adversary=None,
        title=f"Private training at epsilon {epsilon:.3g} would keep any reconstruction below a {accepted:.0%} chance"
        + (f" (a blind guess has up to {kappa.upper:.0%})" if accepted > ACCEPTED else ""),
        outcome="succeeded",
        severity="none",
        meaning=f"Trained privately with noise multiplier {noise:.3g}, no attacker whatever rebuilds a record to "
        f"within {CLOSE:.0%} of the data's variance with a chance above {accepted:.1%}; a blind guess has at "
        f"most {kappa.upper:.2%}. {told}",
        certainty="Proven (Balle et al. 2022, section VII; Hayes et al. 2023), given the chance of a blind guess, "
        f"which is estimated from {kappa.records:,} records with {kappa.confidence:.0%} confidence.",
        measures={
            "accepted_error_mse": eta,
            "blind_guess_estimate": kappa.estimate,
            "blind_guess_upper_limit": kappa.upper,
            "accepted_chance": accepted,
            "training_steps": schedule.steps,
            "sampling_rate": schedule.sampling_rate,
            "delta": delta,
            **price,
        },
        seconds=time.perf_counter() - started,
        seed=target.seed,
        remedies=(
            f"Private training with noise multiplier {noise:.3g} (epsilon {epsilon:.3g} at delta {delta:.2g}): proven "
            f"to keep the chance of a reconstruction below {accepted:.1%}. {told}",
        ),
        command=f"divulge bound --kappa {kappa.upper:.4g} --gamma {accepted:.4g} --steps {schedule.steps} "
        f"--sampling-rate {schedule.sampling_rate:.4g} --delta {delta:.3g}",
        pictures=(Picture(curves.plot(accepted), words, "What no attacker can exceed, against the privacy spent."),)
        if curves is not None
        else (),
        tables=(
            Table(
                "Private training that is enough",
                ("bound", "noise multiplier", "epsilon"),
                tuple((row.bound, row.noise_multiplier, row.epsilon) for row in rows),
            ),
            *([_bounds_table(curves)] if curves is not None else []),
        ),
        notes=tuple(notes),
    )


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


# -- guards at the endpoint -------------------------------------------------------------------------------------------


def _guards_obstacle(target: Target) -> str:
    if not target.grants("value"):
        return f"the access granted ({target.access}) shows no numbers to guard."
    if target.guards:
        return f"the guards in front of it ({target.guards}) are what the other findings measured."
    if target.address.startswith(("http://", "https://")):
        return "it is remote, and every guard would ask it anew; rehearse with divulge serve --guard on a copy of it."
    if target.inputs is None and target.unseen is None:
        return "no data was given to ask about and to judge copies by."
    if target.labels is not None and target.labels.is_floating_point():
        return "it predicts a quantity; guards are judged by decisions."
    return ""


def _run_guards(target: Target, seconds: float) -> Finding:
    from divulge.extraction.curves import LearningCurve
    from divulge.protection import endpoint

    started = time.perf_counter()
    scene = _scene(target)
    attacks = _attacks(target)
    measured: Measured = {}
    curve: LearningCurve | None = None
    notes = []
    try:
        with deadline(seconds):
            plain = [endpoint.left_by("", attack, scene) for attack in attacks]
            measured[""] = endpoint.price_of("", scene), plain
            learned = [attack for attack in attacks if attack.startswith("learned")]
            counts = [count for count in COUNTS if count <= len(scene.pool)]
            curve = endpoint.learning_curve("", scene, counts, attacks=learned)
            patience = 3 * max(left.queries for left in plain)
            for name in _guards(target, scene):
                lefts = [endpoint.left_by(name, attack, scene, budget=patience) for attack in attacks]
                measured[name] = endpoint.price_of(name, scene), lefts
    except TimeUp as error:
        if curve is None:  # without it a limit would be too generous
            raise
        notes.append(f"The table ends there: {error}")
    budget = endpoint.query_budget(FIDELITY, exact=measured[""][1], curve=curve)
    finding = _told(target, measured, budget, curve)
    return dataclasses.replace(finding, seconds=time.perf_counter() - started, notes=(*finding.notes, *notes))


def _scene(target: Target) -> Any:
    from divulge.protection.endpoint import Scene

    known = target.unseen if target.unseen is not None else target.inputs
    assert known is not None
    order = torch.randperm(len(known), generator=torch.Generator().manual_seed(target.seed))
    half = len(known) // 2
    pool, judges = known[order[:half]], known[order[half : half + JUDGES]]
    return Scene(target.make_oracle, pool, judges, learned_from=min(QUERIES, half), steps=STEPS, seed=target.seed)


def _attacks(target: Target) -> list[Any]:
    exact = ["exact copy from values"] if target.kind in ("linear", "one hidden ReLU layer") else []
    return [*exact, "learned copy from values", "learned copy from labels"]


def _guards(target: Target, scene: Any) -> list[str]:
    """The guards that are tried: noise in proportion to the answers."""
    spread = float(scene.make("value").value(scene.judges).double().std())
    several = ["top:1"] if target.output_dim > 1 else []
    return ["round:2", f"noise:{0.1 * spread:.2g}", *several, "label"]


def _told(target: Target, measured: Measured, budget: Any, curve: Any) -> Finding:
    best = _recommended(measured)
    stops, fails = _verdicts(measured)
    if best is not None:
        rows = max(left.queries for left in measured[best][1])
        title = f"The guard {best} keeps copies from {rows:,} rows below {FIDELITY:.0%} agreement"
    elif budget.rows is not None:
        tried = "No guard tried keeps" if len(measured) > 1 else "Nothing but a limit was tried that keeps"
        title = f"{tried} copies below {FIDELITY:.0%} agreement; a limit of {budget.rows:,} rows does"
    else:
        title = f"Without any guard no copy reached {FIDELITY:.0%} agreement"
    limit = f"No copy reached {FIDELITY:.0%} agreement within the rows tried here."
    if budget.rows is not None:
        limit = (
            f"Limit a client to {budget.rows:,} rows: before that no attack tried has a copy of {FIDELITY:.0%} "
            f"agreement (the {budget.attack} is there first)."
        )
    return Finding(
        name="protection-at-the-endpoint",
        question="protection",
        adversary=None,
        title=title,
        outcome="succeeded",
        severity="none",
        meaning=limit,
        certainty=f"Each attack was run behind each guard once and judged on up to {JUDGES} inputs it had not asked "
        "about. A client who asks more, or knows more, may do better.",
        measures={"fidelity": FIDELITY, "rows_a_client_may_be_answered": budget.rows, "guard": best},
        seed=target.seed,
        remedies=(limit, *stops),
        command=target.command("audit", "--guard", best or "label", *target.data_option),
        tables=_tables(measured, curve),
        notes=tuple(fails),
    )


def _strongest(lefts: list[Any]) -> Any:
    return max(lefts, key=lambda left: left.score)


def _recommended(measured: Measured) -> str | None:
    """The guard that stops every copy and changes the fewest decisions, if there is one that hardly changes any."""
    enough = {
        name: price.decisions_changed
        for name, (price, lefts) in measured.items()
        if name and _strongest(lefts).score < FIDELITY and price.decisions_changed <= HARMLESS
    }
    return min(enough, key=lambda name: enough[name]) if enough else None


def _verdicts(measured: Measured) -> tuple[list[str], list[str]]:
    """The guards that keep copies below the fidelity, and those that do not, each with its price."""
    stops, fails = [], []
    for name, (price, lefts) in measured.items():
        left = _strongest(lefts)
        told = (
            f"the best attack ({left.attack}, {left.queries:,} rows) agrees in {left.score:.1%}, and "
            f"{price.decisions_changed:.1%} of honest decisions change (measured here)."
        )
        if name and left.score < FIDELITY:
            stops.append(f"Guard {name}: {told}")
        elif name:
            fails.append(f"Guard {name} is not enough: {told}")
    return stops, fails


def _tables(measured: Measured, curve: Any) -> tuple[Table, ...]:
    rows = [
        (name or "none", price.decisions_changed, price.answer_error, left.attack, left.score, left.queries,
         left.note or ("exact" if left.exact else ""))
        for name, (price, lefts) in measured.items() for left in lefts
    ]  # fmt: skip
    columns = (
        "guard",
        "decisions changed",
        "answers changed / spread",
        "attack",
        "same decisions",
        "rows asked",
        "note",
    )
    tables = [Table("Attacks behind each guard", columns, tuple(rows))]
    points = tuple((point.kind, point.queries, point.agreement) for point in curve.points)
    tables.append(Table("Learned copies without a guard", ("from", "rows asked", "same decisions"), points))
    return tuple(tables)


PROBES = (
    Probe("protection-needed", "How much protection is enough", _obstacle, _run, share=1.0),
    Probe("protection-at-the-endpoint", "Guards at the endpoint", _guards_obstacle, _run_guards, share=2.0),
)

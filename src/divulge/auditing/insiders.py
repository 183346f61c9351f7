"""Can someone who knows the rest rebuild one record? The informed insider, against linear models and networks."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from functools import partial
from typing import Any

import torch
from torch import Tensor

from divulge.auditing.finding import Finding, Outcome, Picture, Table, severity_of
from divulge.auditing.probe import Probe, TimeUp, deadline
from divulge.auditing.target import Target
from divulge.errors import DivulgeError, UnsupportedModel
from divulge.report.pictures import picture_grid

RUNS = 20
"""Training runs that an audit spends on one record of a network."""
FEWEST_RUNS = 8
MARGIN = 2.0
"""How much longer a run may take than the plain training did."""
TRIED_EPOCHS = 20
RECORDS = 5
"""How many training records are played as the unknown one, one at a time."""


def _linear_obstacle(target: Target) -> str:
    from divulge.informed.linear_models import read

    if target.estimator is None:
        return "the target is not a fitted scikit-learn model whose coefficients were granted."
    last = target.estimator[-1] if hasattr(target.estimator, "steps") else target.estimator
    try:
        read(last)
    except UnsupportedModel:
        return f"there is no closed form for {type(last).__name__}."
    if target.inputs is None or target.labels is None:
        return "the training data was not given; the insider knows all of it but one record."
    return ""


def _run_linear(target: Target, seconds: float) -> Finding:
    from divulge import informed

    started = time.perf_counter()
    assert target.inputs is not None
    assert target.labels is not None
    rebuilt: list[tuple[int, Tensor, Tensor, float, float]] = []
    reasons = []
    with deadline(seconds):
        for row in _chosen(target):
            keep = torch.arange(len(target.inputs)) != row
            known_X, known_y = target.inputs[keep].numpy(), target.labels[keep].numpy()
            try:
                record = informed.glm(target.estimator, known_X, known_y)
            except DivulgeError as error:
                reasons.append(str(error))
                continue
            truth = target.inputs[row]
            rebuilt.append((row, truth, record.x, record.error(truth), float(record.predicted_error)))
    return _finding(target, "informed-linear", "one equation, no training run", rebuilt, reasons, started)


def _network_obstacle(target: Target) -> str:
    if not target.grants("weights") or target.model is None:
        return f"the access granted ({target.access}) does not include the weights."
    if target.recipe is None:
        return "the training recipe was not given (recipe.json beside the weights); the insider repeats the training."
    if target.inputs is None or target.labels is None:
        return "the training data was not given; the insider knows all of it but one record."
    if target.recipe.widths is None:
        return "the attack through training is for fully connected networks."
    return ""


def _run_network(target: Target, seconds: float) -> Finding:
    started = time.perf_counter()
    assert target.model is not None
    assert target.inputs is not None
    assert target.labels is not None
    run, at_once = MARGIN * _training_seconds(target), _at_once(target.workers)
    rounds = int(seconds / (FEWEST_RUNS * run))
    if rounds == 0:
        raise TimeUp(f"{seconds:.0f} seconds are too few to repeat the training {FEWEST_RUNS} times for a record.")
    rows = _chosen(target)[: rounds * at_once]
    share = seconds / math.ceil(len(rows) / at_once)
    affordable = int(min(RUNS, share / run))
    rebuild = partial(
        _rebuild_one,
        target.recipe,
        target.model,
        target.inputs,
        target.labels,
        affordable,
        share,
        time.time() + seconds,
        target.seed,
    )
    told = target.kept(rebuild, rows, "records", workers=target.workers)
    done = [(row, one) for row, one in zip(rows, told, strict=True) if "reason" not in one]
    rebuilt = []
    for row, one in done:
        truth, guess = target.inputs[row], one["x"].to(torch.float64).reshape(-1)
        rebuilt.append((row, truth, guess, float((guess - truth).square().mean()), one["predicted_error"]))
    reasons = [one["reason"] for one in told if "reason" in one]
    cost = f"{sum(one['training_runs'] for _, one in done) / max(1, len(done)):.0f} repeats of the training a record"
    return _finding(target, "informed-network", cost, rebuilt, reasons, started)


def _rebuild_one(
    recipe: Any, released: Any, inputs: Tensor, labels: Tensor, runs: int, seconds: float, end: float, seed: int,
    row: int,
) -> dict[str, Any]:  # fmt: skip
    """The record that was left out, or why it could not be rebuilt in time; a worker's start is part of the time."""
    from divulge import informed

    keep = torch.arange(len(inputs)) != row
    known = inputs[keep]
    bounds = (float(known.min()), float(known.max()))
    try:
        with deadline(min(seconds, end - time.time())):
            record = informed.direct(
                recipe, released, known, labels[keep], runs=runs, position=row, bounds=bounds, seed=seed
            )
    except DivulgeError as error:
        return {"reason": str(error)}
    return {"x": record.x, "predicted_error": record.predicted_error, "training_runs": record.training_runs}


def _training_seconds(target: Target) -> float:
    """How long one repeat of the training takes, judged by its first steps."""
    brief = dataclasses.replace(target.recipe, epochs=min(target.recipe.epochs, TRIED_EPOCHS))
    started = time.perf_counter()
    brief.train(target.inputs, target.labels)
    repeats: float = target.recipe.epochs / max(1, brief.epochs)
    return (time.perf_counter() - started) * repeats


def _at_once(workers: int | str | None) -> int:
    """How many jobs run at the same time on this machine; a cluster is left to prove itself."""
    return workers if isinstance(workers, int) else (os.cpu_count() or 1) if workers == "all" else 1


def _pictures(target: Target, rebuilt: list[tuple[int, Tensor, Tensor, float, float]]) -> tuple[Picture, ...]:
    """Records above what was rebuilt of them, where they are pictures."""
    if not rebuilt or target.shape is None:
        return ()
    shift = target.mean if target.mean is not None else torch.zeros(target.input_dim, dtype=torch.float64)
    rows = [("record", [r[1] + shift for r in rebuilt]), ("rebuilt", [r[2].reshape(-1) + shift for r in rebuilt])]
    words = f"{len(rebuilt)} training records above what the attack rebuilt of each"
    told = "Training records, and what the insider rebuilt without seeing them."
    return (Picture(picture_grid(rows, target.shape), words, told),)


def _finding(
    target: Target,
    name: str,
    cost: str,
    rebuilt: list[tuple[int, Tensor, Tensor, float, float]],
    reasons: list[str],
    started: float,
) -> Finding:
    assert target.inputs is not None
    rows = []
    better = 0
    for row, _, _, error, predicted in rebuilt:
        nearest = _nearest_other(target.inputs, row)
        better += error < nearest
        rows.append((row, error, predicted, nearest))
    tried = len(rebuilt) + len(reasons)
    outcome: Outcome = "failed" if better == 0 else "succeeded" if better * 2 >= tried else "partly"
    errors = sorted(row[1] for row in rows)
    tables = [
        Table(
            "Each record in turn as the unknown one (mean squared errors)",
            ("record", "error", "error the attack predicts", "nearest other record"),
            tuple(rows),
        )
    ]
    if rebuilt and target.shape is None and target.columns:
        tables.append(_column_table(target, rebuilt[0]))
    return Finding(
        name=name,
        question="informed",
        adversary="insider",
        title=f"{better} of {tried} records rebuilt by someone who knows the others",
        outcome=outcome,
        severity=severity_of("informed", "insider", outcome),
        meaning="Whoever holds the weights and all records but one can compute the missing one."
        if outcome != "failed"
        else "The attack did not come closer to the missing record than the nearest other record is.",
        certainty=f"Each of {tried} records was left out in turn and compared with what was rebuilt; it cost {cost}.",
        measures={
            "records_rebuilt": f"{better} of {tried}",
            "median_error_mse": errors[len(errors) // 2] if errors else math.nan,
            "nearest_other_record_mse": sorted(row[3] for row in rows)[len(rows) // 2] if rows else math.nan,
        },
        seconds=time.perf_counter() - started,
        seed=target.seed,
        remedies=("Release fewer digits: the error of the rebuilt record grows with the rounding of the weights.",)
        if outcome != "failed"
        else (),
        command=_command(target, rows[0][0] if rows else 0),
        pictures=_pictures(target, rebuilt),
        tables=tuple(tables),
        notes=tuple(dict.fromkeys(reasons)),
    )


def _command(target: Target, row: int) -> str:
    known = target.data_option[1:]
    if "--unseen" in known:  # which this command does not ask for
        place = known.index("--unseen")
        known = known[:place] + known[place + 2 :]
    return target.command("informed", *(["--known", *known] if known else []), "--leave-out", row)


def _chosen(target: Target) -> list[int]:
    assert target.inputs is not None
    generator = torch.Generator().manual_seed(target.seed)
    chosen: list[int] = torch.randperm(len(target.inputs), generator=generator)[:RECORDS].tolist()
    return chosen


def _nearest_other(inputs: Tensor, row: int) -> float:
    """Mean squared error of the best guess among the known records: what an insider has without any attack."""
    others = inputs[torch.arange(len(inputs)) != row]
    return float((others - inputs[row]).square().mean(dim=1).min())


def _column_table(target: Target, rebuilt: tuple[int, Tensor, Tensor, float, float]) -> Table:
    row, truth, guess, _, _ = rebuilt
    rows = zip(target.columns, truth.tolist(), guess.reshape(-1).tolist(), strict=False)
    return Table(
        f"Record {row}, column by column",
        ("column", "true", "rebuilt", "error"),
        tuple((name, t, g, abs(t - g)) for name, t, g in rows),
    )


PROBES = (
    Probe("informed-linear", "One record of a linear model, in closed form", _linear_obstacle, _run_linear, share=1.0),
    Probe("informed-network", "One record of a trained network", _network_obstacle, _run_network, share=3.0),
)

"""Can someone who knows the rest rebuild one record? The informed insider, against linear models and networks.

Some training records are left out in turn, as the unknown one. A record that ran out of time says nothing: it counts
neither as rebuilt nor as failed.
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
from functools import partial
from typing import Any

import torch
from torch import Tensor

from divulge.auditing import commands
from divulge.auditing.exposed import most_exposed
from divulge.auditing.probes.mixed_records import in_numbers, own_estimator, own_labels, side_by_side
from divulge.auditing.probes.probe import Probe, TimeUp, deadline, too_short
from divulge.auditing.sentences import records
from divulge.auditing.severity import severity_of
from divulge.auditing.target import Target
from divulge.core.errors import DivulgeError, UnsupportedModel
from divulge.core.plots import picture_grid
from divulge.report.findings import Finding, Outcome, Picture, Table

RUNS = 20
"""Training runs that an audit spends on one record of a network."""
FEWEST_RUNS = 8
MARGIN = 2.0
"""How much longer a run may take than the plain training did."""
TRIED_EPOCHS = 20
RECORDS = 5
"""How many training records are left out, one at a time."""
EXPOSED = 3
"""How many of them are those that membership exposes most; the others are drawn at random."""


@dataclasses.dataclass
class _Attempt:
    """What the attack got for each record."""

    cost: str
    rebuilt: list[tuple[int, Tensor, float, float]] = dataclasses.field(default_factory=list)
    """Row, what was rebuilt, its mean squared error, and the error that the attack predicts."""
    reasons: list[str] = dataclasses.field(default_factory=list)
    """Why the attack failed on a record that it tried to the end."""
    unfinished: int = 0
    """Records that ran out of time."""
    through: str = ""
    """The preprocessing step that gives the records away by itself,"""
    numbers_only: bool = False
    """or the columns of numbers of a table."""
    notes: list[str] = dataclasses.field(default_factory=list)


# -- linear models ----------------------------------------------------------------------------------------------------


def _linear_obstacle(target: Target) -> str:
    from divulge.informed.linear.models import read

    if target.estimator is None:
        return "the target is not a fitted scikit-learn model whose coefficients were granted."
    released = own_estimator(target)
    last = released[-1] if hasattr(released, "steps") else released
    try:
        read(last)
    except UnsupportedModel:
        return f"there is no closed form for {type(last).__name__}."
    return _no_data(target)


def _no_data(target: Target) -> str:
    if target.inputs is None or target.labels is None:
        return "the training data was not given; the insider knows all of it but one record."
    return ""


def _run_linear(target: Target, seconds: float) -> Finding:
    started = time.perf_counter()
    attempt = _Attempt("one equation, and a few fits of the model that predict its error")
    chosen = _chosen(target)
    for place, row in enumerate(chosen):
        try:
            with deadline(seconds - (time.perf_counter() - started)):
                _solve_one(target, row, attempt)
        except TimeUp:
            attempt.unfinished = len(chosen) - place
            break
        except DivulgeError as error:
            attempt.reasons.append(str(error))
    return _finding(target, "informed-linear", attempt, seconds, started)


def _solve_one(target: Target, row: int, attempt: _Attempt) -> None:
    """Leave one row out, compute it from the others, and see whether the preprocessing gives it away by itself."""
    from divulge import informed

    assert target.inputs is not None
    assert target.labels is not None
    keep = torch.arange(len(target.inputs)) != row
    released = own_estimator(target)
    known = target.inputs[keep].numpy() if target.frame is None else target.frame[keep.numpy()]
    record = informed.glm(released, known, own_labels(target)[keep.numpy()])
    guess = in_numbers(target, record)
    if guess.isnan().all():
        attempt.reasons.append(record.reason or "no column of the table could be rebuilt")
        return
    attempt.rebuilt.append((row, guess, _error(target, guess, row), float(record.predicted_error)))
    if "scaler_alone_error" in record.facts or "from_means" in record.facts:
        attempt.through, attempt.numbers_only = "StandardScaler", "scaler_alone_error" not in record.facts
    attempt.notes += [note for note in record.notes if note not in attempt.notes]


# -- networks ---------------------------------------------------------------------------------------------------------


def _network_obstacle(target: Target) -> str:
    if not target.grants("weights") or target.model is None:
        return f"the access granted ({target.access}) does not include the weights."
    if target.recipe is None:
        return "the training recipe was not given (recipe.json beside the weights); the insider repeats the training."
    if target.recipe.widths is None:
        return "the attack through training is for fully connected networks."
    return _no_data(target)


def _run_network(target: Target, seconds: float) -> Finding:
    started = time.perf_counter()
    assert target.inputs is not None
    assert target.labels is not None
    run, at_once = MARGIN * _training_seconds(target), _at_once(target.workers)
    rounds = int(seconds / (FEWEST_RUNS * run))
    if rounds == 0:
        raise TimeUp(too_short(seconds))
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
    results = target.kept(rebuild, rows, "records", workers=target.workers, final=_ended)
    done = [(row, one) for row, one in zip(rows, results, strict=True) if "x" in one]
    runs = sum(one["training_runs"] for _, one in done) / max(1, len(done))
    attempt = _Attempt(records.training_cost(runs))
    for row, one in done:
        guess = one["x"].to(torch.float64).reshape(-1)
        attempt.rebuilt.append((row, guess, _error(target, guess, row), one["predicted_error"]))
    attempt.reasons = [one["reason"] for one in results if "x" not in one and _ended(one)]
    attempt.unfinished = sum(not _ended(one) for one in results)
    return _finding(target, "informed-network", attempt, seconds, started)


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
        return {"reason": str(error), "ended": not isinstance(error, TimeUp)}
    return {"x": record.x, "predicted_error": record.predicted_error, "training_runs": record.training_runs}


def _ended(result: dict[str, Any]) -> bool:
    """Whether the attack on a record ran to its end."""
    return bool(result.get("ended", True))


def _training_seconds(target: Target) -> float:
    """How long one repeat of the training takes, judged by its first steps."""
    brief = dataclasses.replace(target.recipe, epochs=min(target.recipe.epochs, TRIED_EPOCHS))
    started = time.perf_counter()
    brief.train(target.inputs, target.labels)
    repeats: float = target.recipe.epochs / max(1, brief.epochs)
    return (time.perf_counter() - started) * repeats


def _at_once(workers: int | str | None) -> int:
    """How many jobs run at the same time on this machine; one at least, on a cluster."""
    return workers if isinstance(workers, int) else (os.cpu_count() or 1) if workers == "all" else 1


# -- the finding ------------------------------------------------------------------------------------------------------


def _outcome(better: int, attempt: _Attempt) -> Outcome:
    tried = len(attempt.rebuilt) + len(attempt.reasons)
    if better:
        return "succeeded" if better * 2 >= tried else "partly"
    return "inconclusive" if attempt.unfinished else "failed"


def _finding(target: Target, name: str, attempt: _Attempt, seconds: float, started: float) -> Finding:
    assert target.inputs is not None
    tried = len(attempt.rebuilt) + len(attempt.reasons)
    if tried == 0:
        raise TimeUp(too_short(seconds))
    rows = [
        (row, error, predicted, _nearest_other(target, guess, row)) for row, guess, error, predicted in attempt.rebuilt
    ]
    better = sum(error < nearest for _, error, _, nearest in rows)
    outcome = _outcome(better, attempt)
    taken = outcome in ("succeeded", "partly")
    errors = sorted(row[1] for row in rows)
    return Finding(
        name=name,
        question="informed",
        adversary="insider",
        title=records.informed_title(better, tried, attempt.unfinished),
        outcome=outcome,
        severity=severity_of("informed", "insider", outcome),
        meaning=records.informed_meaning(outcome, attempt.through, numbers_only=attempt.numbers_only),
        certainty=records.informed_certainty(tried, attempt.cost),
        measures={
            "records_rebuilt": f"{better} of {tried}",
            "leaks_through": attempt.through or None,
            "median_error_mse": errors[len(errors) // 2] if errors else None,
            "nearest_other_record_mse": sorted(row[3] for row in rows)[len(rows) // 2] if rows else None,
        },
        seconds=time.perf_counter() - started,
        seed=target.seed,
        untested=_untested(attempt) if taken else (),
        command=commands.informed(target, rows[0][0] if rows else 0),
        pictures=_pictures(target, attempt),
        tables=_tables(target, attempt, rows),
        notes=tuple(dict.fromkeys([*attempt.notes, *attempt.reasons, *_exposed_first(target)])),
        worst_record=_worst_record(rows) if taken else "",
    )


def _exposed_first(target: Target) -> tuple[str, ...]:
    first = most_exposed(target)[:EXPOSED]
    return (records.exposed_first(first),) if first else ()


def _worst_record(rows: list[tuple[int, float, float, float]]) -> str:
    """The record that came back best, against the best guess without an attack."""
    row, error, _, nearest = min(rows, key=lambda row: row[1] - row[3])
    return records.worst_rebuilt(row, error, nearest)


def _untested(attempt: _Attempt) -> tuple[str, ...]:
    if not attempt.through:
        return (records.fewer_digits(),)
    return (records.refit_preprocessing(attempt.through, numbers_only=attempt.numbers_only),)


def _tables(target: Target, attempt: _Attempt, rows: list[tuple[int, float, float, float]]) -> tuple[Table, ...]:
    """The errors of each record; and for a table, column by column, with the values only where records are shown."""
    assert target.inputs is not None
    caption = "Each record in turn as the unknown one (mean squared errors, each column in units of its spread)"
    errors = Table(caption, ("record", "error", "error the attack predicts", "nearest other record"), tuple(rows))
    if not attempt.rebuilt or target.shape is not None or not target.columns:
        return (errors,)
    row, guess, _, _ = attempt.rebuilt[0]
    truth, spread = target.inputs[row].tolist(), target.inputs.std(dim=0).tolist()
    columns = list(zip(target.columns, truth, guess.tolist(), spread, strict=False))
    relative = tuple((name, _relative(t, g, s)) for name, t, g, s in columns)
    values = (
        tuple((name, t, g) for name, t, g, _ in columns) if target.frame is None else side_by_side(target, row, guess)
    )
    return (
        errors,
        Table(f"Record {row}, column by column", ("column", "error / spread of the column"), relative),
        Table(f"Record {row}, its values", ("column", "true", "rebuilt"), values, records=True),
    )


def _pictures(target: Target, attempt: _Attempt) -> tuple[Picture, ...]:
    """Records above what was rebuilt of them, where they are pictures."""
    if not attempt.rebuilt or target.shape is None or target.inputs is None:
        return ()
    shift = target.mean if target.mean is not None else torch.zeros(target.input_dim, dtype=torch.float64)
    truth = [target.inputs[row] + shift for row, *_ in attempt.rebuilt]
    rows = [("record", truth), ("rebuilt", [guess + shift for _, guess, *_ in attempt.rebuilt])]
    words = f"{len(attempt.rebuilt)} training records above what the attack rebuilt of each"
    caption = "Training records, and what the insider rebuilt without seeing them."
    return (Picture(picture_grid(rows, target.shape), words, caption, records=True),)


def _chosen(target: Target) -> list[int]:
    """The records most exposed by membership first, then others at random."""
    assert target.inputs is not None
    generator = torch.Generator().manual_seed(target.seed)
    others: list[int] = torch.randperm(len(target.inputs), generator=generator)[:RECORDS].tolist()
    return list(dict.fromkeys([*most_exposed(target)[:EXPOSED], *others]))[:RECORDS]


def _units(target: Target) -> Tensor:
    """What an error in each column is measured in: its spread over the records; 1 for the pixels of a picture."""
    assert target.inputs is not None
    if target.shape is not None or len(target.inputs) < 2:
        return torch.ones(target.input_dim, dtype=torch.float64)
    if "units of records" not in target.memo:  # once: it is asked for with every record, and the table may be large
        spread = target.inputs.std(dim=0)
        target.memo["units of records"] = torch.where(spread > 0, spread, torch.ones_like(spread))
    units: Tensor = target.memo["units of records"]
    return units


def _relative(truth: float, guess: float, spread: float) -> float | None:
    """The error of one column in units of its spread; None where the model does not show the column."""
    if math.isnan(guess):
        return None
    return abs(truth - guess) / spread if spread else abs(truth - guess)


def _error(target: Target, guess: Tensor, row: int) -> float:
    """Mean squared error of a rebuilt record: no column counts for more because its unit is small."""
    assert target.inputs is not None
    away = ((guess - target.inputs[row]) / _units(target)).square()
    return float(away[~guess.isnan()].mean())


def _nearest_other(target: Target, guess: Tensor, row: int) -> float:
    """The error, in the columns that were rebuilt, of the best guess among the known records: without any attack."""
    assert target.inputs is not None
    others = target.inputs[torch.arange(len(target.inputs)) != row]
    if len(others) == 0:
        return math.inf
    away = ((others - target.inputs[row]) / _units(target)).square()
    return float(away[:, ~guess.isnan()].mean(dim=1).min())


def _linear_seconds(target: Target) -> float:
    return 1.0 + 1e-6 * (0 if target.inputs is None else target.inputs.numel())


def _network_seconds(target: Target) -> float:
    """From runs on one core: each record repeats the training some twenty times."""
    if target.recipe is None or target.inputs is None:
        return 60.0
    one: float = 1e-3 * target.recipe.epochs + 2e-10 * target.recipe.epochs * len(target.inputs) * (
        target.parameters or 1
    )
    return 5.0 + RECORDS * RUNS * MARGIN * one


PROBES = (
    Probe("informed-linear", "One record of a linear model, in closed form", _linear_obstacle, _run_linear,
          _linear_seconds, "high"),
    Probe("informed-network", "One record of a trained network", _network_obstacle, _run_network, _network_seconds,
          "high"),
)  # fmt: skip

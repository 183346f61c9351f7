"""Can they get my training table out of the counts that a forest keeps?"""

from __future__ import annotations

from divulge.auditing import commands
from divulge.auditing.probes.probe import Probe
from divulge.auditing.sentences import records
from divulge.auditing.severity import severity_of
from divulge.auditing.target import Target
from divulge.core.errors import AttackFailed, DivulgeError
from divulge.reconstruction.forest.counts import is_forest, read_counts
from divulge.reconstruction.forest.solver import solver_module
from divulge.reconstruction.from_forest import TableMatch
from divulge.report.findings import Finding, Outcome

NAME = "data-from-forest"
MOST = 1_000_000
"""Rows times leaves, at most: so many Booleans take about a gigabyte."""


def _obstacle(target: Target) -> str:
    if target.held is None:
        return f"the access granted ({target.access}) does not include the file of the model."
    if not is_forest(target.held):
        return "it is no random forest or decision tree of scikit-learn, which keeps counts of its training rows."
    if target.inputs is None:
        return "no training data was given to compare the rebuilt table with."
    try:
        counts = read_counts(target.held)
        solver_module()
    except DivulgeError as error:
        return str(error)
    if counts.rows != len(target.inputs):
        return f"the forest was trained on {counts.rows:,} rows, and {len(target.inputs):,} were given."
    if counts.rows * sum(map(len, counts.trees)) > MOST:
        return f"its {counts.rows:,} rows and {sum(map(len, counts.trees)):,} leaves are too many for the solver."
    return ""


def _run(target: Target, seconds: float) -> Finding:
    from divulge import reconstruction

    found = reconstruction.from_forest(target.held, seconds=0.8 * seconds, seed=target.seed)
    if not found.success:
        raise AttackFailed(found.reason)
    match = found.match(target.inputs)
    outcome = _outcome(match)
    return Finding(
        name=NAME,
        question="training-data",
        adversary="holder of the weights",
        title=records.forest_title(outcome, match.error, match.random),
        outcome=outcome,
        severity=severity_of("training-data", "holder of the weights", outcome),
        meaning=records.forest_meaning(outcome),
        certainty=records.forest_certainty(match.shuffled, match.exact_rows, len(found.samples)),
        measures={
            "wrong_cells": match.error,
            "wrong_cells_by_chance": match.random,
            "wrong_cells_with_columns_shuffled": match.shuffled,
            "rows_exact": match.exact_rows,
        },
        seconds=found.seconds,
        seed=target.seed,
        untested=(records.fewer_trees(),) if outcome != "failed" else (),
        command=commands.reconstruct(target),
        notes=found.notes,
    )


def _outcome(match: TableMatch) -> Outcome:
    """Taken with a quarter of the wrong cells of both controls, in part with three quarters."""
    control = min(match.random, match.shuffled)
    if match.error <= 0.25 * control:
        return "succeeded"
    return "partly" if match.error <= 0.75 * control else "failed"


def _seconds(target: Target) -> float:
    """The solver takes what it gets; small tables take seconds."""
    return 30.0


PROBES = (Probe(NAME, "The training table from the counts of a forest", _obstacle, _run, _seconds, "high"),)

"""Training records: what attacks rebuilt, against what the nearest other record gives, in units of the columns.

An error in raw units is ruled by the column with the largest numbers. Here each column counts in units of its spread
over the training rows, so that a record is rebuilt only if it is nearer to the truth than every other record is.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from scipy.stats import binom

from experiments.claims.checks.checked import Checked
from experiments.claims.recording import Audited, Call
from experiments.claims.subject import Array, Subject, matrix

UNLIKELY = 0.01
"""Matches count if chance gives as many less often than this."""


def units(X: Array) -> Array:
    """The spread of each column; 1 where it has none."""
    spread: Array = X.std(axis=0)
    return np.where(spread > 0, spread, 1.0)


def check(audited: Audited, subject: Subject) -> list[Checked]:
    """Every claim about training records."""
    if hasattr(subject.table.heldout.X, "iloc"):
        found = audited.finding("informed-linear")
        calls = audited.made_by("informed-linear", "informed.glm")
        return [] if found is None else _informed(found, [row_is_rebuilt(one, subject) for one in calls])
    claims: list[Checked] = []
    for name, attack in (("informed-linear", "informed.glm"), ("informed-network", "informed.direct")):
        found = audited.finding(name)
        if found is not None:
            X = matrix(subject.table.training.X)
            claims += _informed(found, [rebuilt(call, X) for call in audited.made_by(name, attack)])
    for name in ("data-from-weights", "chain-to-training-data"):
        found = audited.finding(name)
        if found is not None:
            claims += _reconstructed(found, audited.made_by(name, "reconstruction.from_weights"), subject)
    return claims


# -- the informed insider ---------------------------------------------------------------------------------------------


def left_out(known: Array, X: Array) -> int:
    """The row of X that is missing from the known rows, which keep their order."""
    same = (known == X[: len(known)]).all(axis=1)
    return int(np.argmin(same)) if not same.all() else len(known)


def rebuilt(call: Call, X: Array) -> bool:
    """Whether an attack came closer to the missing record than the nearest other record is."""
    known = matrix(call.arguments[0 if call.attack == "informed.reconstructor" else _place(call)])
    row, scale = left_out(known, X), units(X)
    guess = np.asarray(call.result.x, dtype=np.float64).reshape(-1)
    error = float(np.square((guess - X[row]) / scale).mean())
    nearest = float(np.square((known - X[row]) / scale).mean(axis=1).min())
    return error < nearest


def _place(call: Call) -> int:
    """Where the known rows stand among the arguments: after the estimator, or after recipe and released model."""
    return 1 if call.attack == "informed.glm" else 2


def row_is_rebuilt(call: Call, subject: Subject) -> bool:
    """The same for a table of mixed columns: categories count as numbers in order, columns not shown not at all."""
    frame, known = subject.table.training.X, call.arguments[_place(call)]
    [missing] = frame.index.difference(known.index)
    shown = [name for name in frame.columns if call.result.row[str(name)] is not None]
    error, nearest = [], np.zeros(len(known))
    for name in shown:
        values = frame[name]
        if values.dtype.kind not in "fiub":
            order = {value: place for place, value in enumerate(sorted(values.unique()))}
            values, guess = values.map(order), order[call.result.row[str(name)]]
        else:
            guess = call.result.row[str(name)]
        scale = float(values.std()) or 1.0
        error.append(((guess - values[missing]) / scale) ** 2)
        nearest += ((values[known.index] - values[missing]).to_numpy() / scale) ** 2
    return bool(shown) and float(np.mean(error)) < float(nearest.min()) / len(shown)


def _informed(found: dict[str, Any], good: list[bool]) -> list[Checked]:
    if found["outcome"] == "inconclusive":
        return []
    match = re.match(r"(\d+) of (\d+)", found["measures"]["records_rebuilt"])
    if match is None:
        return [Checked(found["name"], found["title"], "the report counts no records", False)]
    stated = int(match.group(1))
    return [Checked(found["name"], found["title"], f"{sum(good)} are nearer to the record than any other record is",
                    stated == sum(good))]  # fmt: skip


# -- reconstructions --------------------------------------------------------------------------------------------------


def _reconstructed(found: dict[str, Any], calls: list[Call], subject: Subject) -> list[Checked]:
    """Of the records that are said to have come back, more are matched than of as many records never seen."""
    if not calls:
        return [Checked(found["name"], found["title"], "no samples were returned", found["severity"] == "none")]
    if found["severity"] == "none":
        return []
    samples = np.asarray(calls[0].result.samples, dtype=np.float64)
    training, control = matrix(subject.table.training.X), matrix(subject.table.heldout.X)
    likeness = _correlation if "shape" in subject.options else _closeness(training)
    seen, others = likeness(samples, training).max(axis=0), likeness(samples, control).max(axis=0)
    threshold = float(np.quantile(others, 0.99))
    matched = int((seen > threshold).sum())
    rate = (float((others > threshold).sum()) + 1) / (len(others) + 1)
    chance = float(binom.sf(matched - 1, len(seen), rate))
    return [
        Checked(found["name"], found["title"],
                f"{matched} of {len(seen)} are matched better than 99% of held-out records; by chance {chance:.1g}",
                chance <= UNLIKELY)
    ]  # fmt: skip


def _correlation(samples: Array, records: Array) -> Array:
    """Correlations [samples, records] of the pixels."""
    parts = []
    for rows in (samples, records):
        centred = rows - rows.mean(axis=1, keepdims=True)
        parts.append(centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-30))
    table: Array = parts[0] @ parts[1].T
    return table


def _closeness(training: Array) -> Any:
    """Minus the distance in units of the columns."""
    scale = units(training)

    def likeness(samples: Array, records: Array) -> Array:
        gaps = (samples[:, None] - records[None]) / scale
        return -np.sqrt(np.square(gaps).mean(axis=2))

    return likeness

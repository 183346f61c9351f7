"""The file of a model: the records, sums and values that it is said to hold, read with plain attribute access."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from experiments.claims.checks.checked import Checked
from experiments.claims.recording import Audited
from experiments.claims.subject import Array, Subject, matrix

NAME, FOREST = "file-contents", "data-from-forest"
CLOSE = 1e-5
"""Two records are the same if no column differs by more than this part of its spread."""


def check(audited: Audited, subject: Subject) -> list[Checked]:
    """Every claim about what stands in the file."""
    if hasattr(subject.table.training.X, "iloc"):
        return []
    claims: list[Checked] = []
    found = audited.finding(NAME)
    calls = [call for call in audited.calls if call.attack == "contents.read"]
    if found is not None:
        claims += _holdings(found, calls[-1].result if calls else None, subject)
    elif calls and calls[-1].result.success:
        claims.append(Checked(NAME, "no finding", "the file holds something", False))
    forest = audited.finding(FOREST)
    if forest is not None and forest["outcome"] != "inconclusive":
        claims += _table(forest, audited, subject)
    return claims


def same_rows(rows: Array, records: Array) -> int:
    """How many rows equal a record."""
    spread = records.std(axis=0)
    scale = np.where(spread > 0, spread, np.maximum(np.abs(records).max(axis=0), 1.0))
    return sum(int((np.abs(row - records) <= CLOSE * scale).all(axis=1).any()) for row in rows)


def _holdings(found: dict[str, Any], result: Any, subject: Subject) -> list[Checked]:
    if result is None:
        return [Checked(NAME, found["title"], "nothing was read", False)]
    training = matrix(subject.table.training.X)
    claims = []
    for one in result.holdings:
        rows = None if one.rows is None else np.asarray(one.rows)
        if one.kind == "records" and one.in_training_data is not None and rows is not None:
            equal = same_rows(matrix(rows), training) if rows.shape[1:] == training.shape[1:] else 0
            claims.append(Checked(NAME, f"{one.where}: {one.in_training_data} of {one.count} rows are training rows",
                                  f"{equal} are", equal == one.in_training_data))  # fmt: skip
        held = _evaluated(one.where, subject.model)
        if held is not None and one.kind in ("sums", "values") and held.dtype.kind == "f":
            claims.append(_statistic(one, held, training))
    stated = re.match(r"([\d,]+) training records? stands? in the file", found["title"])
    if stated is not None:
        number = int(stated.group(1).replace(",", ""))
        most = max((one.in_training_data or 0 for one in result.holdings if one.kind == "records"), default=0)
        claims.append(Checked(NAME, found["title"], f"{most} rows of the file equal a training row", number <= most))
    return claims


def _evaluated(where: str, model: Any) -> Array | None:
    """What stands at a place such as ``model["scaler"].mean_``."""
    if not re.fullmatch(r"model(\[(\"[\w-]+\"|\d+)\]|\.\w+)+", where):
        return None
    try:
        return np.asarray(eval(where, {"__builtins__": {}, "model": model}))
    except (AttributeError, KeyError, IndexError, TypeError):
        return None


def _statistic(one: Any, held: Array, training: Array) -> Checked:
    """Whether what is called a mean, a sum or an extreme of a column is one: for steps that see the raw columns."""
    true = {
        "mean_": training.mean(axis=0), "var_": training.var(axis=0), "scale_": training.std(axis=0),
        "data_min_": training.min(axis=0), "data_max_": training.max(axis=0),
        "data_range_": np.ptp(training, axis=0),
    }.get(one.where.rsplit(".", 1)[-1])  # fmt: skip
    if true is None or true.shape != held.shape:
        return Checked(NAME, f"{one.where}: {one.count} {one.kind}", f"{held.size} numbers stand there",
                       one.count <= held.size)  # fmt: skip
    near = bool(np.allclose(held, np.where((true == 0) & (held == 1), 1.0, true), rtol=1e-9, atol=1e-12))
    return Checked(NAME, f"{one.where}: {one.detail}", "computed from the training rows", near)


def _table(found: dict[str, Any], audited: Audited, subject: Subject) -> list[Checked]:
    """The wrong cells of a table that was rebuilt from a forest, after the best matching of its rows."""
    calls = audited.made_by(FOREST, "reconstruction.from_forest")
    if not calls:
        return [Checked(FOREST, found["title"], "no table was returned", False)]
    rebuilt, truth = np.asarray(calls[-1].result.samples, dtype=float), matrix(subject.table.training.X)
    cost = np.abs(rebuilt[:, None] - truth[None]).sum(axis=2)
    wrong = float(cost[linear_sum_assignment(cost)].mean()) / truth.shape[1]
    stated = float(found["measures"]["wrong_cells"])
    return [Checked(FOREST, found["title"], f"{wrong:.4g} wrong cells", abs(wrong - stated) <= 1e-6)]

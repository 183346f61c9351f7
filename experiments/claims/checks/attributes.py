"""Hidden columns: what the model adds, against an imputation by other learners that never saw the model.

The guesses of the attack are counted against the true column. Two imputations of scikit-learn's, a forest and gradient
boosting, guess the same column from the other columns and the label: a model that is said to give a column away must
beat the better of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.model_selection import cross_val_predict

from experiments.claims.checks.checked import Checked
from experiments.claims.checks.statistics import in_percent, share_interval
from experiments.claims.recording import Audited, Call
from experiments.claims.subject import Array, Subject, matrix

NAME = "attribute-inference"
FOLDS = 5


def check(audited: Audited, subject: Subject) -> list[Checked]:
    """Every claim about hidden columns."""
    found = audited.finding(NAME)
    if found is None or found["outcome"] == "inconclusive" or hasattr(subject.table.heldout.X, "iloc"):
        return []
    calls = audited.made_by(NAME, "attributes.attack")
    if not calls:
        return [Checked(NAME, found["title"], "no guesses were returned", False)]
    rows = {str(row[0]): row for row in found["tables"][0]["rows"]}
    claims = [claim for call in calls for claim in _column(call, rows)]
    if found["severity"] != "none":
        claims.append(_beyond(found, calls, rows))
    return claims


def true_values(call: Call) -> Array:
    """The candidate that each record has: its own value, or the fifth of the records that it falls into."""
    column = matrix(call.arguments[1])[:, call.result.column[0]]
    values = np.asarray(call.result.values)[:, 0]
    if not call.result.quantity:
        return np.searchsorted(values, column)
    edges = np.unique(np.quantile(column, np.linspace(0, 1, 6)[1:-1]))
    places: Array = np.unique(np.searchsorted(edges, column, side="right"), return_inverse=True)[1]
    return places


def _column(call: Call, rows: dict[str, Any]) -> list[Checked]:
    """The stated share of right guesses, against the guesses; they are those of one of three draws."""
    name = str(call.result.column[0])
    if name not in rows:
        return []
    truth, guesses = true_values(call), np.asarray(call.result.guesses)
    right, stated = int((truth == guesses).sum()), float(rows[name][1])
    low, high = share_interval(right, len(truth))
    return [Checked(NAME, f"column {name}: {in_percent(stated)} with the model",
                    f"{right} of {len(truth)} guesses are right", low <= stated <= high)]  # fmt: skip


def imputed(call: Call) -> float:
    """The share of records whose column the better of two imputations names."""
    X, y = matrix(call.arguments[1]), np.asarray(call.arguments[2], dtype=np.float64).reshape(-1)
    known = np.column_stack([np.delete(X, list(call.result.column), axis=1), y])
    truth = true_values(call)
    learners = (
        RandomForestClassifier(100, min_samples_leaf=2, random_state=0),
        HistGradientBoostingClassifier(max_iter=60, random_state=0),
    )
    return max(float((cross_val_predict(one, known, truth, cv=FOLDS) == truth).mean()) for one in learners)


def _beyond(found: dict[str, Any], calls: list[Call], rows: dict[str, Any]) -> Checked:
    """The column that is said to be given away, against the imputations."""
    by_name = {str(call.result.column[0]): call for call in calls}
    worst = max((row for row in rows.values() if str(row[0]) in by_name), key=lambda row: float(row[4]))
    call, stated = by_name[str(worst[0])], float(worst[1])
    base, records = imputed(call), len(matrix(call.arguments[1]))
    _, high = share_interval(round(stated * records), records)
    return Checked(NAME, found["title"], f"{in_percent(stated)} with the model; other imputations name "
                   f"{in_percent(base)} without it", high > base and stated > base - 0.02)  # fmt: skip

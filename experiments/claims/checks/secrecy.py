"""Records and names: none of a training record is printed unless the audit was asked to show records."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from experiments.claims.checks.checked import Checked
from experiments.claims.recording import Audited
from experiments.claims.subject import Array, Subject

DIGITS = 5
"""A number with so many digits, printed, is a cell; fewer coincide by chance."""
CELLS = 2
"""So many cells of one row, printed, are a row."""


def check(audited: Audited, subject: Subject) -> list[Checked]:
    """That no training row, and no name of one, stands in the report in any form."""
    if audited.options.get("show_records") or subject.table.training is None:
        return []
    text = json.dumps(audited.report, default=str) + audited.pages
    printed = cells_printed(text, subject.table.training.X)
    claims = [
        Checked("report", "shows no training record", f"{printed} cells of one record are printed", printed < CELLS)
    ]
    names = [str(name) for name in getattr(subject.table.training.X, "index", ())]
    if names and not names[0].isdigit():
        shown = [name for name in names if name in text]
        claims.append(Checked("report", "names no training record", f"{len(shown)} names are printed", not shown))
    return claims


def cells_printed(text: str, X: Any) -> int:
    """The most cells of one record that stand in a text, at the digits that it prints or fewer."""
    rows: Array = (
        X.select_dtypes("number").to_numpy() if hasattr(X, "select_dtypes") else np.asarray(X, dtype=np.float64)
    )
    rows = rows.reshape(len(rows), -1)
    words = re.findall(r"-?\d[\d,]*\.?\d*(?:e[+-]?\d+)?", text)
    long = [word for word in words if len(re.sub(r"\D", "", word).lstrip("0")) >= DIGITS]
    numbers = {f"{float(word.replace(',', '')):.{DIGITS}g}" for word in long}
    found = 0
    for row in rows:
        cells = {f"{cell:.{DIGITS}g}" for cell in row if _long(cell)}
        found = max(found, len(cells & numbers))
    return found


def _long(cell: float) -> bool:
    """Whether a number has enough digits to be recognised."""
    return len(re.sub(r"\D|e.*", "", f"{cell:.{DIGITS}g}").strip("0")) >= DIGITS

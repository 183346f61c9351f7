"""Members and non-members as callers hand them in, checked: shapes, labels, overlap and numbers."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from divulge.core.errors import InvalidInput, WrongShape
from divulge.core.validation import checked_rows

FEWEST = 10
"""Records that each side needs: with fewer no rate can be told from chance."""
COINCIDENCE = 0.01
"""Part of the smaller side that may occur on both sides by coincidence, as in tables of few distinct rows."""


@dataclass(frozen=True)
class Records:
    """Rows [n, d] with their labels or targets [n]."""

    X: Tensor
    y: NDArray[Any]

    def __len__(self) -> int:
        return len(self.X)

    def at(self, index: NDArray[Any]) -> Records:
        """Some of the records."""
        return Records(self.X[torch.as_tensor(index)], self.y[index])


def checked_records(given: object, what: str, width: int | None = None) -> Records:
    """(X, y) as records; ``what`` names them in an error."""
    X: Any
    y: Any
    try:
        X, y = given  # type: ignore[misc]
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"The {what} come as (X, y): rows, and a label or target for each.") from error
    rows = checked_rows(X, what=what, width=width)
    labels = np.asarray(y.detach().cpu().numpy() if isinstance(y, Tensor) else y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim not in (1, 2) or len(labels) != len(rows):
        raise WrongShape(f"The {what} have {len(rows)} rows and labels of shape {labels.shape}.")
    if labels.dtype.kind == "O":
        labels = labels.astype(str)
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise InvalidInput(f"The labels of the {what} hold NaN or infinity; drop such rows.")
    return Records(rows, labels)


def checked_sides(
    members: object, non_members: object, width: int | None
) -> tuple[Records, Records, NDArray[np.int64]]:
    """Both sides, and the indices of the non-members that are kept: a few that equal a member are left out."""
    inside = checked_records(members, "members", width)
    outside = checked_records(non_members, "non-members", inside.X.shape[1])
    for side, name in ((inside, "members"), (outside, "non-members")):
        if len(side) < FEWEST:
            raise InvalidInput(f"There are {len(side)} {name}; membership needs at least {FEWEST} on each side.")
    _check_same_kind(inside.y, outside.y)
    keys, others = row_keys(inside), row_keys(outside)
    shared = np.isin(others, keys)
    count = int(shared.sum())
    if count > COINCIDENCE * min(len(inside), len(outside)):
        raise InvalidInput(
            f"{count:,} of the {len(outside):,} non-members are members too; take the training records out of the "
            "non-members."
        )
    kept = np.flatnonzero(~shared)
    return inside, outside.at(kept) if count else outside, kept


def row_keys(records: Records) -> NDArray[np.uint64]:
    """A 64-bit key for each record [n]: equal for equal records, and hardly ever for others."""
    rng = np.random.default_rng(0)
    keys = np.zeros(len(records), dtype=np.uint64)
    values, inverse = np.unique(records.y, return_inverse=True, axis=0)
    if len(values) < 1_000:  # labels count; of quantities the rows say enough
        keys = np.array([_label_key(value) for value in values], dtype=np.uint64)[inverse.reshape(-1)]
    for column in range(records.X.shape[1]):
        bits = (records.X[:, column].numpy() + 0.0).view(np.uint64)  # -0.0 becomes 0.0
        mixed = (bits ^ (bits >> np.uint64(29))) * (rng.integers(0, 2**64, dtype=np.uint64) | np.uint64(1))
        keys = (keys ^ (mixed ^ (mixed >> np.uint64(32)))) * np.uint64(0x9E3779B97F4A7C15)
    return keys


def _label_key(value: Any) -> int:
    plain = np.asarray(value).tolist()
    return zlib.crc32(repr(float(plain) if isinstance(plain, int) else plain).encode())


def _check_same_kind(inside: NDArray[Any], outside: NDArray[Any]) -> None:
    if inside.ndim != outside.ndim or (inside.dtype.kind in "fiub") != (outside.dtype.kind in "fiub"):
        raise InvalidInput("The labels of members and non-members are of another kind; give both in the same form.")
    whole = [bool(y.dtype.kind != "f" or (y == np.round(y)).all()) for y in (inside, outside)]
    if inside.dtype.kind in "fiub" and whole[0] != whole[1]:
        raise InvalidInput(
            "The labels of members and non-members are of another kind: one side has whole numbers and the other has "
            "quantities."
        )

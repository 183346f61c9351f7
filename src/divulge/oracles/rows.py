"""Query rows: from what a caller hands over to a checked tensor [n, d], and asking a large query in batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from divulge.core.errors import EmptyBatch, InvalidInput, NonFiniteInput, TargetError, WrongShape

QueryRows: TypeAlias = Tensor | ArrayLike


def all_finite(tensor: Tensor) -> bool:
    """Whether no entry is NaN or infinite, in one pass: a sum is finite only if every term is (or it overflows)."""
    return math.isfinite(tensor.sum().item()) or bool(torch.isfinite(tensor).all())


def as_rows(X: QueryRows, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Query rows as a tensor [n, width]. Pictures are flattened; a single row is a batch of one."""
    if isinstance(X, Tensor) and X.ndim == 2 and X.dtype is dtype and X.device == device:
        if X.size(1) == width and X.size(0) and X.layout is torch.strided and not X.requires_grad:
            return X  # the usual case: an attack sends tensors of the right kind
    elif not isinstance(X, Tensor):
        X = _tensor(X)
    if X.is_complex():
        raise InvalidInput(f"Query rows must be real numbers, not {X.dtype}.")
    X = X.detach()
    if X.layout is not torch.strided:
        X = X.to_dense()
    if X.ndim == 0:
        raise WrongShape(f"The query is a single number; rows of {width} are expected.")
    if X.numel() == 0:
        raise EmptyBatch("The query has no rows; give at least one.")
    if X.ndim == 1 and len(X) == width:
        X = X[None]
    rows: Tensor = X.reshape(len(X), -1)
    if rows.shape[1] != width:
        raise WrongShape(f"The query rows have {rows.shape[1]} columns, and this model takes {width}.")
    return rows.to(device=device, dtype=dtype)


def check_finite_rows(rows: Tensor) -> Tensor:
    """The rows again, or NonFiniteInput."""
    if not all_finite(rows):
        bad = int((~torch.isfinite(rows)).any(dim=1).sum())
        kind = str(rows.dtype).removeprefix("torch.")
        raise NonFiniteInput(f"{bad} of {len(rows)} query rows hold NaN or infinity in {kind}; all must be finite.")
    return rows


def in_batches(rows: Tensor, size: int | None, ask: Callable[[Tensor], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Call ``ask`` with at most ``size`` rows at a time, so that a large query needs no more memory than its answer.

    If the target fails in the middle, its error carries how many rows were answered before it.
    """
    if size is None or len(rows) <= size:
        return ask(rows)
    answers: tuple[Tensor, ...] = ()
    for start in range(0, len(rows), size):
        batch = rows[start : start + size]
        try:
            parts = ask(batch)
        except TargetError as error:
            error.rows_answered = start + getattr(error, "rows_answered", 0)  # type: ignore[attr-defined]
            raise
        if not answers:
            answers = tuple(part.new_empty(len(rows), *part.shape[1:]) for part in parts)
        for answer, part in zip(answers, parts, strict=True):
            answer[start : start + len(batch)] = part
    return answers


def _tensor(X: ArrayLike) -> Tensor:
    try:
        array = np.asarray(X.toarray() if hasattr(X, "toarray") else X)
    except ValueError as error:
        raise WrongShape("The query rows are not all of the same width.") from error
    if array.dtype.kind not in "fiub":
        raise InvalidInput(f"Query rows must be numbers, not {array.dtype}.")
    if (array.dtype.kind == "f" and array.dtype.itemsize > 8) or not array.dtype.isnative:
        array = array.astype(np.float64)
    if not array.flags.writeable:
        array = array.copy()
    return torch.from_numpy(np.asarray(array, order="C"))

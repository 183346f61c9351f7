"""Checks of the options that several oracles share. Each returns the checked value or raises InvalidInput."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

from divulge.core.errors import InvalidInput, UnsupportedModel
from divulge.core.validation import is_whole

Precision = Literal["native", "double"]
MAX_ROW_NUMBERS = 1 << 28
"""The most numbers in one input or one answer: 2 GB in float64. More is refused before memory is asked for."""


def checked_shape(shape: Sequence[int] | int) -> tuple[int, ...]:
    """``input_shape`` as a tuple of positive extents; a bare number is the width of a flat input."""
    extents = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    if not extents or any(not _is_extent(extent) for extent in extents):
        raise InvalidInput(f"input_shape is the shape of one input, positive whole numbers; got {str(shape)[:100]!r}.")
    whole = tuple(int(extent) for extent in extents)
    check_size(math.prod(whole), "input")
    return whole


def check_size(numbers: int, what: str) -> None:
    """Refuse a model whose input or output is too large to hold, before memory is asked for."""
    if numbers > MAX_ROW_NUMBERS:
        shown = f"{numbers:,}" if numbers < 10**30 else f"some 10^{math.log10(numbers):.0f}"
        raise UnsupportedModel(
            f"One {what} of this model has {shown} numbers; divulge handles at most {MAX_ROW_NUMBERS:,}."
        )


def checked_batch_size(batch_size: int | None) -> int | None:
    """``batch_size`` as a whole number from 1, or None."""
    if batch_size is None:
        return None
    if not is_whole(batch_size) or batch_size < 1:
        raise InvalidInput(f"batch_size is how many rows are computed at once, at least 1; got {batch_size!r}.")
    return int(batch_size)


def checked_precision(precision: str) -> None:
    """Refuse a precision other than "native" and "double"."""
    if precision not in ("native", "double"):
        raise InvalidInput(f'precision is "native" or "double", not {precision!r}.')


def _is_extent(extent: object) -> bool:
    if isinstance(extent, int) and not isinstance(extent, bool):
        return extent >= 1
    return is_whole(extent) and float(extent) >= 1  # type: ignore[arg-type]

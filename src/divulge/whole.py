"""Numbers as callers give them, in whatever type, checked before anything runs."""

from __future__ import annotations

from numbers import Real
from typing import Any

from divulge.errors import InvalidInput


def is_whole(number: Any) -> bool:
    """Whether this is a whole number, in whatever type it comes."""
    return isinstance(number, Real) and not isinstance(number, bool) and float(number).is_integer()


def checked_seed(seed: Any) -> int:
    if not is_whole(seed) or seed < 0:
        raise InvalidInput(f"A seed is a whole number from zero; got {seed!r}.")
    return int(seed)

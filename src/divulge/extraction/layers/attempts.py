"""Copies that were compared with fresh rows and are not exact: the best of them is the partial result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from divulge.extraction.layers.deep_copy import DeepCopy
from divulge.extraction.verification import Verification


@dataclass(frozen=True)
class Attempt:
    """A copy, the rows that it was compared with, and why it is not exact."""

    copy: DeepCopy
    verification: Verification
    reason: str
    unseen: int
    """Entries that no answer has shown."""
    without_effect: int


def best_of(attempts: Sequence[Attempt], wrong: Callable[[DeepCopy, float], int]) -> Attempt | None:
    """The attempt that is wrong on fewest rows, then the one with fewest unseen entries, then the last.

    ``wrong`` counts the rows on which a copy is off, given the output's standard deviation.
    """
    if not attempts:
        return None
    rank = [(wrong(one.copy, one.verification.scale), one.unseen, -place) for place, one in enumerate(attempts)]
    return attempts[-min(rank)[2]]

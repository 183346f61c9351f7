"""Copies from answers that are too coarse for an exact one: which neurons they keep, and what is said of them."""

from __future__ import annotations

from collections.abc import Callable

from divulge.extraction.relu_network import NetworkEstimate

WEAK, PRUNED = 1e-2, 8
"""Neurons of at most this share of the largest weight, and at most so many, are left out of an imprecise copy if it
agrees as well without them."""
AS_WELL = 1.5
"""A copy agrees as well as another if its error is at most so many times as large."""


def pruned(copy: NetworkEstimate, error: Callable[[NetworkEstimate], float]) -> NetworkEstimate:
    """The copy without weak neurons that it does not need; imprecise answers can show one kink as several."""
    for _ in range(PRUNED):
        weakest = int(copy.strength.argmin()) if copy.width else 0
        if not copy.width or copy.strength[weakest] > WEAK * copy.strength.max():
            break
        smaller = copy.without(weakest)
        if error(smaller) > AS_WELL * error(copy):
            smaller = copy.closest_merged()
        if error(smaller) > AS_WELL * error(copy):
            break
        copy = smaller
    return copy


def imprecise(off: float, quality: str) -> str:
    """Why a copy is not exact that is off by this part of the output's standard deviation."""
    if off > 0.1:
        return f"The copy is off by {off:.1e} of the output's standard deviation: {quality}."
    return (
        f"The copy agrees to {off:.1e} of the output's standard deviation on the rows compared, about as well as can "
        f"be expected: {quality}."
    )


def width_notes(found: int, expected: int | None) -> tuple[str, ...]:
    """What is said where another number of neurons shows than was expected."""
    if expected is None or found == expected:
        return ()
    if found < expected:
        return (
            f"{found} neurons show where you expected {expected}: dead neurons leave no trace, and neurons on the same "
            "hyperplane are merged into one.",
        )
    return (f"{found} neurons show, more than the {expected} you expected.",)

"""Reading the rank of noisy rows off the gap in their singular values, and never without asking the network.

A steep fall of the singular values may come from noise (below the fall all is noise) or from the network itself (one
direction that dominates all others). Moves in the null space that a rank leaves over tell them apart: if the network
ignores them, the rank is right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_IGNORED = 0.2  # largest relative output change that noise in a basis may excuse
_MARKED = 0.05
_STEEP = 1.5  # a fall that is worth asking about
_STRAGGLING = 30.0
_CANDIDATES = 4


@dataclass(frozen=True)
class Fall:
    """A rank after which the singular values fall, by how much, and what moves in the null space it leaves change."""

    rank: int
    gap: float
    invariance: float | None


def gap_after(singular_values: Tensor, rank: int, floor: float) -> float:
    """How many times the last value kept exceeds the first one dropped (or the floor, where that is larger)."""
    if rank == 0 or len(singular_values) == 0:
        return float("inf")
    dropped = float(singular_values[rank]) if rank < len(singular_values) else 0.0
    below = max(dropped, floor)
    return float(singular_values[rank - 1]) / below if below > 0 else float("inf")


def without_stragglers(singular_values: Tensor, rank: int, threshold: float) -> int:
    """The rank less directions barely above the threshold and far below all others: differences across a kink."""
    clear = int((singular_values > _STRAGGLING * threshold).sum())
    far = clear < rank and gap_after(singular_values, clear, 0.0) >= _STRAGGLING**2
    return clear if far and clear > 0 else rank


def steepest_falls(singular_values: Tensor, *, at_least: float, count: int = _CANDIDATES) -> list[int]:
    """Ranks at which the singular values fall by a factor of ``at_least`` or more, the steepest fall first.

    The last quarter is left out: the smallest singular values of pure noise are ragged.
    """
    usable = singular_values[: max(2, 3 * len(singular_values) // 4)]
    if len(usable) < 2:
        return []
    falls = usable[:-1] / usable[1:].clamp_min(torch.finfo(torch.float64).tiny)
    order = torch.argsort(falls, descending=True)[:count]
    return [int(i) + 1 for i in order if float(falls[i]) >= at_least]


def confirmed_fall(
    singular_values: Tensor, ignored: Callable[[int], tuple[float, float]], *, at_least: float = _STEEP, noisy: bool
) -> Fall | None:
    """The steepest fall that the network confirms. ``ignored(rank)`` tells how much moves in the null space change,
    and how much asking again does, both relative to the outputs' usual change.

    Of several, one that leaves a marked change, twice that of another, has left a direction out.
    """
    limit = _IGNORED if noisy else _IGNORED / 4
    found: list[Fall] = []
    for rank in steepest_falls(singular_values, at_least=at_least):
        change, repeat = ignored(rank)
        if change**2 <= limit**2 + 4 * repeat**2:
            found.append(Fall(rank, gap_after(singular_values, rank, 0.0), change))
    if not found:
        return None
    least = min(fall.invariance or 0.0 for fall in found)
    return next(fall for fall in found if (fall.invariance or 0.0) <= max(_MARKED, 2 * least))

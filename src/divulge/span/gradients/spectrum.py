"""The rank of noisy gradients, read from the gaps in their singular values and confirmed by queries.

A large gap between two singular values has two possible causes. Below it there may be noise only, or the network may
have one direction that dominates all others. Queries decide: the outputs must not change when a point moves inside the
null space that the candidate rank leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_IGNORED = 0.2  # largest relative change of the outputs that noise in the basis may explain
_MARKED = 0.05  # a relative change from which a candidate may have left a direction out
CLEAR_GAP = 3.0  # a smaller gap decides nothing
_LEAST_GAP = 1.5  # smallest gap that is worth queries
_MARGINAL = 30.0  # times the threshold: below this a direction may be an artefact of a difference across a kink
_CANDIDATES = 4


@dataclass(frozen=True)
class RankCandidate:
    """A rank that a gap in the singular values suggests."""

    rank: int
    gap: float
    """The last singular value kept over the first one dropped."""
    invariance: float | None
    """Relative output change under moves in the null space that this rank leaves."""


def gap_after(singular_values: Tensor, rank: int, floor: float) -> float:
    """The last singular value kept over the first one dropped, or over ``floor`` where that is larger."""
    if rank == 0 or len(singular_values) == 0:
        return float("inf")
    dropped = float(singular_values[rank]) if rank < len(singular_values) else 0.0
    below = max(dropped, floor)
    return float(singular_values[rank - 1]) / below if below > 0 else float("inf")


def drop_marginal_directions(singular_values: Tensor, rank: int, threshold: float) -> int:
    """The rank without directions that are barely above the threshold and far below all others.

    A finite difference across a kink leaves such directions.
    """
    clear = int((singular_values > _MARGINAL * threshold).sum())
    far = clear < rank and gap_after(singular_values, clear, 0.0) >= _MARGINAL**2
    return clear if far and clear > 0 else rank


def ranks_by_gap(singular_values: Tensor, *, at_least: float, count: int = _CANDIDATES) -> list[int]:
    """Ranks with a gap of ``at_least`` or more after them, the largest gap first.

    The last quarter of the spectrum is left out, because the smallest singular values of pure noise are irregular.
    """
    usable = singular_values[: max(2, 3 * len(singular_values) // 4)]
    if len(usable) < 2:
        return []
    gaps = usable[:-1] / usable[1:].clamp_min(torch.finfo(torch.float64).tiny)
    order = torch.argsort(gaps, descending=True)[:count]
    return [int(i) + 1 for i in order if float(gaps[i]) >= at_least]


def confirmed_rank(
    singular_values: Tensor, change_in_null_space: Callable[[int], tuple[float, float]], *,
    at_least: float = _LEAST_GAP, noisy: bool,
) -> RankCandidate | None:  # fmt: skip
    """The candidate with the largest gap whose null space the network ignores, or None.

    ``change_in_null_space(rank)`` gives two output changes, each relative to the usual change between two points: under
    moves in the null space, and between two identical queries. A candidate whose change is marked, and twice that of
    another candidate, has left a direction out.
    """
    limit = _IGNORED if noisy else _IGNORED / 4
    found: list[RankCandidate] = []
    for rank in ranks_by_gap(singular_values, at_least=at_least):
        change, repeat = change_in_null_space(rank)
        if change**2 <= limit**2 + 4 * repeat**2:
            found.append(RankCandidate(rank, gap_after(singular_values, rank, 0.0), change))
    if not found:
        return None
    least = min(candidate.invariance or 0.0 for candidate in found)
    return next(candidate for candidate in found if (candidate.invariance or 0.0) <= max(_MARKED, 2 * least))

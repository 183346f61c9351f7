"""Blind guesses: points that many records of a population are close to.

The point with the most records within a radius is hard to find exactly. The candidates here are records, the means of
their nearest neighbours, the points half way to the mean of all, the mean and the median of all, and from the fullest
of them three steps of mean shift. What they miss is not covered; ``divulge.protection.priors`` says what follows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

KEPT = 50
"""Guesses that are judged. The limit for all of them grows with the logarithm of their number."""
_NEIGHBOURS = (4, 16, 64)
_SHIFTS = 3
_BLOCK = 4_000_000  # distances at once: 32 MB
_STARTS = 500  # records that suggest guesses
_RANKED_ON = 4000  # records on which candidates are ranked


def within(points: Tensor, records: Tensor, radius: float, power: float) -> Tensor:
    """How many records are within a radius of each point.

    Parameters
    ----------
    points : Tensor [m, d]
        The points.
    records : Tensor [n, d]
        The records.
    radius : float
        The radius.
    power : float
        Of the norm.

    Returns
    -------
    Tensor [m]
        Counts.
    """
    import torch

    rows = max(1, _BLOCK // len(records))
    return torch.cat([(torch.cdist(part, records, p=power) <= radius).sum(dim=1) for part in torch.split(points, rows)])


def promising(starts: Tensor, records: Tensor, radius: float, power: float, keep: int = KEPT) -> Tensor:
    """Different guesses with the most records within a radius, best first.

    Parameters
    ----------
    starts : Tensor [m, d]
        Records that suggest guesses; among ``records``.
    records : Tensor [n, d]
        Records that rank them.
    radius : float
        Within which a guess counts.
    power : float
        Of the norm.
    keep : int, default 50
        How many guesses at most.

    Returns
    -------
    Tensor [k, d]
        Between 1 and ``keep`` guesses.
    """
    import torch

    ranking, starts = records[:_RANKED_ON], starts[:_STARTS]
    guesses = _candidates(starts, ranking)
    hits = within(guesses, ranking, radius, power)
    hits[: len(starts)] -= 1  # a record is close to itself
    points = guesses[torch.argsort(hits, descending=True, stable=True)[: 4 * keep]]
    found = [points]
    for _ in range(_SHIFTS):
        points = _shifted(points, ranking, radius, power)
        found.append(points)
    guesses = torch.cat(found)
    hits = within(guesses, ranking, radius, power)
    best = guesses[torch.argsort(hits, descending=True, stable=True)]
    close = (torch.cdist(best, best, p=power) <= 0.05 * radius).T.numpy()  # next to the same guess
    chosen: list[int] = []
    covered = np.zeros(len(best), dtype=bool)
    while len(chosen) < keep and not covered.all():
        chosen.append(int(covered.argmin()))
        covered |= close[chosen[-1]]
        covered[chosen[-1]] = True
    return best[chosen]


def _candidates(starts: Tensor, records: Tensor) -> Tensor:
    """Records, points half way to the mean, the means of nearest neighbours, the mean and the median."""
    import torch

    mean = records.mean(dim=0, keepdim=True)
    found = [starts, (starts + mean) / 2]
    sizes = [size for size in _NEIGHBOURS if size < len(records)]
    rows = max(1, _BLOCK // max(len(records), _NEIGHBOURS[-1] * records.shape[1]))
    for part in torch.split(starts, rows) if sizes else ():
        nearest = torch.cdist(part, records).topk(sizes[-1], largest=False).indices
        found += [records[nearest[:, :size]].mean(dim=1) for size in sizes]
    return torch.cat([*found, mean, records.median(dim=0, keepdim=True).values])


def _shifted(points: Tensor, records: Tensor, radius: float, power: float) -> Tensor:
    """Each point moves to the mean of the records within the radius, where there are any."""
    import torch

    moved = []
    for part in torch.split(points, max(1, _BLOCK // len(records))):
        near = (torch.cdist(part, records, p=power) <= radius).to(records.dtype)
        counts = near.sum(dim=1, keepdim=True)
        moved.append(torch.where(counts > 0, near @ records / counts.clamp(min=1), part))
    return torch.cat(moved)

"""Which inputs to ask a target about: random ones of a pool, its k-means centres, Gaussian noise, or where two students
disagree. Milli 2019 draw them at random from the data, or from N(0, I); choosing them is ours."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from divulge.core.errors import InvalidInput

Choice = Literal["random", "k-means", "active"]
POOL_ROWS = 10_000
"""Rows of a pool that k-means looks at."""
DRAWN_TOGETHER = 16
"""Numbers that torch draws in one go; rows of whole goes do not depend on how many follow."""


def gaussian(count: int, width: int, generator: torch.Generator) -> Tensor:
    """Inputs of someone who does not know what the data look like: N(0, I). More of them begin with the same ones."""
    whole = math.ceil(width / DRAWN_TOGETHER) * DRAWN_TOGETHER
    return torch.randn(count, whole, generator=generator, dtype=torch.float64)[:, :width]


def k_means(pool: Tensor, count: int, *, seed: int) -> Tensor:
    """The centres of ``count`` clusters of the pool: each stands for many of its rows."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    rows = pool[torch.randperm(len(pool), generator=torch.Generator().manual_seed(seed))[:POOL_ROWS]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different rows than clusters: some repeat
        found = KMeans(count, n_init=4, random_state=seed).fit(rows.to(torch.float64).numpy())
    return torch.from_numpy(found.cluster_centers_).to(pool)


def where_they_disagree(pool: Tensor, count: int, first: Callable[[Tensor], Tensor],
                        second: Callable[[Tensor], Tensor]) -> Tensor:  # fmt: skip
    """Row numbers where two students' probabilities differ most, far from one another.

    Of the rows that disagree most, each next one is the farthest from those already chosen: neighbours in
    disagreement would tell the same thing twice.
    """
    with torch.no_grad():
        gap = (_probable(first(pool)) - _probable(second(pool))).abs().sum(dim=1)
    candidates = gap.argsort(descending=True)[: max(count, min(20 * count, len(pool)))]
    rows = pool[candidates]
    chosen = [0]
    distance = torch.full((len(rows),), torch.inf)
    for _ in range(count - 1):
        distance = torch.minimum(distance, (rows - rows[chosen[-1]]).norm(dim=1))
        distance[chosen] = -1
        chosen.append(int(distance.argmax()))
    return candidates[torch.tensor(chosen)]


def _probable(z: Tensor) -> Tensor:
    return torch.sigmoid(z) if z.shape[1] == 1 else torch.softmax(z, dim=1)


def check_pool(pool: Tensor, count: int) -> None:
    if count > len(pool):
        raise InvalidInput(f"{count:,} queries were asked for, but there are {len(pool):,} inputs to choose from.")

"""Which samples are real? Those that several restarts found on their own.

The loss cannot tell: random starts reach lower values than the truth does. But spurious fits differ from restart to
restart and training inputs do not, so agreement ranks samples, and needs no truth.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from divulge.reconstruction.stationarity import Candidates

FEW = 16
"""Below this many dimensions two samples in one direction are two points, not one picture at two brightnesses."""


FAINT = 0.05
"""A sample whose multiplier is less than this share of its restart's largest explains nothing."""
FAINT_SEPARATED, NEGATIVE, STRONGER = 0.005, -0.8, 2.0
"""Separated pictures are real even where they explain little, but start in both signs: the wrong one is that whose
cosine with the other is below the second number and whose multiplier is the smaller by the third."""


@dataclass(frozen=True)
class Agreed:
    """Samples [m, d] in order of confidence, with what the restarts say of each."""

    samples: Tensor
    labels: Tensor
    multipliers: Tensor
    confidence: Tensor
    """Mean over the other restarts of the likeness of their nearest sample, 0 to 1."""
    votes: Tensor
    """How many restarts found it."""

    def first(self, count: int) -> Agreed:
        """The ``count`` most trusted samples."""
        return Agreed(*(getattr(self, part.name)[:count] for part in fields(self)))


def default_likeness(d: int) -> float:
    """How alike two samples must be to be one: 0.95 for pictures, almost equal in few dimensions."""
    return 0.95 if d >= FEW else 0.9995


def pool(
    found: Candidates, *, at_least: int | None = None, alike: float | None = None, separated: bool = False
) -> Agreed:
    """The samples that ``at_least`` restarts agree on (by default two, or a quarter of many), each averaged over the
    restarts that found it.

    Samples that explain nothing are left out, and so are fainter doubles of a sample (its cosine above 0.9), which
    share its work, and of ``separated`` pictures the wrong signs.
    """
    restarts, _, d = found.inputs.shape
    at_least = min(max(2, restarts // 4) if at_least is None else at_least, restarts)
    alike = default_likeness(d) if alike is None else alike
    faint = FAINT_SEPARATED if separated else FAINT
    strong = found.multipliers > faint * found.multipliers.amax(dim=1, keepdim=True)
    if separated:
        strong &= ~_wrong_signs(found)
    run, place = strong.nonzero(as_tuple=True)
    X = found.inputs[run, place]
    labels = found.labels[run, place]
    weight = found.multipliers[run, place].double()
    other_class = labels[:, None] != labels[None]
    pairs = X @ X.T
    size = pairs.diagonal().clone()
    doubles = pairs > 0.9 * (size[:, None] * size[None]).sqrt() if d >= FEW else torch.zeros_like(other_class)
    pairs *= 2 / (size[:, None] + size[None]).clamp_min(1e-30)  # 1 - |a - b|^2 / (|a|^2 + |b|^2), 1 for equals
    pairs.masked_fill_(other_class, -1.0)
    doubles |= pairs > alike
    doubles &= ~other_class
    nearest = torch.stack([pairs[:, run == r].amax(dim=1) for r in range(restarts)], dim=1).double()  # [c, R]
    votes = (nearest > alike).sum(dim=1)
    if restarts > 1:
        own = torch.nn.functional.one_hot(run, restarts).bool()
        confidence = nearest.masked_fill(own, 0.0).clamp_min(0).sum(1) / (restarts - 1)
    else:
        confidence = weight / weight.max()
    rank = votes + confidence + weight / weight.max()  # of doubles the strongest one stands for all
    order = torch.argsort(rank, descending=True, stable=True)
    chosen = _representatives(order.tolist(), votes >= at_least, doubles)
    samples, multipliers = [], []
    for i in chosen:
        group = pairs[i] > alike
        samples.append((X[group].double() * weight[group, None]).sum(0) / weight[group].sum())
        multipliers.append(weight[group].sum() / len(set(run[group].tolist())))
    if not chosen:
        return Agreed(X.double(), labels, weight, confidence, votes).first(0)
    best = torch.argsort(confidence[chosen], descending=True, stable=True)
    index = torch.tensor(chosen)[best]
    return Agreed(torch.stack(samples)[best], labels[index], torch.stack(multipliers)[best], confidence[index],
                  votes[index])  # fmt: skip


def _wrong_signs(found: Candidates) -> Tensor:
    """Which samples have their negative, with a larger multiplier, in the same restart, [R, m]."""
    X = torch.nn.functional.normalize(found.inputs, dim=2)
    larger = found.multipliers[:, None] > STRONGER * found.multipliers[:, :, None]
    return ((X @ X.transpose(1, 2) < NEGATIVE) & larger).any(dim=2)


def _representatives(order: list[int], trusted: Tensor, doubles: Tensor) -> list[int]:
    """The first trusted sample of each set of doubles, in order."""
    free = trusted.clone()
    chosen = []
    for i in order:
        if free[i]:
            chosen.append(i)
            free &= ~doubles[i]
            free[i] = False
    return chosen

"""The samples that several restarts found independently.

The loss cannot tell training inputs from wrong samples: random starts reach lower values than the training inputs. But
wrong samples differ from restart to restart and training inputs do not. So agreement ranks samples without the truth.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from divulge.reconstruction.kkt_solver import Candidates

LOW_DIMENSION = 16
"""Below this many inputs two samples in one direction are two points, and not one image at two brightnesses."""
LEAST_MULTIPLIER = 0.05
"""Share of the restart's largest multiplier below which a sample is left out."""
LEAST_MULTIPLIER_SEPARATED = 0.005
"""The same for separated images, which are right even where they explain little."""
NEGATIVE_COSINE, STRONGER = -0.8, 2.0
"""Separated images start in both signs. Of two samples with a cosine below the first number, the one whose multiplier
is smaller by the second factor has the wrong sign."""


@dataclass(frozen=True)
class AgreedSamples:
    """Samples in order of confidence."""

    samples: Tensor
    """[m, d]."""
    labels: Tensor
    """[m]."""
    multipliers: Tensor
    """[m]."""
    confidence: Tensor
    """Likeness of the nearest sample of each other restart, averaged over them, 0 to 1, [m]."""
    votes: Tensor
    """How many restarts found each sample, [m]."""

    def first(self, count: int) -> AgreedSamples:
        """The first ``count`` samples."""
        return AgreedSamples(*(getattr(self, part.name)[:count] for part in fields(self)))


def default_likeness(d: int) -> float:
    """How alike two samples must be to count as one: 0.95 for images, almost equal in few dimensions."""
    return 0.95 if d >= LOW_DIMENSION else 0.9995


def pool(
    found: Candidates, *, min_votes: int | None = None, likeness: float | None = None, separated: bool = False
) -> AgreedSamples:
    """The samples that ``min_votes`` restarts agree on, each averaged over the restarts that found it.

    By default ``min_votes`` is two, or a quarter of many. Three kinds of samples are left out: those with a very small
    multiplier, weaker duplicates of another sample (cosine above 0.9), and wrong signs of ``separated`` images.
    """
    restarts, _, d = found.inputs.shape
    min_votes = min(max(2, restarts // 4) if min_votes is None else min_votes, restarts)
    likeness = default_likeness(d) if likeness is None else likeness
    least = LEAST_MULTIPLIER_SEPARATED if separated else LEAST_MULTIPLIER
    strong = found.multipliers > least * found.multipliers.amax(dim=1, keepdim=True)
    if separated:
        strong &= ~_wrong_signs(found)
    run, place = strong.nonzero(as_tuple=True)
    X = found.inputs[run, place]
    labels = found.labels[run, place]
    weight = found.multipliers[run, place].double()
    other_class = labels[:, None] != labels[None]
    pairs = X @ X.T
    size = pairs.diagonal().clone()
    duplicates = (
        pairs > 0.9 * (size[:, None] * size[None]).sqrt() if d >= LOW_DIMENSION else torch.zeros_like(other_class)
    )
    pairs *= 2 / (size[:, None] + size[None]).clamp_min(1e-30)  # 1 - |a - b|^2 / (|a|^2 + |b|^2), 1 for equals
    pairs.masked_fill_(other_class, -1.0)
    duplicates |= pairs > likeness
    duplicates &= ~other_class
    nearest = torch.stack([pairs[:, run == r].amax(dim=1) for r in range(restarts)], dim=1).double()  # [c, R]
    votes = (nearest > likeness).sum(dim=1)
    if restarts > 1:
        own = torch.nn.functional.one_hot(run, restarts).bool()
        confidence = nearest.masked_fill(own, 0.0).clamp_min(0).sum(1) / (restarts - 1)
    else:
        confidence = weight / weight.max()
    rank = votes + confidence + weight / weight.max()  # the strongest of several duplicates represents them
    order = torch.argsort(rank, descending=True, stable=True)
    chosen = _representatives(order.tolist(), votes >= min_votes, duplicates)
    samples, multipliers = [], []
    for i in chosen:
        group = pairs[i] > likeness
        samples.append((X[group].double() * weight[group, None]).sum(0) / weight[group].sum())
        multipliers.append(weight[group].sum() / len(set(run[group].tolist())))
    if not chosen:
        return AgreedSamples(X.double(), labels, weight, confidence, votes).first(0)
    best = torch.argsort(confidence[chosen], descending=True, stable=True)
    index = torch.tensor(chosen)[best]
    return AgreedSamples(torch.stack(samples)[best], labels[index], torch.stack(multipliers)[best], confidence[index],
                  votes[index])  # fmt: skip


def _wrong_signs(found: Candidates) -> Tensor:
    """Booleans [R, m]: whether a restart has the negative of a sample with a larger multiplier."""
    X = torch.nn.functional.normalize(found.inputs, dim=2)
    larger = found.multipliers[:, None] > STRONGER * found.multipliers[:, :, None]
    return ((X @ X.transpose(1, 2) < NEGATIVE_COSINE) & larger).any(dim=2)


def _representatives(order: list[int], eligible: Tensor, duplicates: Tensor) -> list[int]:
    """The first eligible sample of each set of duplicates, in order."""
    free = eligible.clone()
    chosen = []
    for i in order:
        if free[i]:
            chosen.append(i)
            free &= ~duplicates[i]
            free[i] = False
    return chosen

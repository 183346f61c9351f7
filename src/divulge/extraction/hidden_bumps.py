"""Narrow bumps, found by the rounding errors that their large weights cause.

A tent of height one over a slab of width g takes neurons of weights 2/g, -4/g and 2/g, which cancel everywhere but in
the slab. In exact arithmetic no value outside the slab shows it. In floating point the three terms leave their rounding
errors wherever they are active: about 2/g times those of the other neurons. A few verified points are therefore asked
again from right beside them. Where the target rounds many times more coarsely than the copy on one side of a boundary
and not on the other, the boundary is searched by bisection, and values close to it meet the bump. Bumps whose weights
are no larger than the other neurons' cause no such errors; only points inside their slab show them.

This check is ours; neither Milli 2019 nor Chen 2021 has it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from divulge.extraction.relu_network import NetworkEstimate

Ask = Callable[[Tensor], Tensor]
STEP = 2.0**-36
"""Distance at which rounding is measured beside a point, as a share of the point's size: no kink lies between."""
ASKED, COMPUTED, ASKED_CLOSELY = 2, 16, 5
"""Values asked beside each point; values of the copy computed there; values asked beside each point of a bisection."""
COARSE, FINE = 8.0, 2.0
"""Rounding of at least so many times the copy's counts as coarse; of at most so many times as fine."""
HALVINGS = 20
RATIO = 1.03
"""Ratio of successive distances from the boundary at which values are compared."""
PATHS = 3
HIDDEN = (
    "The copy agrees on all fresh points, but the target rounds more coarsely on one side of a hyperplane that was not "
    "found: neurons of large weights that cancel must be hidden there."
)


@dataclass(frozen=True)
class RoundingEvidence:
    """What the rounding errors show."""

    point: Tensor | None = None
    """A point where the copy is wrong, or None."""
    hidden: bool = False
    """True if a boundary was found that no known hyperplane explains."""


def compare_rounding(
    ask: Ask, copy: NetworkEstimate, X: Tensor, truth: Tensor, *, allowed: float, generator: torch.Generator
) -> RoundingEvidence:
    """Compare the target's rounding errors with the copy's at rows ``X``, where the copy meets the ``truth`` [n, k].

    ``ask`` gives the target's float64 values. The copy counts as wrong where it is off by more than ``allowed``.
    """
    ratio = _rounding_ratio(ask, copy, X, truth, ASKED, generator)
    coarse, fine = X[ratio > COARSE], X[ratio < FINE]
    if not len(coarse) or not len(fine):
        return RoundingEvidence()
    boundaries = []
    for start in fine[torch.randperm(len(fine), generator=generator)[:PATHS]]:
        end = coarse[int(torch.randint(len(coarse), (1,), generator=generator))]
        point, boundary = _bisect(ask, copy, start, end, allowed, generator)
        if point is not None:
            return RoundingEvidence(point=point)
        boundaries.append(boundary)
    explained = _on_known_hyperplane(copy, torch.stack(boundaries), float((coarse[0] - fine[0]).norm()))
    return RoundingEvidence(hidden=not explained)


def _rounding_ratio(
    ask: Ask, copy: NetworkEstimate, X: Tensor, truth: Tensor, asked: int, generator: torch.Generator
) -> Tensor:
    """The target's rounding error over the copy's, at each row [n]."""
    moves = torch.randn(len(X), COMPUTED, X.shape[1], generator=generator, dtype=torch.float64)
    moves *= STEP * X.norm(dim=1)[:, None, None] / X.shape[1] ** 0.5
    beside = X[:, None, :] + moves
    value, gradient = copy.value_and_gradient(X)
    expected = torch.einsum("nkd,nmd->nmk", gradient, beside - X[:, None, :])
    own = copy.value(beside.flatten(0, 1)).reshape(len(X), COMPUTED, -1) - value[:, None, :] - expected
    theirs = ask(beside[:, :asked].flatten(0, 1)).reshape(len(X), asked, -1) - truth[:, None, :] - expected[:, :asked]
    terms = copy.preactivation(X).square() @ copy.W.square().T
    limits = torch.finfo(torch.float64)
    least = limits.eps * torch.maximum(terms.sqrt(), truth.abs()) / 4 + limits.tiny  # whichever sign neurons have
    ratio: Tensor = theirs.square().mean(dim=1).sqrt() / torch.maximum(own.square().mean(dim=1).sqrt(), least)
    return ratio.amax(dim=1)


def _bisect(
    ask: Ask, copy: NetworkEstimate, fine: Tensor, coarse: Tensor, allowed: float, generator: torch.Generator
) -> tuple[Tensor | None, Tensor]:
    """A point between the two where the copy is wrong, or None; and the boundary at which rounding becomes coarse.

    The rounding errors of a bump grow with the distance from it, so the boundary lies some widths behind the bump.
    """
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        x = (fine + middle * (coarse - fine))[None]
        truth = ask(x)
        if bool(_wrong(truth, copy, x, allowed)):
            return x[0], x[0]
        if float(_rounding_ratio(ask, copy, x, truth, ASKED_CLOSELY, generator)) > (COARSE * FINE) ** 0.5:
            high = middle
        else:
            low = middle
    steps = int(HALVINGS * math.log(2) / math.log(RATIO))
    t = high * (1 - RATIO ** -torch.arange(steps, dtype=torch.float64))
    rows = fine + t[:, None] * (coarse - fine)
    wrong = _wrong(ask(rows), copy, rows, allowed)
    point = rows[wrong][0] if bool(wrong.any()) else None
    return point, fine + high * (coarse - fine)


def _wrong(truth: Tensor, copy: NetworkEstimate, rows: Tensor, allowed: float) -> Tensor:
    """Where the copy is off by more than is allowed [n], in proportion to the distance of rows far out."""
    size = (rows.norm(dim=1) / rows.shape[1] ** 0.5).clamp_min(1)
    wrong: Tensor = (truth - copy.value(rows)).abs().amax(dim=1) > allowed * size
    return wrong


def _on_known_hyperplane(copy: NetworkEstimate, points: Tensor, length: float) -> bool:
    """Whether one known hyperplane passes all these points: then its own neurons cancel in part."""
    if not copy.width:
        return False
    distance = copy.preactivation(points).abs().amax(dim=0)
    return bool(distance.min() <= 0.1 * length / points.shape[1] ** 0.5)

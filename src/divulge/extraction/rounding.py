"""Weights that cancel still round: bumps that are too narrow for points to hit give themselves away all the same.

A tent of height one over a slab of width g takes neurons of weights 2/g, -4/g and 2/g, which cancel everywhere but in
the slab. In exact arithmetic nothing outside the slab shows it. In floating point the three terms leave their rounding
errors behind wherever they are on: about 2/g times those of the other neurons, so the narrower the bump, the louder.
So a few verified points are asked again from right beside them. Where the target rounds many times more coarsely than
the copy, on one side of something and not on the other, that something is searched for, by bisection, and values close
to it meet the bump. Bumps whose weights are no larger than the other neurons' stay silent: those only points can hit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from divulge.extraction.network import Copy

STEP = 2.0**-36
"""How far beside a point its rounding is heard, as a share of the point's size: no kink lies between."""
HEARD, OWN, CLOSELY = 2, 16, 5
"""Values asked beside each point; beside each point of the copy, which costs nothing; and where noise is followed."""
LOUD, QUIET = 8.0, 2.0
"""Rounding so many times the copy's is loud; up to so many times it is quiet."""
HALVINGS = 20
CLOSER = 1.03
"""Ratio of the distances from where the noise sets in, at which values are compared."""
PATHS = 3
HIDDEN = (
    "The copy agrees on all fresh points, but the target rounds more coarsely on one side of a hyperplane that was not "
    "found: neurons of large weights that cancel must be hidden there."
)


@dataclass(frozen=True)
class Heard:
    """What listening told: a point where the copy is wrong, or that something must be hidden, or nothing."""

    point: Tensor | None = None
    hidden: bool = False


def listen(
    ask: Callable[[Tensor], Tensor], copy: Copy, X: Tensor, truth: Tensor, *, allowed: float, generator: torch.Generator
) -> Heard:
    """Compare the target's rounding with the copy's at rows ``X`` that the copy answers like the ``truth`` [n, k].

    ``ask`` gives the target's float64 values; the copy is wrong where it is off by more than ``allowed``.
    """
    loudness = _loudness(ask, copy, X, truth, HEARD, generator)
    loud, quiet = X[loudness > LOUD], X[loudness < QUIET]
    if not len(loud) or not len(quiet):
        return Heard()
    onsets = []
    for start in quiet[torch.randperm(len(quiet), generator=generator)[:PATHS]]:
        end = loud[int(torch.randint(len(loud), (1,), generator=generator))]
        point, onset = _follow(ask, copy, start, end, allowed, generator)
        if point is not None:
            return Heard(point=point)
        onsets.append(onset)
    return Heard(hidden=not _explained(copy, torch.stack(onsets), float((loud[0] - quiet[0]).norm())))


def _loudness(
    ask: Callable[[Tensor], Tensor], copy: Copy, X: Tensor, truth: Tensor, heard: int, generator: torch.Generator
) -> Tensor:
    """The target's rounding errors over the copy's, at each row [n]."""
    moves = torch.randn(len(X), OWN, X.shape[1], generator=generator, dtype=torch.float64)
    moves *= STEP * X.norm(dim=1)[:, None, None] / X.shape[1] ** 0.5
    beside = X[:, None, :] + moves
    value, gradient = copy.gradient(X)
    expected = torch.einsum("nkd,nmd->nmk", gradient, beside - X[:, None, :])
    own = copy.value(beside.flatten(0, 1)).reshape(len(X), OWN, -1) - value[:, None, :] - expected
    asked = ask(beside[:, :heard].flatten(0, 1)).reshape(len(X), heard, -1) - truth[:, None, :] - expected[:, :heard]
    terms = (X @ copy.neurons.normal.T + copy.neurons.offset).square() @ copy.neurons.weight.square().T
    limits = torch.finfo(torch.float64)
    least = limits.eps * torch.maximum(terms.sqrt(), truth.abs()) / 4 + limits.tiny  # whichever way round neurons stand
    ratio: Tensor = asked.square().mean(dim=1).sqrt() / torch.maximum(own.square().mean(dim=1).sqrt(), least)
    return ratio.amax(dim=1)


def _follow(
    ask: Callable[[Tensor], Tensor],
    copy: Copy,
    quiet: Tensor,
    loud: Tensor,
    allowed: float,
    generator: torch.Generator,
) -> tuple[Tensor | None, Tensor]:
    """A point between a quiet and a loud one where the copy is wrong, or None; and where the noise sets in.

    The noise of a bump grows with the distance from it, so it sets in some widths behind the bump.
    """
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        x = (quiet + middle * (loud - quiet))[None]
        truth = ask(x)
        if bool(_wrong(truth, copy, x, allowed)):
            return x[0], x[0]
        if float(_loudness(ask, copy, x, truth, CLOSELY, generator)) > (LOUD * QUIET) ** 0.5:
            high = middle
        else:
            low = middle
    steps = int(HALVINGS * math.log(2) / math.log(CLOSER))
    t = high * (1 - CLOSER ** -torch.arange(steps, dtype=torch.float64))
    rows = quiet + t[:, None] * (loud - quiet)
    wrong = _wrong(ask(rows), copy, rows, allowed)
    point = rows[wrong][0] if bool(wrong.any()) else None
    return point, quiet + high * (loud - quiet)


def _wrong(truth: Tensor, copy: Copy, rows: Tensor, allowed: float) -> Tensor:
    """Where the copy is off by more than is allowed [n], in proportion to the distance of rows far out."""
    size = (rows.norm(dim=1) / rows.shape[1] ** 0.5).clamp_min(1)
    wrong: Tensor = (truth - copy.value(rows)).abs().amax(dim=1) > allowed * size
    return wrong


def _explained(copy: Copy, onsets: Tensor, length: float) -> bool:
    """Whether one known hyperplane passes all places where the noise sets in: neurons on it cancel in part."""
    if not copy.width:
        return False
    distance = (onsets @ copy.neurons.normal.T + copy.neurons.offset).abs().amax(dim=0)
    return bool(distance.min() <= 0.1 * length / onsets.shape[1] ** 0.5)

"""The picture of whole levels in a small space around a candidate, by a beam search over combinations of its pixels.

A candidate is wrong by a combination of known pictures, with coefficients that are small and otherwise unknown. The
true levels are whole numbers at every pixel, and so are differences of neighbouring pixels and of colours. Pictures are
smooth, so these differences are far less uncertain than the levels themselves. The coefficients follow from one
difference after another: the least uncertain one is taken next, every whole number that it may be is one hypothesis,
and each hypothesis makes all others less uncertain (a Kalman filter). Differences that are certain but no whole number
end a hypothesis. With many more pixels than coefficients one hypothesis is left.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

BEAM = 4096
"""Hypotheses that are kept."""
SETTLED, RESOLVED = 0.05, 0.15
"""Standard deviations, in levels, below which a number is known, and below which it is rounded without alternatives."""
REACH = 3.2
"""Standard deviations up to which alternatives are looked at."""
NOISE = 0.01
"""Standard deviation of the rounding of the weights, in levels."""
CHECKED = 64
"""Certain numbers that every hypothesis must agree with."""
STEPS = 8
"""Steps for each direction."""
ENDED, WHOLE = 8, 0.02
"""Hypotheses that are returned, and the mean distance from whole levels from which on only the best one is."""
FORGETTING = 16
"""Steps after which the numbers that are settled are left out."""


def combinations(levels: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Differences of levels [m, d] that are whole where the levels are, [m, k], after the levels themselves."""
    P = levels.reshape(len(levels), -1, *shape[-2:])
    if P.shape[1] > 1:
        P = torch.cat([P, P - P.roll(1, dims=1)], dim=1)
    across, down = P[..., 1:] - P[..., :-1], P[..., 1:, :] - P[..., :-1, :]
    both = across[..., 1:, :] - across[..., :-1, :]
    bends = across[..., 1:] - across[..., :-1], down[..., 1:, :] - down[..., :-1, :]
    return torch.cat([part.flatten(1) for part in (P, across, down, both, *bends)], dim=1)


@dataclass
class _Beam:
    """Hypotheses about the coefficients, which share a covariance."""

    values: Tensor
    """The numbers [k] of the candidate, which are whole in the true picture."""
    ways: Tensor
    """How they change with the coefficients, [w, k]."""
    mean: Tensor
    """[b, w]."""
    score: Tensor
    """[b]."""
    covariance: Tensor
    """[w, w]."""
    variance: Tensor
    """Of the numbers, [k]."""
    kept: float = 0.0
    """The logarithm of the probability that the true hypothesis was kept, of what was left at each step."""

    def drop_contradicted(self) -> None:
        """Keep the hypotheses that contradict the fewest certain numbers."""
        if len(self.mean) == 1:
            return
        certain = (self.variance < (RESOLVED / 2) ** 2).nonzero()[:CHECKED, 0]
        numbers = self.values[certain] + self.mean @ self.ways[:, certain]
        odd = (numbers - numbers.round()).abs() > 5 * self.variance[certain].sqrt() + 0.1
        kept = odd.sum(dim=1) <= odd.sum(dim=1).min()
        self.mean, self.score = self.mean[kept], self.score[kept]

    def forget_settled(self) -> None:
        """Leave out the numbers that are known, but for some with which hypotheses must agree."""
        kept = self.variance > SETTLED**2
        kept[(self.variance < (RESOLVED / 2) ** 2).nonzero()[:CHECKED, 0]] = True
        self.values, self.ways, self.variance = self.values[kept], self.ways[:, kept], self.variance[kept]

    def next(self) -> int:
        """The number that says most without alternatives, or else the least uncertain one."""
        plain = (self.variance <= RESOLVED**2) & (self.variance > SETTLED**2)
        if bool(plain.any()):
            return int(torch.where(plain, self.variance, 0.0).argmax())
        return int(torch.where(self.variance > RESOLVED**2, self.variance, torch.inf).argmin())

    def take(self, place: int) -> None:
        """Make hypotheses of the whole numbers that the one at ``place`` may be."""
        variance = float(self.variance[place])
        deviation = variance**0.5
        number = self.values[place] + self.mean @ self.ways[:, place]
        reach = 0 if deviation <= RESOLVED else int(REACH * deviation + 0.5)
        moved = number.round()[:, None] + torch.arange(-reach, reach + 1).to(number) - number[:, None]
        scores = self.score[:, None] - moved.square() / (2 * (variance + NOISE**2))
        best = scores.flatten().topk(min(BEAM, scores.numel()))
        self.kept += float(best.values.logsumexp(0) - scores.flatten().logsumexp(0))
        spread = self.covariance @ self.ways[:, place]
        gain = spread / (variance + NOISE**2)
        self.mean = self.mean[best.indices // moved.shape[1]] + moved.flatten()[best.indices, None] * gain
        self.score = best.values
        self.covariance = self.covariance - torch.outer(gain, spread)
        self.variance = (self.variance - (spread @ self.ways).square() / (variance + NOISE**2)).clamp_min(0)


def decoded(
    levels: Tensor, ways: Tensor, shape: tuple[int, ...], end: float = math.inf, *, lost: float = -math.inf
) -> tuple[Tensor, bool]:  # fmt: skip
    """Whole levels [k, d] near ``levels`` [d] in the directions ``ways`` [w, d], for pictures of a shape.

    The first of them are those that the numbers fit best, the others, if any, whole ones that they fit too.

    The coefficients of the directions are normally distributed with variance 1. Stops when ``time.perf_counter()``
    reaches ``end``, and where the logarithm of the probability that the true hypothesis was kept falls below ``lost``.
    The second result says whether the numbers decided: it is False where more hypotheses agree with all of them than
    are kept, so that the levels are those of any of them.
    """
    width = len(ways)
    numbers = combinations(torch.cat([levels[None], ways]), shape)
    beam = _Beam(
        numbers[0], numbers[1:], numbers.new_zeros(1, width), numbers.new_zeros(1), torch.eye(width).to(ways),
        numbers[1:].square().sum(dim=0),
    )  # fmt: skip
    for step in range(STEPS * width + 20):
        if float(beam.variance.max()) < SETTLED**2 or time.perf_counter() > end or beam.kept < lost:
            break
        if step % FORGETTING == FORGETTING - 1:
            beam.forget_settled()
        beam.drop_contradicted()
        beam.take(beam.next())
    ended = levels + beam.mean @ ways
    off = (ended - ended.round()).abs().mean(dim=1)
    order = off.argsort(stable=True)[:ENDED]
    order = order[(off[order] < WHOLE) | (torch.arange(len(order)) == 0)]
    return ended[order].round(), len(beam.mean) < BEAM or beam.kept < lost

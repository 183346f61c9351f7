"""One step of Adam undone: the gradient comes back from the small number that Adam adds to its root.

The first step of Adam (Kingma and Ba 2015, Algorithm 1) moves a weight by a g / (|g| + e), where a is the learning rate
and e is 1e-8. So all weights move by nearly a, and only the signs of the gradient seem to be left. But the share
e / |g| that is missing to a whole step is larger than the rounding of single precision, because |g| is small in a layer
of many units and a mean over many records. With r = |step| / a the gradient is e r / (1 - r), known to a few percent an
entry, and its span to much less. AdamW (Loshchilov and Hutter 2019) also shrinks the weights, which is undone first.

The learning rate is read from the steps: nearly all of them are as long as it is, and it is a number of few digits.
A second step is not undone: how much the gradient changed in between moves the weights by more than e does.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from divulge.core.optim import ADDED
from divulge.reconstruction.known_start import precision

DIGITS, DECAY_DIGITS = 3, 1
"""Significant digits of a learning rate, and of the weight decay of AdamW."""
WHOLE = 0.99
"""The median step of Adam, as a share of the learning rate, is above this. It also misses more of it than rounding."""
EVEN = 0.1
"""How far half of the steps are from the learning rate at most, as a share of it: decay changes them by less."""
ARITHMETIC = 1e-7
"""The relative error of a step in single precision."""
WITHIN = 6.0
"""Standard deviations of rounding by which a step may exceed the learning rate."""
ROUNDS = 6
LEAST_DECAY = 3e-4
"""Weight decay below which AdamW is taken for Adam."""
RESOLVED = 2.0
"""Standard deviations of rounding below which a step counts as whole: its gradient is too large to be seen."""


@dataclass(frozen=True)
class AdamStep:
    """A step of Adam, undone."""

    D: Tensor
    """The negative gradient [h, d] up to a factor of each row, which makes rows of the same size: so is their error."""
    scale: Tensor
    """The size of each unit's row of the gradient [h]; 1 for a unit that did not move."""
    rate: float


def undone(start: Tensor, end: Tensor) -> AdamStep | None:
    """The gradient behind the step from ``start`` to ``end`` [h, d], or None where that is no step of Adam."""
    D = end - start
    moved = D != 0
    if not bool(moved.any()):
        return None
    steps = D[moved].abs()
    rate = _few_digits(float(steps.median()))
    if float((steps - rate).abs().median()) > EVEN * rate:
        return None
    D = D + _decay(start, D, rate) * start
    r = D.abs() / rate
    rounding = precision.rounding(end) / rate + ARITHMETIC
    missing = (1 - r)[moved]
    seen = float(rounding[moved].median()) < float(missing.median()) < 1 - WHOLE  # steps along signs miss nothing
    if not seen or bool((r > 1 + WITHIN * rounding).any()):
        return None
    gradient = D.sign() * ADDED * r / torch.maximum(1 - r, RESOLVED * rounding)
    size = gradient.square().mean(dim=1, keepdim=True).sqrt()
    scale = torch.where(size > 0, size, 1.0)
    return AdamStep(gradient / scale, scale[:, 0], rate)


def _few_digits(value: float, digits: int = DIGITS) -> float:
    """The nearest number of few significant digits."""
    return float(f"{value:.{digits - 1}e}")


def _decay(start: Tensor, D: Tensor, rate: float) -> float:
    """The share of the start that AdamW took away: of steps of one length, what depends on the start.

    Steps that a small gradient made shorter are left out, half of them in each round.
    """
    moved = D != 0
    W, rest = (start * D.sign())[moved], D[moved].abs() - rate
    kept, slope = torch.ones_like(W, dtype=torch.bool), 0.0
    for _ in range(ROUNDS):
        slope = float((rest * W)[kept].sum() / W[kept].square().sum().clamp_min(1e-300))
        off = (rest - slope * W).abs()
        kept = off <= off.median()
    share = _few_digits(-slope / rate, DECAY_DIGITS)
    return share * rate if share > LEAST_DECAY else 0.0

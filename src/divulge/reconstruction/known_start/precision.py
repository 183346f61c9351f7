"""The format in which weights were released, from their values, and what it rounded off.

A difference of two checkpoints holds the inputs and the rounding of both. What is left of it beside the inputs is
compared with that rounding: so it is told whether the span of the inputs is exact.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

FORMATS = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
"""From the coarsest."""
FEW_VALUES = 300
"""Different values of a tensor up to which it was rounded to eight bits or fewer."""
OFTEN = 4
"""How often each of few values occurs, at least, on average."""
LARGEST = (127, 128, 7, 8)
"""The largest whole number of 8 and of 4 bits, by which a row is divided."""
WHOLE = 1e-3
"""How near a multiple of the step is to a whole number."""
MOST, ROWS, SHORTEST = 50_000, 8, 16
"""Weights and rows that are looked at, and the fewest weights of a row that show steps of its own."""


def stored(W: Tensor) -> str:
    """The name of the format of weights W [h, d] or [h]: "few levels", or a floating point format."""
    return _format(W)[0]


def rounding(W: Tensor) -> Tensor:
    """The standard deviation of what the format of W rounded off, of the shape of W."""
    name, step = _format(W)
    if step is not None:
        return step.expand_as(W) / math.sqrt(12)
    _, exponent = torch.frexp(W)
    last = float(torch.finfo(FORMATS.get(name, torch.float64)).eps) / 2 / math.sqrt(12)
    spacing: Tensor = torch.ldexp(torch.full_like(W, last), exponent)
    return spacing


def _format(W: Tensor) -> tuple[str, Tensor | None]:
    """The name of the format, and the distance of its levels if it has few."""
    step = _step(W)
    if step is not None:
        return "few levels", step
    few = W.flatten()[:MOST]
    for name, kind in FORMATS.items():
        if torch.equal(few, few.to(kind).to(W)) and torch.equal(W, W.to(kind).to(W)):
            return name, None
    return "float64", None


def _step(W: Tensor) -> Tensor | None:
    """The distance of neighbouring levels, a number or one for each row [h, 1]; None where there are no levels."""
    looked_at = W.flatten()[:MOST]
    values: Tensor = torch.unique(looked_at)
    if 1 < len(values) <= min(FEW_VALUES, looked_at.numel() // OFTEN):
        step: Tensor = values.diff().min()
        return step
    if W.ndim < 2 or W.shape[1] < SHORTEST:
        return None
    size = W.abs().amax(dim=1, keepdim=True)
    for largest in LARGEST:
        multiples = W[:ROWS] * largest / size[:ROWS].clamp_min(1e-300)
        if bool(((multiples - multiples.round()).abs() < WHOLE).all()) and bool(W[:ROWS].any()):
            return size / largest
    return None

"""How well an input agrees with what is known: the range of values, and the units at which its row vanishes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from divulge.reconstruction.known_start.difference import LayerPair
from divulge.reconstruction.known_start.rows import active_share
from divulge.reconstruction.value_bounds import ValueBounds

OUTSIDE = 0.02
"""The root mean square distance from the range, as a share of its width, up to which an input counts as inside."""
ACTIVE = 0.05
"""The share of an input's pre-activation at its row's zeros that may be positive: a unit that comes on in the last
steps, when the loss is small, is moved by nothing that can be seen."""


@dataclass(frozen=True)
class Evidence:
    """For each of m inputs."""

    outside: Tensor
    """Root mean square distance from the value range, as a share of its width; 0 without a range."""
    active: Tensor
    """Share of the pre-activation, at the zeros of the row, that is positive; 0 where there is no row."""

    @property
    def agrees(self) -> Tensor:
        """Whether both are small."""
        return (self.outside <= OUTSIDE) & (self.active <= ACTIVE)

    @property
    def penalty(self) -> Tensor:
        return self.outside / OUTSIDE + self.active / ACTIVE

    @property
    def confidence(self) -> Tensor:
        return 1 / (1 + self.penalty)


def evidence(X: Tensor, zero: Tensor | None, pair: LayerPair, bounds: ValueBounds | None) -> Evidence:
    """The evidence for inputs X [m, d] whose rows vanish at ``zero`` [m, h]."""
    outside = X.new_zeros(len(X))
    if bounds is not None:
        shown = X if bounds.mean is None else X + bounds.mean.to(X)
        low, high = torch.as_tensor(bounds.low).to(X), torch.as_tensor(bounds.high).to(X)
        over = (shown - high).clamp_min(0) + (low - shown).clamp_min(0)
        outside = over.square().mean(dim=1).sqrt() / bounds.width
    if zero is None or zero.shape[0] == 0:
        return Evidence(outside, X.new_zeros(len(X)))
    return Evidence(outside, active_share(pair.highest(X), zero))

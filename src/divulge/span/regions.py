"""Spans found in the standardised coordinates of a region, and the number of moves that a risk asks for."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from divulge.core.validation import checked_number
from divulge.oracles.region import Region
from divulge.span.result import DOUBT, Span


def moves_for(risk: float) -> int:
    """Moves without a change after which, with 95 % confidence, at most a share ``risk`` of moves changes an answer."""
    risk = checked_number("risk", risk, above=0, below=1)
    return math.ceil(math.log(DOUBT) / math.log1p(-risk))


def in_region(span: Span, region: Region) -> Span:
    """The span in the target's own units.

    Gradients in standardised coordinates are those of the target times the scale of each column. Singular values, gap
    and threshold stay in standardised coordinates.
    """
    if region.standard:
        return span
    rows = span.basis / region.scale.to(span.basis)
    basis = torch.linalg.qr(rows.T).Q.T.contiguous() if len(rows) else rows
    return replace(span, basis=basis, region=replace(region, rows=None))

"""Rows of a table in the span: independent components of the values, whose sizes the bias coordinate fixes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from divulge.reconstruction.known_start.contrast import components
from divulge.reconstruction.known_start.difference import Span


def separate(span: Span, *, seed: int, within: Tensor | None = None, end: float = math.inf) -> Tensor:
    """Coordinates c [k, r] of candidates for the rows that the span mixes, or that its part ``within`` [k, r] mixes."""
    basis = torch.eye(span.rank).to(span.V) if within is None else within
    values = (basis @ span.V)[:, : span.input_dim]
    mixing = components(values[:, None, None, None], torch.Generator().manual_seed(seed), end)
    return (mixing @ basis) / span.S

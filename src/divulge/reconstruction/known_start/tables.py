"""Rows of a table in the span: by their categories, and as independent components of the values.

The bias coordinate fixes the sizes of the components.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from divulge.reconstruction.known_start import one_hot
from divulge.reconstruction.known_start.contrast import components
from divulge.reconstruction.known_start.difference import Span
from divulge.reconstruction.matching import correlation


def separate(span: Span, *, seed: int, within: Tensor | None = None, end: float = math.inf) -> Tensor:
    """Coordinates c [k, r] of candidates for the rows that the span mixes, or that its part ``within`` [k, r] mixes."""
    basis = torch.eye(span.rank).to(span.V) if within is None else within
    exact = one_hot.records(span, seed=seed, within=within, end=end)
    missing = len(basis) - len(exact)
    if missing <= 0:
        return exact
    values = (basis @ span.V)[:, : span.input_dim]
    mixing = components(values[:, None, None, None], torch.Generator().manual_seed(seed), end)
    others = (mixing @ basis) / span.S
    if len(exact):
        others = others[correlation(span.inputs(others), span.inputs(exact)).amax(dim=1).argsort()[:missing]]
    return torch.cat([exact, others])

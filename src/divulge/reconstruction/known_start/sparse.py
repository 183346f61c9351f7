"""Non-negative inputs with exact zeros (digits, one-hot columns, features behind a ReLU), made exact from near ones.

An input is (c S) V, and 1 at the bias coordinate. Near a candidate the input is looked for whose small and negative
entries vanish, by iteratively reweighted least squares. It is certified if it vanishes at more entries than can be
forced, and no mixture vanishes there: a mixture of non-negative inputs is zero only where all of them are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from divulge.reconstruction.known_start.difference import Span
from divulge.reconstruction.known_start.one_hot import WHOLE, categorical
from divulge.reconstruction.known_start.rows import BATCH, LEVERAGE, excluding, largest_leverage, least

CERTAIN = 6.0
"""Standard deviations of the rounding within which an entry counts as zero."""
RESOLVED, NEARLY = 1e-5, 1e-3
"""Shares of the root mean square entry below which an entry counts as zero in any case, and as nearly zero."""
NEGATIVE = 0.01
"""Share of entries below minus a hundredth of the root mean square that an input may have."""
SMALL, MOST_BELOW = 0.3, 0.2
"""Share of the root mean square entry below which an entry of a candidate may be a zero, and the share of entries that
may be as far below zero."""
ROUNDS = 14
SMOOTHING = (0.03, 0.1, 0.3)
DEPENDENT = 1e-5
"""The part of an input, of 1, that others must leave for it to be no combination of them."""
FEW = 8
"""Inputs whose leverages are computed together: each takes a matrix of the span's size."""
MOST_COLUMNS = 2000
"""Columns that the search looks at; all of them are looked at to certify."""


def exact_inputs(span: Span, c: Tensor, *, seed: int, within: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Coordinates [k, r] of exact inputs near candidates c [m, r], and those of the rest, with zeros where it has some.

    ``within`` [w, r] is the part of the span in which the candidates lie. It is known up to the errors of what it was
    computed from, so the inputs found there are made exact in the whole span.
    """
    if not span.has_bias or len(c) == 0:
        return c[:0], c
    kept, left, plausible = [c[:0]], c, _plausible(span, c)
    whole = torch.eye(span.rank).to(c)
    parts = [(smooth, whole) for smooth in SMOOTHING]
    if within is not None:
        parts = [*((smooth, within) for smooth in SMOOTHING), (SMOOTHING[0], whole)]
    for smooth, basis in parts:
        tried = plausible.nonzero()[:, 0]
        if len(tried) == 0:
            break
        new = torch.cat([_refined(span, left[i], basis, smooth, seed) for i in torch.split(tried, BATCH)])
        better, sure = _sparse_ones(span, new), certified(span, new)
        kept.append(new[sure])
        left = left.index_copy(0, tried[better], new[better])
        remaining = torch.ones(len(left), dtype=torch.bool).index_fill(0, tried[sure], False)
        left, plausible = left[remaining], plausible[remaining]
        if not bool(better.any()):
            break
    return distinct(torch.cat(kept)), left


def _sparse_ones(span: Span, c: Tensor) -> Tensor:
    """Whether inputs are non-negative and nearly zero at more entries than can be forced, [m]."""
    X = span.inputs(c)
    size = X.square().mean(dim=1, keepdim=True).sqrt().clamp_min(1e-300)
    zeros = ((X.abs() < NEARLY * size) & _live(span)).sum(dim=1) >= least(span.rank)
    sparse: Tensor = zeros & ((-0.01 * size > X).double().mean(dim=1) < NEGATIVE) & torch.isfinite(X).all(dim=1)
    return sparse


def _live(span: Span) -> Tensor:
    """The inputs [d] that are not 0 in every record."""
    size = span.V[:, : span.input_dim].norm(dim=0)
    live: Tensor = size > 1e-3 * size.max()
    return live


def _plausible(span: Span, c: Tensor) -> Tensor:
    """Whether candidates may be near non-negative inputs with enough zeros, [m]."""
    X = span.inputs(c)
    small = SMALL * X.square().mean(dim=1, keepdim=True).sqrt()
    zeros = (small > X).sum(dim=1) >= least(span.rank)
    plausible: Tensor = zeros & ((-small > X).double().mean(dim=1) < MOST_BELOW)
    return plausible


def distinct(c: Tensor) -> Tensor:
    """Coordinates without those that repeat an earlier one."""
    if len(c) == 0:
        return c
    unit = c / c.norm(dim=1, keepdim=True)
    same = ((unit @ unit.T).abs() > 1 - 1e-6).triu(diagonal=1)
    return c[~same.any(dim=0)]


def independent(span: Span, c: Tensor) -> Tensor:
    """Coordinates [k, r] without those that are combinations of others; those with the most zeros come first.

    Where inputs have equal values at several places, a combination of two of them has more zeros than can be forced.
    """
    X = span.inputs(c)
    zeros = (X.abs() < NEARLY * X.square().mean(dim=1, keepdim=True).sqrt()).sum(dim=1)
    basis, kept = c.new_zeros(c.shape[1], 0), []
    for place in zeros.argsort(descending=True, stable=True).tolist():
        unit = rest = c[place] / c[place].norm()
        for _ in range(2):
            rest = rest - basis @ (basis.T @ rest)
        if float(rest.norm()) > DEPENDENT * float(unit.norm()):
            basis = torch.cat([basis, (rest / rest.norm())[:, None]], dim=1)
            kept.append(place)
    return c[torch.tensor(sorted(kept), dtype=torch.long)]


def certified(span: Span, c: Tensor) -> Tensor:
    """Whether inputs with coordinates c [m, r] are non-negative, and zero where no mixture is, [m]."""
    X = span.inputs(c)
    size = X.square().mean(dim=1, keepdim=True).sqrt().clamp_min(1e-300)
    scale = span.coordinates(X).norm(dim=1, keepdim=True)
    V = span.V[:, :-1].T * 1.0  # [d, r]
    rounding = CERTAIN * span.noise * scale
    zero = (X.abs() < torch.maximum(rounding, RESOLVED * size)) & _live(span)
    inside = (-torch.maximum(rounding, 0.01 * size) <= X).all(dim=1)  # alike digits have mixtures with few below zero
    levels = X[:, categorical(span)]  # sums of inputs whose values repeat have many zeros, but fractions here
    inside &= ((levels - levels.round()).abs() < WHOLE).all(dim=1)
    enough = zero.sum(dim=1) >= least(span.rank)
    result: Tensor = inside & enough & torch.isfinite(X).all(dim=1)
    for start in range(0, len(c), BATCH):
        part = slice(start, start + BATCH)
        if bool(result[part].any()):
            result[part] &= excluding(V, zero[part]) >= least(span.rank)
    p = c * span.S / (c * span.S).norm(dim=1, keepdim=True).clamp_min(1e-300)
    likely = result.nonzero()[:, 0]
    for start in range(0, len(likely), FEW):  # a direction that a forced zero alone excludes is part of a mixture
        place = likely[start : start + FEW]
        result[place] &= largest_leverage(V, p[place], zero[place]) <= LEVERAGE
    return result


def _refined(span: Span, c: Tensor, within: Tensor, smooth: float, seed: int) -> Tensor:
    """Candidates whose small entries were made zero, in the part ``within`` [w, r] of the span."""
    V, last = (within @ span.V[:, :-1]).T, within @ span.V[:, -1]
    B = V[V.norm(dim=1) > 1e-4 * V.norm(dim=1).max()]
    if len(B) > MOST_COLUMNS:
        B = B[torch.randperm(len(B), generator=torch.Generator().manual_seed(seed))[:MOST_COLUMNS]]
    p = (c * span.S) @ within.T
    p = p / (p @ last)[:, None]
    eye = torch.eye(len(within)).to(B)
    for k in range(ROUNDS):
        y = p @ B.T
        y = y / y.square().mean(dim=1, keepdim=True).sqrt()
        narrow = smooth * 0.6**k
        u = 1 / (y.clamp_min(0) ** 2 + 0.1 * y.clamp(max=0) ** 2 + narrow**2 + 1e-10)
        M = (B.T[None] * u[:, None]) @ B
        ridge = 1e-12 * M.diagonal(dim1=1, dim2=2).mean(dim=1)
        factor = torch.linalg.cholesky_ex(M + ridge[:, None, None] * eye)[0]
        p = torch.cholesky_solve((last.expand_as(p) if k % 2 else p)[..., None], factor)[..., 0]
        p = p / (p @ last)[:, None]
    refined: Tensor = torch.where(torch.isfinite(p).all(dim=1, keepdim=True), (p @ within) / span.S, c)
    return refined

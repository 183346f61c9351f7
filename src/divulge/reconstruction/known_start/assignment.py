"""Which row of A belongs to which input, and which inputs the rows tell from mixtures."""

from __future__ import annotations

import torch
from torch import Tensor

from divulge.reconstruction.known_start.difference import Span
from divulge.reconstruction.matching import correlation

MISSING, PARTNER = 0.05, 0.5
"""The share of the inputs or rows that may be missing for others to be certain, and the correlation with a missing one
from which on an input may be a mixture with it."""
SHARED = 1e-4
"""The share of a row in a certain input, of 1, from which on the row is not another input's."""
MIXED = 0.1
"""The share of a second row in an input, of the first, up to which the first one is taken for that of the input."""


def single_row(c: Tensor, rows_known: Tensor) -> tuple[Tensor, Tensor]:
    """Of the rows [g, r] the one with the largest share in each input [m, r], [m], and whether it is the only one."""
    if len(rows_known) == 0:
        return torch.zeros(len(c), dtype=torch.long), torch.zeros(len(c), dtype=torch.bool)
    shares = (c @ rows_known.T).abs() / c.norm(dim=1, keepdim=True)
    largest = shares.topk(min(2, len(rows_known)), dim=1)
    only: Tensor = (largest.values[:, 0] > SHARED) & (largest.values[:, 1:] < MIXED * largest.values[:, :1]).all(dim=1)
    return largest.indices[:, 0], only


def corrected(rows_known: Tensor, c: Tensor) -> Tensor:
    """One candidate for each certain row [g, r]: the nearest of c [m, r], moved to agree with all certain rows."""
    if len(rows_known) == 0:
        return c[:0]
    Q = rows_known.T
    agreement = c @ Q
    nearest = (agreement.abs() / c.norm(dim=1, keepdim=True)).argmax(dim=0)
    picked = c[nearest] / agreement[nearest].diagonal()[:, None]
    wanted = torch.eye(len(rows_known)).to(Q) - picked @ Q
    result: Tensor = picked + wanted @ torch.linalg.pinv(Q)
    return result


def unclaimed(rows_known: Tensor, c: Tensor, count: int) -> Tensor:
    """The ``count`` candidates of c [m, r] in which the certain rows [g, r] have the smallest share."""
    share = (c @ rows_known.T).abs().amax(dim=1) / c.norm(dim=1)
    return c[share.argsort()[:count].sort().values]


def rows_tell_mixtures(span: Span, rows_known: Tensor, c: Tensor, candidates: Tensor) -> Tensor:
    """Whether inputs c [m, r] of certain rows [g, r] are no mixtures with inputs whose rows are missing, [m]."""
    missing = span.rank - len(rows_known)
    return unmixed(span, c, unclaimed(rows_known, candidates, missing) if missing else c[:0], missing)


def unmixed(span: Span, c: Tensor, rest: Tensor, missing: int) -> Tensor:
    """Whether inputs c [m, r] are no mixtures with the ``missing`` ones, for which ``rest`` [k, r] are candidates, [m].

    Where y is a brighter copy of x up to the end of the range, 3 x - 2 y is in the range too, has more zeros than
    either, whole levels, and the row of x. Only y tells that it is a mixture. So few inputs may be missing, and none
    that is like it.
    """
    if missing == 0 or missing > MISSING * span.rank or len(rest) == 0:
        return torch.full((len(c),), missing == 0)
    rest = rest[torch.isfinite(span.inputs(rest)).all(dim=1)]
    likeness: Tensor = correlation(span.inputs(c), span.inputs(rest)).abs().amax(dim=1)
    return likeness < PARTNER

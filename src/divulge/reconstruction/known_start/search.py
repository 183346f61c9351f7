"""The loop between the two sides of the difference: inputs give rows of A, rows of A give inputs.

Separated inputs show which units they leave off, so where their rows vanish. A row is kept if it vanishes at more units
than can be forced, and at units that exclude every other row (``rows.py``). All n rows together give all inputs
exactly, because the coordinates of the inputs are the inverse of the directions of the rows. With fewer rows the
separated inputs are corrected so that they agree with those, and the rest of the span, which is smaller, is separated
again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from divulge.core import progress
from divulge.reconstruction.known_start import rows, sparse
from divulge.reconstruction.known_start.derivatives import Derivatives
from divulge.reconstruction.known_start.difference import LayerPair, Span
from divulge.reconstruction.known_start.rows import Rows, Weights

Separate = Callable[[Tensor | None, int], Tensor]
"""From a part of the span (None for all of it) and the number of the attempt to coordinates [m, r] of candidates."""
ACTIVE = 0.45
"""The share of an input's pre-activation, at the zeros of its row, that may be positive. Where two inputs move all
units alike, as with one output, a mixture of their rows vanishes where both are on, and this share is about a half."""
WEIGHTS = (Weights(), Weights(0.5), Weights(1.0, 20.0), Weights(2.0, 1.5))
ROUNDS = 10
IDLE = 2
FEWEST = 2
"""Certain rows without which the last input of a span is not taken for determined."""


@dataclass(frozen=True)
class Factors:
    """Directions of rows, the certain ones first, and what was separated."""

    rows: Rows
    sure: int
    """How many of the rows are certain."""
    separated: Tensor
    """Coordinates [m, r] of the candidates of the first separation."""
    others: Tensor
    """Coordinates of later candidates."""
    exact: Tensor
    """Coordinates [k, r] of inputs that are certain by their own zeros."""

    @property
    def determined(self) -> int:
        """How many inputs the certain rows determine: with all rows but one, the last is what no row has a share in."""
        rank = self.rows.q.shape[1]
        return rank if FEWEST <= self.sure == rank - 1 else self.sure


@dataclass
class _Pool:
    """Rows found so far."""

    span: Span
    pair: LayerPair
    units: Tensor
    derivatives: Derivatives | None
    rows: Rows

    def add(self, c: Tensor, weights: Weights) -> None:
        """Rows from the masks of the inputs with coordinates c."""
        X = self.span.inputs(c)
        good = torch.isfinite(X).all(dim=1)
        X = X[good]
        if len(X) == 0:
            return
        highest = self.pair.highest(X)
        c = self.span.coordinates(X)
        slopes = None if self.derivatives is None else self.derivatives(X)
        found = [rows.from_masks(self.span, highest, c, self.units, weights=weights, slopes=slopes)]
        if len(c) == self.span.rank:
            found.append(rows.from_inverse(self.span, highest, c, self.units))
        self.rows = rows.join([self.rows, *found])

    def reduce(self) -> int:
        """Keep independent rows, the certain ones first and those with most zeros among them; how many are certain."""
        rank = self.span.rank
        sure = self.rows.certain() & (self.rows.active <= ACTIVE)
        score = torch.where(sure, 10 * len(self.span.L) + self.rows.zeros, self.rows.near)
        order = torch.argsort(score, descending=True, stable=True)
        chosen: list[int] = []
        basis = self.rows.q.new_zeros(rank, 0)
        for i in order.tolist():
            rest = self.rows.q[i]
            for _ in range(2):
                rest = rest - basis @ (basis.T @ rest)
            if float(rest.norm()) > (2e-3 if bool(sure[i]) else 0.1):
                basis = torch.cat([basis, (rest / rest.norm())[:, None]], dim=1)
                chosen.append(i)
            if len(chosen) == rank:
                break
        index = torch.tensor(chosen, dtype=torch.long)
        self.rows = self.rows.take(index)
        return int(sure[index].sum())


def corrected(rows_known: Tensor, c: Tensor) -> Tensor:
    """One candidate for each certain row [g, r]: the nearest of c [m, r], moved to agree with all certain rows."""
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


def search(
    span: Span, pair: LayerPair, separate: Separate, derivatives: Derivatives | None, *, seed: int, end: float,
    rounds: int = ROUNDS,
) -> Factors:  # fmt: skip
    """Find the rows of A, from candidates for the inputs."""
    units = rows.informative(span)
    pool = _Pool(span, pair, units, derivatives, rows.none(span))
    separated = separate(None, 0)
    exact = sparse.exact_inputs(span, separated, seed=seed)
    others = [separated[:0]]
    pool.add(separated, WEIGHTS[0])
    pool.add(exact, WEIGHTS[0])
    sure, idle = pool.reduce(), 0
    for number in range(rounds):
        allowed = 0 if sure == span.rank - 1 else IDLE
        if span.rank in (sure, len(exact)) or idle > allowed or time.perf_counter() > end:
            break
        before = sure + len(exact)
        fresh = _complement(pool.rows.q[:sure], span, separate, number + 1)
        known = torch.cat([exact, separated])
        found = sparse.exact_inputs(span, fresh, seed=seed + number + 1)
        exact = sparse.distinct(torch.cat([exact, found]))
        others.append(fresh)
        weights = WEIGHTS[(number + 1) % len(WEIGHTS)]
        pool.add(torch.cat([corrected(pool.rows.q[:sure], known), fresh]) if sure else fresh, weights)
        pool.add(found, weights)
        sure = pool.reduce()
        progress.report("rows of the difference", done=sure, total=span.rank)
        idle = 0 if sure + len(exact) > before else idle + 1
    return Factors(pool.rows, sure, separated, torch.cat(others), exact)


def _complement(q: Tensor, span: Span, separate: Separate, attempt: int) -> Tensor:
    """Candidates of the part of the span in which the certain rows q [g, r] have no share."""
    keep = torch.linalg.svd(q)[2][len(q) :] if len(q) else torch.eye(span.rank).to(q)
    if len(keep) == 1:
        return keep
    return separate(torch.linalg.qr((keep * span.S).T)[0].T, attempt)

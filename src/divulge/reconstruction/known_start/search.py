"""The loop between the two sides of the difference: inputs give rows of A, rows of A give inputs.

Separated inputs show which units they leave off, so where their rows vanish. A row is kept if it vanishes at more units
than can be forced, and at units that exclude every other row (``rows.py``). All n rows together give all inputs
exactly, because the coordinates of the inputs are the inverse of the directions of the rows. With fewer rows the
separated inputs are corrected so that they agree with those, and the rest of the span, which is smaller, is separated
again. Inputs that are certain by themselves (``sparse.py``, ``grid.py``) have no share in the rows of others.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from divulge.core import progress
from divulge.reconstruction.known_start import one_hot, rows, sparse
from divulge.reconstruction.known_start.assignment import SHARED, corrected, rows_tell_mixtures, single_row, unmixed
from divulge.reconstruction.known_start.derivatives import Derivatives
from divulge.reconstruction.known_start.difference import LayerPair, Span
from divulge.reconstruction.known_start.grid import PATIENCE, Grid
from divulge.reconstruction.known_start.rows import Rows, Weights
from divulge.reconstruction.matching import correlation

Separate = Callable[[Tensor | None, int], Tensor]
"""From a part of the span (None for all of it) and the number of the attempt to coordinates [m, r] of candidates."""
ACTIVE = 0.45
"""The share of an input's pre-activation, at the zeros of its row, that may be positive. Where two inputs move all
units alike, as with one output, a mixture of their rows vanishes where both are on, and this share is about a half."""
LED: tuple[Weights, ...] = (Weights(), Weights(0.5), Weights(1.0, 20.0), Weights(2.0, 1.5))
ALONE: tuple[Weights, ...] = (
    Weights(2.0, large_steps=True),
    Weights(3.0, large_steps=True),
    Weights(2.0, 1.5, large_steps=True),
)
"""What leads the search for rows, in turn: as a rule, and after large steps."""
OFF = 0.05
"""The same share for an input that is certain by its row: a unit that comes on in the last steps is hardly moved."""
DOUBTFUL = (4, 16)
"""Rows with the fewest zeros that are taken for wrong when pictures of whole levels are looked for."""
DEPENDENT = 1e-3
"""The part of a row, of 1, that others must leave for it to count as another one."""
ROUNDS = 10
IDLE = 2
FEW_GAINED = 64
"""A round gained nothing if it made no more than one of so many inputs or rows certain."""
NEARLY = 0.9
"""The share of the zeros that make a row certain at which units must be off for a candidate to be worth the search."""


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
    """Coordinates [k, r] of inputs that are certain by their own values."""
    doubted: Tensor
    """Coordinates of inputs with the same values that may be sums of others."""
    missing: Tensor
    """Coordinates of inputs that are unlike these two, as all rows together determine them."""


@dataclass
class _Pool:
    """Rows and certain inputs found so far."""

    span: Span
    pair: LayerPair
    units: Tensor
    derivatives: Derivatives | None
    grid: Grid | None
    end: float
    rows: Rows
    exact: Tensor
    """Coordinates [k, r] of inputs that are certain."""
    by_levels: Tensor
    """Those of them that are certain by their levels."""
    own: Tensor
    """Directions [k, r] of the rows of certain inputs that were looked for last, those with most zeros first."""
    candidates: Tensor
    """Coordinates of all candidates so far."""
    sure: int = 0
    """How many of the rows are certain; they come first."""
    cleaned_of: int = 0
    """Of how many certain inputs the separated ones were cleaned last; with as many they are decoded to the same."""

    @property
    def complete(self) -> bool:
        """Whether all inputs are certain, or nothing more is to be found in the time."""
        return self.span.rank in (self.sure, len(self.exact)) or time.perf_counter() > self.end

    def add(self, c: Tensor, separated: Tensor, weights: Weights) -> int:
        """Rows from the masks of inputs with coordinates c, and of certain ones that have no row; their zeros.

        Certain inputs have no share in the rows of others. Those of ``separated`` that belong to certain rows lead the
        search with them.
        """
        c = c[torch.isfinite(self.span.inputs(c)).all(dim=1)]
        placed = self._placed(separated)
        c = self.unknown(c)
        found = [self.rows, *self._from_inverse(torch.cat([self.exact, placed, c]))]
        self._reduce(rows.join(found))
        rest, own = rows.frames(self.span, self.exact)
        bare = ~self._has_row(self.exact)
        found.append(self._from(self.exact[bare], own[bare], weights, self.exact))
        order = found[-1].zeros.argsort(descending=True)
        self.own = found[-1].take(order[found[-1].zeros[order] >= rows.least(own.shape[2])]).q
        bare = ~self._has_row(c)
        found.append(self._from(c[bare], rest.expand(int(bare.sum()), -1, -1), weights, torch.cat([placed, c])))
        self._reduce(rows.join(found))
        return int(found[-1].zeros.sum())

    def _has_row(self, c: Tensor) -> Tensor:
        """Whether one certain row alone has a share in inputs with coordinates c [m, r], [m]."""
        return single_row(c, self.rows.q[: self.sure])[1]

    def _placed(self, separated: Tensor) -> Tensor:
        """Candidates for the inputs of certain rows that are not those of certain inputs."""
        sure = self.rows.q[: self.sure]
        placed = corrected(sure, torch.cat([self.exact, separated]))
        if len(self.exact) == 0:
            return placed
        shares = (sure @ (self.exact / self.exact.norm(dim=1, keepdim=True)).T).abs()
        return placed[shares.amax(dim=1) < SHARED]

    def unexplained(self) -> Tensor:
        """An orthonormal basis [w, r] of the part of the span that holds the inputs without a row.

        Certain inputs that have no certain row are kept out of it by their most likely row.
        """
        q = self._likely()
        keep = torch.linalg.svd(q)[2][len(q) :] if len(q) else torch.eye(self.span.rank).to(q)
        basis: Tensor = torch.linalg.qr((keep * self.span.S).T)[0].T
        return basis

    def _likely(self) -> Tensor:
        """Directions of certain rows, then of the most likely rows of certain inputs that have none of these."""
        q = self.rows.q[: self.sure]
        for own in self.own:
            rest = own - (own @ torch.linalg.pinv(q)) @ q if len(q) else own
            if float(rest.norm()) > DEPENDENT:
                q = torch.cat([q, own[None]])
        return q

    def add_rows_of_exact(self) -> None:
        """The missing rows, where all inputs are certain."""
        if self.sure < len(self.exact) == self.span.rank:
            self._reduce(rows.join([self.rows, *self._from_inverse(self.exact)]))

    def _off(self, X: Tensor) -> Tensor:
        """How many units the inputs X [m, d] leave off, [m]: their rows vanish at no others."""
        return ((self.pair.highest(X) < 0) & self.units).sum(dim=1).double()

    def _from_inverse(self, c: Tensor) -> list[Rows]:
        """Rows from the inverse of all inputs; none while inputs are missing."""
        X = self.span.inputs(c)
        if len(X) != self.span.rank or float(self._off(X).median()) < rows.least(self.span.rank) * NEARLY:
            return []
        wanted = (~self._has_row(c)).nonzero()[:, 0]
        return [rows.from_inverse(self.span, self.pair.highest(X), self.span.coordinates(X), self.units, wanted)]

    def _from(self, c: Tensor, frame: Tensor, weights: Weights, among: Tensor) -> Rows:
        X = self.span.inputs(c)
        enough = self._off(X) >= rows.least(frame.shape[2]) * NEARLY
        X, frame = X[enough], frame[enough]
        if len(X) == 0 or frame.shape[2] == 0:
            return rows.none(self.span)
        slopes = self.derivatives(X) if self.derivatives is not None and not weights.large_steps else None
        return rows.from_masks(
            self.span, self.pair.highest(X), self.span.coordinates(X), self.units, weights=weights, slopes=slopes,
            frame=frame, among=among,
        )  # fmt: skip

    def _reduce(self, found: Rows) -> None:
        """Keep independent ones of the rows, the certain ones first and those with most zeros among them."""
        rank = self.span.rank
        found = found.take(self._possible(found).nonzero()[:, 0])
        sure = found.certain() & (found.active <= ACTIVE)
        score = torch.where(sure, 10 * len(self.span.L) + found.zeros, found.near)
        order = torch.argsort(score, descending=True, stable=True)
        chosen: list[int] = []
        basis = found.q.new_zeros(rank, 0)
        for i in order.tolist():
            rest = found.q[i]
            for _ in range(2):
                rest = rest - basis @ (basis.T @ rest)
            if float(rest.norm()) > (2e-3 if bool(sure[i]) else 0.1):
                basis = torch.cat([basis, (rest / rest.norm())[:, None]], dim=1)
                chosen.append(i)
            if len(chosen) == rank:
                break
        index = torch.tensor(chosen, dtype=torch.long)
        self.rows = found.take(index)
        self.sure = int(sure[index].sum())

    def _possible(self, found: Rows) -> Tensor:
        """[m]: rows that have a share in one certain input at most."""
        if len(self.exact) < 2:
            return torch.ones(len(found), dtype=torch.bool)
        shares = (found.q @ (self.exact / self.exact.norm(dim=1, keepdim=True)).T).abs()
        possible: Tensor = shares.topk(2, dim=1).values[:, 1] < SHARED
        return possible

    def keep(self, found: Tensor) -> None:
        """Certain inputs with coordinates ``found`` [k, r]."""
        self.exact = sparse.independent(self.span, sparse.distinct(torch.cat([self.exact, found])))

    def keep_on_grid(self, near: Tensor, c: Tensor, seed: int) -> None:
        """Those of the inputs ``near`` that are certain by their levels; candidates c lead the controls."""
        assert self.grid is not None
        found = self.grid.certified(near, c, seed)
        self.by_levels = sparse.distinct(torch.cat([self.by_levels, found]))
        self.keep(found)

    def dependent(self) -> Tensor:
        """Which of the certain inputs may be sums of others, [k].

        Zeros are no proof: where one input is a brighter copy of another, up to the end of the range, a difference of
        both has as many. The same holds for rows of a table. So an input needs a certain row of A whose zeros are at
        units that it leaves off, or else levels of 8 bits that sums of others do not have. Pictures that are black or
        white at most places have few such levels. In both cases few inputs may be missing, and none that is like it.
        """
        by_row = self._by_row(self.exact)
        if self.grid is None or len(self.by_levels) == 0 or bool(one_hot.categorical(self.span).any()):
            return ~by_row
        levels = self.by_levels[~self.grid.dependent(self.by_levels) & self.grid.mostly_between(self.by_levels)]
        unit, other = (c / c.norm(dim=1, keepdim=True) for c in (self.exact, levels))
        known = by_row | ((unit @ other.T).abs() > 1 - 1e-6).any(dim=1)
        mixed: Tensor = ~by_row & ~(known & self._few_missing(known))
        return mixed

    def _few_missing(self, known: Tensor) -> Tensor:
        """Whether certain inputs are no mixtures with those that are not among the ``known`` [k] ones of them, [k]."""
        missing = self.span.rank - int(known.sum())
        outside = self._outside(self.candidates, self.exact[known])
        return unmixed(self.span, self.exact, self.candidates[outside.argsort(descending=True)[:missing]], missing)

    def _outside(self, c: Tensor, known: Tensor) -> Tensor:
        """The share of candidates c [m, r] that is no combination of the ``known`` inputs [k, r], [m]."""
        basis = torch.linalg.qr((known * self.span.S).T)[0]
        p = c * self.span.S
        share: Tensor = (p - (p @ basis) @ basis.T).norm(dim=1) / p.norm(dim=1)
        return share

    def _most_unknown(self, c: Tensor) -> Tensor:
        """Those of the candidates c [m, r] with the largest share that certain inputs leave, in their order.

        As many as inputs are missing, and some more: others are combinations of inputs that are certain already.
        """
        count = self.span.rank - len(self.exact) + PATIENCE
        return c[self._outside(c, self.exact).argsort(descending=True)[:count].sort().values]

    def _by_row(self, c: Tensor) -> Tensor:
        """Whether inputs with coordinates c [m, r] have a certain row of their own, [m].

        They leave off the units of its zeros, share it with no other of c, and are no mixtures with inputs whose rows
        are missing.
        """
        known = self.rows.q[: self.sure]
        own, single = single_row(c, known)
        if not bool(single.any()):
            return single
        share = rows.active_share(self.pair.highest(self.span.inputs(c)), self.rows.zero[own])
        alone = torch.bincount(own[single], minlength=len(known))[own] == 1
        alone &= rows_tell_mixtures(self.span, known, c, torch.cat([self.candidates, self.exact]))
        by_row: Tensor = single & alone & (share <= OFF)
        return by_row

    def unknown(self, c: Tensor) -> Tensor:
        """The candidates c [m, r] that are like no certain input."""
        if len(self.exact) == 0 or len(c) == 0:
            return c
        return c[correlation(self.span.inputs(c), self.span.inputs(self.exact)).amax(dim=1) < rows.ALIKE]

    def snap_assembled(self, seed: int) -> None:
        """Pictures of whole levels next to those that all rows together determine."""
        if self.grid is None or self.complete or len(self.rows) < self.span.rank > len(self._likely()):
            return
        c = self.assembled()
        self.keep_on_grid(self.grid.snapped(c), c, seed)

    def assembled(self) -> Tensor:
        """Coordinates of the inputs that all rows together determine, those of the most likely rows if they are all."""
        q = self._likely()
        c: Tensor = torch.linalg.pinv((q if len(q) == self.span.rank else self.rows.q).T)
        return c[torch.isfinite(self.span.inputs(c)).all(dim=1)]

    def missing(self) -> Tensor:
        """Of the inputs that all rows together determine, those that are farthest from certain ones, one for each."""
        if len(self.exact) == 0 or len(self.rows) < self.span.rank > len(self._likely()):
            return self.exact[:0]
        c = self.unknown(self.assembled())
        return c[self._outside(c, self.exact).argsort(descending=True)[: self.span.rank - len(self.exact)]]

    def decode_assembled(self, seed: int) -> None:
        """Pictures of whole levels near those that all rows together determine: a wrong row mixes its own in."""
        if self.grid is None or self.complete or len(self.rows) < self.span.rank > len(self._likely()):
            return
        c = self.assembled()
        for count in DOUBTFUL:
            doubtful = c[max(self.sure, self.span.rank - count) :]
            self.keep_on_grid(self.grid.decoded(self.unknown(c), doubtful, self.end), c, seed)

    def decode_separated(self, c: Tensor, separated: Tensor, seed: int) -> None:
        """Pictures of whole levels near candidates c, then near separated ones cleaned of those known.

        Not where most of the inputs that are certain show too few levels, as dark pictures do.
        """
        if self.grid is None or self.complete:
            return
        if len(self.exact) and float(self.grid.shows_levels(self.exact).double().mean()) < 0.5:
            return
        c = c[torch.isfinite(self.span.inputs(c)).all(dim=1)]
        self.keep_on_grid(self.grid.decoded(self.unknown(c), c, self.end), c, seed)
        while self.cleaned_of < len(self.exact) and not self.complete:
            self.cleaned_of = len(self.exact)
            near = self.grid.cleaned(self._most_unknown(self.unknown(separated)), self.exact)
            wrong = torch.cat([self.exact, near])
            self.keep_on_grid(self.grid.decoded(near, wrong, self.end), separated, seed)


def search(
    span: Span, pair: LayerPair, separate: Separate, derivatives: Derivatives | None, grid: Grid | None = None, *,
    seed: int, end: float, rounds: int = ROUNDS,
) -> Factors:  # fmt: skip
    """Find the rows of A, from candidates for the inputs."""
    fresh = separated = separate(None, 0)
    pool = _Pool(span, pair, rows.informative(span), derivatives, grid, end, rows.none(span), separated[:0],
                 separated[:0], separated[:0], separated)  # fmt: skip
    others, idle = [separated[:0]], 0
    weights, within = LED, None
    for number in range(rounds):
        before = pool.sure + len(pool.exact)
        exact, fresh = sparse.exact_inputs(span, fresh, seed=seed + number, within=within)
        pool.keep(exact)
        others.append(fresh)
        pool.candidates = torch.cat([separated, *others])
        zeros = pool.add(fresh, separated, weights[number % len(weights)])
        if number == 0 and 2 * max(pool.sure, len(pool.exact)) < span.rank:
            weights = ALONE if pool.add(fresh, separated, ALONE[0]) > zeros else LED
        if pool.sure + len(pool.exact) == before:
            pool.snap_assembled(seed + number)
        if pool.sure + len(pool.exact) == before:
            pool.decode_assembled(seed + number)
            pool.decode_separated(fresh, separated, seed + number)
        progress.report("rows of the difference", done=max(pool.sure, len(pool.exact)), total=span.rank)
        gained = pool.sure + len(pool.exact) - before
        idle = 0 if gained > span.rank // FEW_GAINED else idle + 1
        if pool.complete or idle > (0 if pool.sure == span.rank - 1 else IDLE):
            break
        within = pool.unexplained()
        if len(within) == 0:
            within, fresh = None, pool.assembled()
        else:
            fresh = within / span.S if len(within) == 1 else separate(within, number + 1)
    pool.add_rows_of_exact()
    doubted = pool.dependent()
    return Factors(
        pool.rows, pool.sure, separated, torch.cat(others), pool.exact[~doubted], pool.exact[doubted], pool.missing()
    )  # fmt: skip

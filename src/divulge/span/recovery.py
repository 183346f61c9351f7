"""The state of one span recovery from gradients or differences: what was asked, what it spans, how sure that is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Literal

import torch
from torch import Tensor

from divulge.oracles.base import Oracle
from divulge.progress import report
from divulge.span.differences import (
    Estimate,
    Stencil,
    calibrate,
    check_directions,
    gradient_from,
    narrower,
    stencil_rows,
    uncalibrated,
)
from divulge.span.gaps import confirmed_fall, gap_after, steepest_falls, without_stragglers
from divulge.span.moves import Moves, gaussian
from divulge.span.result import Span
from divulge.span.rows import RowSpace
from divulge.span.view import View

Method = Literal["default", "paper"]

_PAPER_THRESHOLD = 1e-5
_ROUNDING = 32.0  # a gradient is trusted to this many rounding errors of the oracle's number format
_IGNORED = 5e-3  # a move that changes outputs by more than this part of their usual change is never called ignored
_STRADDLES = 8.0  # a gradient that misses linearity by this many standard errors has a kink in its stencil
_NOISY = 1e-4  # relative error of a derivative from which the rank is read off the gap
_CLEAR = 3.0  # a smaller gap than this decides nothing
_MOVES = 6  # in the null space, at least, before it is trusted
_CHUNK = 64  # gradient queries sent together when none depends on an answer


class Recovery:
    """The state of one recovery: what was asked, what it spans, and what the errors look like."""

    def __init__(
        self,
        oracle: Oracle,
        *,
        source: Literal["gradients", "values"],
        output: int | None,
        patience: int,
        scale: float,
        seed: int,
        method: Method,
    ) -> None:
        self.oracle, self.source, self.view = oracle, source, View(oracle, output)
        self.patience, self.scale, self.seed, self.method = patience, scale, seed, method
        self.dim = oracle.input_dim
        self.generator = torch.Generator().manual_seed(seed)
        self.rows = RowSpace(self.dim, device=oracle.device, generator=torch.Generator().manual_seed(seed + 1))
        self.curve: list[int] = []
        self.idle = 0  # samples in a row that added nothing
        self.values: list[Tensor] = []  # outputs at Gaussian points, to tell what a large change is
        self.moves = Moves(scale, self.generator)
        self.adaptive = True
        self.next_look = 32  # rows at which a noisy run next looks for a gap
        self.number_eps = float(torch.finfo(oracle.dtype).eps)
        self.noisy = oracle.eps > 100 * self.number_eps  # the oracle says so itself: a guard rounds or adds noise
        self.stencil: Stencil | None = None
        self.checks = check_directions(self.dim, seed + 3)
        self.error_unit = 0.0  # gradients by differences are weighted so that each has this error in every entry
        self.rejected = 0
        self.notes: list[str] = []
        self.complete = True
        self.began, self.before = time.perf_counter(), oracle.ledger.snapshot()

    # -- the three ways to ask ----------------------------------------------------------------------------------------

    def fixed(self, samples: int) -> None:
        """Every point chosen before the first answer."""
        self.adaptive = False
        points = gaussian(samples, self.dim, self.scale, self.generator)
        if self.source == "values":
            self.stencil = uncalibrated(self.oracle.eps, self.scale)
            self.error_unit = self.stencil.error
            for point in points:
                self._take_estimate(self._difference(point))
                self._tell(samples)
            return
        for chunk in torch.split(points, _CHUNK):
            values, gradients = self.view.gradients(chunk)
            self.values.append(values)
            self._take(gradients)
            self._tell(samples)

    def adaptive_gradients(self, samples: int | None, rank: int | None) -> None:
        """Batches of fresh points and moved ones, until nothing is new."""
        limit = samples if samples is not None else 2 * self.dim + self.patience
        while not self.noisy and len(self.curve) < limit and not self._reached(rank) and self.rows.size < self.dim:
            wanted = min(max(2, self.patience - self.idle), limit - len(self.curve))  # at least one move among them
            fresh = gaussian(math.ceil(wanted / 2), self.dim, self.scale, self.generator)
            moved = self.moves.move(fresh[: wanted // 2], self.rows.basis)
            rank_before = self.rows.size
            values, gradients = self.view.gradients(torch.cat([fresh, moved]))
            self.values.append(values[: len(fresh)])
            self._take(gradients)
            if self.rows.size > rank_before:
                self.moves.forget()
            elif len(moved):
                self.moves.note(fresh[: len(moved)], moved, values[: len(moved)], values[len(fresh) :])
            if self.idle >= self.patience:
                self._more_moves(fresh, values[: len(fresh)])
                if self._ignored() or not self._follow_change(limit):
                    return
            self._tell(rank)
        if self.rows.size == self.dim and not self.noisy:
            self.noisy = self._differs_when_repeated()
        while self.noisy and len(self.curve) < limit and not self._clear_enough():
            points = gaussian(min(self.patience, limit - len(self.curve)), self.dim, self.scale, self.generator)
            values, gradients = self.view.gradients(points)
            self.values.append(values)
            self._take(gradients)
            self._tell(limit)

    def adaptive_values(self, samples: int | None, rank: int | None) -> None:
        """One gradient at a time, and before the next the cheap question whether anything is missing at all."""
        ask = self.oracle.value
        self.stencil = calibrate(
            ask, self.dim, eps=self.oracle.eps, scale=self.scale, generator=torch.Generator().manual_seed(self.seed + 2)
        )
        self.error_unit = self.stencil.error
        self.noisy = self.stencil.relative_error > _NOISY
        limit = samples if samples is not None else 2 * self.dim + self.patience
        while self.noisy and len(self.curve) < limit and not self._clear_enough():
            self._take_estimate(self._difference(gaussian(1, self.dim, self.scale, self.generator)[0]))
            self._tell(limit)
        point = gaussian(1, self.dim, self.scale, self.generator)[0]
        while not self.noisy and len(self.curve) < limit and not self._reached(rank) and self.rows.size < self.dim:
            seen, size = self.rows.rows_seen, self.rows.size
            taken = self._take_estimate(self._difference(point))
            point = gaussian(1, self.dim, self.scale, self.generator)[0]
            self._tell(rank)
            if taken and self.rows.size - size < self.rows.rows_seen - seen:  # not every row was new
                place = self._probe()
                if place is None:
                    return
                if self.idle >= 1:
                    point = place
                if self.idle >= self.patience:
                    self._give_up()
                    return

    def _clear_enough(self) -> bool:
        """With noise: is there a gap that the null space confirms? Looked at whenever the rows have doubled."""
        if self.rows.rows_seen < self.next_look:
            return False
        self.next_look = 2 * self.rows.rows_seen
        if self.rows.rows_seen >= 8 * self.dim:
            return True
        singular, vectors = self.rows.decompose()
        return confirmed_fall(singular, self._ignores(vectors), at_least=_CLEAR, noisy=True) is not None

    def _differs_when_repeated(self) -> bool:
        point = gaussian(1, self.dim, self.scale, self.generator)
        first, again = (self.view.gradients(point)[1] for _ in range(2))
        return not torch.equal(first, again)

    # -- moves in the null space --------------------------------------------------------------------------------------

    def _more_moves(self, starts: Tensor, still: Tensor) -> None:
        """Enough moves to trust the null space: a value each, where the outputs before the move are known."""
        missing = max(self.patience, _MOVES) - self.moves.count
        if missing > 0:
            again = torch.arange(missing) % len(starts)
            ends = self.moves.move(starts[again], self.rows.basis)
            self.moves.note(starts[again], ends, still[again], self.view.outputs(ends))

    def _ignored(self) -> bool:
        """Did moves in the null space leave the outputs as they were, to the precision of the span and the oracle?"""
        if self.moves.count == 0:
            return True
        return self.moves.largest <= self._tolerated_change() and self._relative(self.moves.largest) <= _IGNORED

    def _tolerated_change(self) -> float:
        """What an imprecise basis and rounding may change: its tilt times the longest gradient times the move."""
        singular, _ = self.rows.decompose()
        kept = singular[singular > self._threshold(singular)]
        length = self.scale * math.sqrt(self.dim)
        steepest = self.rows.largest
        magnitude = float(torch.cat(self.values).abs().max()) if self.values else 0.0
        error = self.error_unit * math.sqrt(self.dim) if self.stencil else _ROUNDING * self.number_eps * steepest
        tilt = min(1.0, error / float(kept[-1])) if len(kept) else 0.0
        return 4 * (tilt * steepest * length + _ROUNDING * self.oracle.eps * (magnitude + steepest * length))

    def _follow_change(self, limit: int) -> bool:
        """Gradients along the move that changed outputs most, ever closer to the change. False: no new direction."""
        assert self.moves.worst is not None
        start, end = self.moves.worst
        for _ in range(3):
            room = min(max(self.patience, 4), limit - len(self.curve))
            if room < 3:
                return True
            path = start + torch.linspace(0, 1, room, dtype=torch.float64)[:, None] * (end - start)
            before = self.rows.size
            values, gradients = self.view.gradients(path)
            self._take(gradients)
            if self.rows.size > before:
                self.moves.forget()
                self.idle = 0
                return True
            jump = int((values[1:] - values[:-1]).abs().amax(dim=1).argmax())
            start, end = path[jump], path[jump + 1]
        self._give_up()
        return False

    def _probe(self) -> Tensor | None:
        """Values at fresh points and at moved ones: None if nothing changes, else a place where something does."""
        fresh = gaussian(max(self.patience, _MOVES), self.dim, self.scale, self.generator)
        moved = self.moves.move(fresh, self.rows.basis)
        still, after = self.view.outputs(torch.cat([fresh, moved])).chunk(2)
        self.values.append(still)
        self.moves.forget()
        self.moves.note(fresh, moved, still, after)
        if self._ignored() or self.moves.worst is None:
            return None
        start, end = self.moves.worst
        place: Tensor = start + torch.rand(1, generator=self.generator, dtype=torch.float64) * (end - start)
        return place

    def _give_up(self) -> None:
        self.complete = False
        self.notes.append(
            f"Moves in the null space still change an output by {self.moves.largest:.2g}, but further gradients show "
            "no new direction: the span is partial."
        )

    # -- rows in, result out ------------------------------------------------------------------------------------------

    def _difference(self, point: Tensor) -> Estimate:
        assert self.stencil is not None
        answers = self.view.outputs(stencil_rows(point, self.stencil, self.checks))
        return gradient_from(answers, self.stencil, self.checks)

    def _take_estimate(self, estimate: Estimate) -> bool:
        """A gradient by differences joins with the weight that its linearity test gives it.

        One that misses the test badly has a kink in its stencil and is dropped; if many do, the stencil is narrowed.
        """
        assert self.stencil is not None
        rounding = self.oracle.eps * estimate.largest / self.stencil.step
        if self.adaptive and estimate.mismatch > _STRADDLES * max(self.stencil.error, rounding):
            self.rejected += 1
            narrow = narrower(self.stencil)
            if self.rejected > 2 + len(self.curve) / 5 and narrow.error < estimate.mismatch / 2:
                self.stencil, self.rejected = narrow, 0
            if narrow.error < estimate.mismatch / 2:
                return False
        self.values.append(estimate.value[None])
        self._take(estimate.gradient[None] * (self.error_unit / max(estimate.mismatch, self.stencil.error)))
        return True

    def _take(self, gradients: Tensor) -> None:
        """Gradients [n, k, d] join the span; the rank after each of the n goes on the curve."""
        flat = gradients.reshape(-1, self.dim)
        self.rows.largest = max(self.rows.largest, float(flat.norm(dim=1).max()))
        size = self.rows.size
        joined = self.rows.add(flat, self._tolerance())
        for new in torch.tensor(joined).reshape(len(gradients), -1).sum(dim=1).tolist():
            size += new
            self.curve.append(size)
            self.idle = 0 if new else self.idle + 1

    def _tolerance(self) -> float:
        """The part of one gradient row that may be error; of noise all is kept, for the gap to be seen above it."""
        rounding = _ROUNDING * self.number_eps * self.rows.largest
        if self.stencil is None or self.noisy:
            return rounding
        care = min(32.0, max(4.0, 1e-5 / max(self.stencil.relative_error, 1e-12)))  # where it can be afforded
        return max(rounding, care * self.error_unit * math.sqrt(self.dim))

    def _threshold(self, singular: Tensor) -> float:
        if len(singular) == 0:
            return 0.0
        if self.method == "paper":
            return _PAPER_THRESHOLD * float(singular[0])
        return max(self._tolerance(), _ROUNDING * self.number_eps * float(singular[0]))

    def _reached(self, rank: int | None) -> bool:
        return rank is not None and self.rows.size >= rank

    def _tell(self, total: int | None) -> None:
        report("recovering the span", len(self.curve), total, rank=self.rows.size, queries=self.oracle.ledger.total)

    def finish(self, asked: int | None, *, may_ask: bool, died: str = "") -> Span:
        """Decide the rank and put the result together; may spend a few values on a doubtful rank."""
        singular, vectors = self.rows.decompose()
        threshold = self._threshold(singular)
        rank = int((singular > threshold).sum())
        reached = self._reached(asked) and not self.noisy
        spare = self.rows.rows_seen - self.rows.size  # rows that brought nothing: the sign that the span is whole
        invariance = self._relative(self.moves.largest) if self.moves.count else None
        if died:
            self.complete = False
            self.notes.append(f"Stopped early: {died}")
        elif self.method != "paper" and (self.noisy or spare == 0 or self.rows.size == self.dim) and not reached:
            rank, threshold, invariance = self._settle(singular, vectors, threshold, may_ask)
        elif self.stencil is not None and not reached:
            rank = without_stragglers(singular, rank, threshold)
        if asked is not None:
            if rank < asked:
                self.complete = False
                self.notes.append(f"Asked for rank {asked}, found {rank} in {len(self.curve)} samples.")
            rank = min(rank, asked)
        gap = gap_after(singular, rank, max(self.rows.leftover, self.oracle.eps * float(singular[:1].sum())))
        if self.method != "paper" and 0 < rank < self.dim and gap < _CLEAR and not self._reached(asked):
            self.complete = False
            self.notes.append(f"The rank is uncertain: the singular values fall by no more than {gap:.3g} times there.")
        return Span(
            basis=vectors[:rank].contiguous(),
            singular_values=singular,
            gap=gap,
            threshold=threshold,
            curve=tuple(min(size, rank) for size in self.curve),
            ledger=self.oracle.ledger.snapshot() - self.before,
            seed=self.seed,
            seconds=time.perf_counter() - self.began,
            method=self.method,
            source=self.source,
            invariance=invariance,
            complete=self.complete,
            notes=tuple(self.notes),
            facts=self._facts(),
        )

    def _settle(
        self, singular: Tensor, vectors: Tensor, threshold: float, may_ask: bool
    ) -> tuple[int, float, float | None]:
        """Every row looked new: a full-rank network, too few samples, or noise over a span that a gap gives away."""
        rank, gap, invariance = 0, 0.0, None
        if may_ask and len(singular) > 4:
            steep = {} if self.noisy else {"at_least": _CLEAR}
            fall = confirmed_fall(singular, self._ignores(vectors), noisy=self.noisy, **steep)
            if fall is not None:
                rank, gap, invariance = fall.rank, fall.gap, fall.invariance
        elif self.noisy and len(singular) > 4:
            rank = next(iter(steepest_falls(singular, at_least=_CLEAR)), 0)
            gap = gap_after(singular, rank, 0.0)
        if rank:
            unchecked = "" if may_ask else " (not checked, since all points were fixed in advance)"
            self.notes.append(
                f"The answers are noisier than their number format: the rank is read off the gap in the singular "
                f"values, {gap:.3g} times{unchecked}."
            )
            return rank, float(singular[rank]), invariance
        if self.noisy:
            self.complete = False
            self.notes.append("The answers are noisy and no gap in the singular values tells the rank.")
            rank = next(iter(steepest_falls(singular, at_least=0.0)), len(singular))
            return rank, float(singular[rank]) if rank < len(singular) else 0.0, None
        if self.rows.size == self.dim:
            self.notes.append(f"The first layer has full rank {self.dim}: there is no null space, every input matters.")
        else:
            self.complete = False
            self.notes.append(f"All {len(self.curve)} samples still added directions: take more to find the rest.")
        return int((singular > threshold).sum()), threshold, None

    def _ignores(self, vectors: Tensor) -> Callable[[int], tuple[float, float]]:
        """For ranks of ``vectors``: the output change under moves they say are ignored, and when asking again."""

        def ask(rank: int) -> tuple[float, float]:
            fresh, noise, other = (gaussian(2 * _MOVES, self.dim, self.scale, self.generator) for _ in range(3))
            basis, change = vectors[:rank].cpu(), noise - fresh
            moved = fresh + change - (change @ basis.T) @ basis
            still, again, after, elsewhere = self.view.outputs(torch.cat([fresh, fresh, moved, other])).chunk(4)
            typical = max(_rms(elsewhere - still), torch.finfo(torch.float64).tiny)
            return _rms(after - still) / typical, _rms(again - still) / typical

        return ask

    def _relative(self, change: float) -> float:
        values = torch.cat(self.values)
        spread = float(values.std(dim=0).max()) * math.sqrt(2) if len(values) > 1 else 0.0
        return change / spread if spread else 0.0

    def _facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"samples": len(self.curve), "moves_checked": self.moves.count}
        if self.stencil is not None:
            facts |= {**asdict(self.stencil), "gradients_rejected": self.rejected}
        return facts


def _rms(change: Tensor) -> float:
    return float(change.square().mean().sqrt())

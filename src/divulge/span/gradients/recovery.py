"""One span recovery from gradients or differences of values: the queries, and the basis of what they returned."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from divulge.core.progress import report
from divulge.oracles.base import Oracle
from divulge.oracles.region import RegionOracle
from divulge.span.gradients.differences import (
    Estimate,
    Stencil,
    calibrate,
    check_directions,
    gradient_from,
    narrower,
    stencil_rows,
    uncalibrated,
)
from divulge.span.gradients.incremental_basis import IncrementalBasis
from divulge.span.gradients.null_space_moves import NullSpaceMoves, gaussian
from divulge.span.gradients.output_selection import OutputSelection
from divulge.span.gradients.spectrum import CLEAR_GAP, confirmed_rank

Method = Literal["default", "paper"]

_PAPER_THRESHOLD = 1e-5  # of the largest singular value (Jayaram 2020, section 5)
_ROUNDING = 32.0  # rounding errors of the oracle's number format that a gradient may have
_IGNORED = 5e-3  # largest output change, relative to the usual change, under a move that the network ignores
_KINK = 8.0  # standard errors in the linearity test from which a stencil contains a kink
_NOISY = 1e-4  # relative error of a derivative from which the rank is read from the gap
_CONFIRMING = 12  # moves that test a rank read from a gap
_CHUNK = 64  # gradient queries sent together where none depends on an answer


class GradientRecovery:
    """The queries of one recovery, the basis that they span so far, and the errors seen."""

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
        moves: int = 6,
    ) -> None:
        self.oracle, self.source, self.selection = oracle, source, OutputSelection(oracle, output)
        self.patience, self.scale, self.seed, self.method = patience, scale, seed, method
        self.moves_needed = max(patience, moves)
        self.dim = oracle.input_dim
        self.generator = torch.Generator().manual_seed(seed)
        self.rows = IncrementalBasis(self.dim, device=oracle.device, generator=torch.Generator().manual_seed(seed + 1))
        self.curve: list[int] = []
        self.idle = 0  # consecutive samples that added nothing
        self.values: list[Tensor] = []  # outputs at Gaussian points, from which the usual change is measured
        self.moves = NullSpaceMoves(scale, self.generator)
        self.adaptive = True
        self.next_decision = 32  # rows at which a noisy run next looks for a gap
        self.number_eps = float(torch.finfo(oracle.dtype).eps)
        declared = oracle.oracle.eps if isinstance(oracle, RegionOracle) else oracle.eps
        self.noisy = declared > 100 * self.number_eps  # a guard rounds or adds noise
        self.stencil: Stencil | None = None
        self.checks = check_directions(self.dim, seed + 3)
        self.error_unit = 0.0  # gradients by differences are weighted to this error in every entry
        self.rejected = 0
        self.notes: list[str] = []
        self.reason = ""
        self.first_gradient: Tensor | None = None  # [k, d]
        self.variation = 0.0  # largest distance of a gradient from the first one
        self.started, self.ledger_before = time.perf_counter(), oracle.ledger.snapshot()

    # -- three ways to query ------------------------------------------------------------------------------------------

    def fixed(self, samples: int) -> None:
        """Query points that are all chosen before the first answer."""
        self.adaptive = False
        points = gaussian(samples, self.dim, self.scale, self.generator)
        if self.source == "values":
            self.stencil = uncalibrated(self.oracle.eps, self.scale)
            self.error_unit = self.stencil.error
            for point in points:
                self._take_estimate(self._difference(point))
                self._progress(samples)
            return
        for chunk in torch.split(points, _CHUNK):
            values, gradients = self.selection.gradients(chunk)
            self.values.append(values)
            self._compare(gradients)
            self._take(gradients)
            self._progress(samples)

    def adaptive_gradients(self, samples: int | None, rank: int | None) -> None:
        """Query batches of new points and of points moved in the null space, until nothing is new."""
        limit = samples if samples is not None else 2 * self.dim + self.patience
        while not self.noisy and len(self.curve) < limit and not self.reached(rank) and self.rows.size < self.dim:
            wanted = min(max(2, self.patience - self.idle), limit - len(self.curve))  # with at least one move
            fresh = gaussian(math.ceil(wanted / 2), self.dim, self.scale, self.generator)
            moved = self.moves.move(fresh[: wanted // 2], self.rows.basis)
            rank_before = self.rows.size
            values, gradients = self.selection.gradients(torch.cat([fresh, moved]))
            self.values.append(values[: len(fresh)])
            self._compare(gradients)
            self._take(gradients)
            if self.rows.size > rank_before:
                self.moves.reset()
            elif len(moved):
                self.moves.record(fresh[: len(moved)], moved, values[: len(moved)], values[len(fresh) :])
            if self.idle >= self.patience:
                self._more_moves(fresh, values[: len(fresh)])
                if self._ignored() or not self._follow_change(limit):
                    return
            self._progress(rank)
        if self.rows.size == self.dim and not self.noisy:
            self.noisy = self._differs_when_repeated()
        while self.noisy and len(self.curve) < limit and not self._gap_confirmed():
            points = gaussian(min(self.patience, limit - len(self.curve)), self.dim, self.scale, self.generator)
            values, gradients = self.selection.gradients(points)
            self.values.append(values)
            self._take(gradients)
            self._progress(limit)

    def adaptive_values(self, samples: int | None, rank: int | None) -> None:
        """Take one gradient at a time. Before the next, test with a few values whether anything is missing."""
        ask = self.oracle.value
        self.stencil = calibrate(
            ask, self.dim, eps=self.oracle.eps, scale=self.scale, generator=torch.Generator().manual_seed(self.seed + 2)
        )
        self.error_unit = self.stencil.error
        self.noisy = self.stencil.relative_error > _NOISY
        limit = samples if samples is not None else 2 * self.dim + self.patience
        while self.noisy and len(self.curve) < limit and not self._gap_confirmed():
            self._take_estimate(self._difference(gaussian(1, self.dim, self.scale, self.generator)[0]))
            self._progress(limit)
        point = gaussian(1, self.dim, self.scale, self.generator)[0]
        while not self.noisy and len(self.curve) < limit and not self.reached(rank) and self.rows.size < self.dim:
            seen, size = self.rows.rows_seen, self.rows.size
            taken = self._take_estimate(self._difference(point))
            point = gaussian(1, self.dim, self.scale, self.generator)[0]
            self._progress(rank)
            if taken and self.rows.size - size < self.rows.rows_seen - seen:  # not every row was new
                place = self._probe()
                if place is None:
                    return
                if self.idle >= 1:
                    point = place
                if self.idle >= self.patience:
                    self._give_up()
                    return

    def _gap_confirmed(self) -> bool:
        """Whether noisy rows show a gap that moves in the null space confirm. Tested when the rows have doubled."""
        if self.rows.rows_seen < self.next_decision:
            return False
        self.next_decision = 2 * self.rows.rows_seen
        if self.rows.rows_seen >= 8 * self.dim:
            return True
        singular, vectors = self.rows.decompose()
        return confirmed_rank(singular, self.null_space_change(vectors), at_least=CLEAR_GAP, noisy=True) is not None

    def _differs_when_repeated(self) -> bool:
        point = gaussian(1, self.dim, self.scale, self.generator)
        first, again = (self.selection.gradients(point)[1] for _ in range(2))
        return not torch.equal(first, again)

    # -- moves in the null space --------------------------------------------------------------------------------------

    def _more_moves(self, starts: Tensor, still: Tensor) -> None:
        """Make the moves that are missing, one value each: the outputs before the move are known."""
        missing = self.moves_needed - self.moves.count
        if missing > 0:
            again = torch.arange(missing) % len(starts)
            ends = self.moves.move(starts[again], self.rows.basis)
            self.moves.record(starts[again], ends, still[again], self.selection.outputs(ends))

    def _ignored(self) -> bool:
        """Whether the outputs stayed the same under the moves, to the precision of the basis and of the oracle."""
        if self.moves.count == 0:
            return True
        return self.moves.largest <= self._tolerated_change() and self.relative(self.moves.largest) <= _IGNORED

    def _tolerated_change(self) -> float:
        """The output change that rounding and an imprecise basis explain: tilt times steepest gradient times move."""
        singular, _ = self.rows.decompose()
        kept = singular[singular > self.threshold(singular)]
        length = self.scale * math.sqrt(self.dim)
        steepest = self.rows.largest
        magnitude = float(torch.cat(self.values).abs().max()) if self.values else 0.0
        error = self.error_unit * math.sqrt(self.dim) if self.stencil else _ROUNDING * self.number_eps * steepest
        tilt = min(1.0, error / float(kept[-1])) if len(kept) else 0.0
        return 4 * (tilt * steepest * length + _ROUNDING * self.oracle.eps * (magnitude + steepest * length))

    def _follow_change(self, limit: int) -> bool:
        """Take gradients along the worst move, closer and closer to its largest change. False: no new direction."""
        assert self.moves.worst is not None
        start, end = self.moves.worst
        for _ in range(3):
            room = min(max(self.patience, 4), limit - len(self.curve))
            if room < 3:
                return True
            path = start + torch.linspace(0, 1, room, dtype=torch.float64)[:, None] * (end - start)
            before = self.rows.size
            values, gradients = self.selection.gradients(path)
            self._take(gradients)
            if self.rows.size > before:
                self.moves.reset()
                self.idle = 0
                return True
            jump = int((values[1:] - values[:-1]).abs().amax(dim=1).argmax())
            start, end = path[jump], path[jump + 1]
        self._give_up()
        return False

    def _probe(self) -> Tensor | None:
        """Make moves from new points. None if the outputs stay the same, else a point on the worst move."""
        fresh = gaussian(self.moves_needed, self.dim, self.scale, self.generator)
        moved = self.moves.move(fresh, self.rows.basis)
        still, after = self.selection.outputs(torch.cat([fresh, moved])).chunk(2)
        self.values.append(still)
        self.moves.reset()
        self.moves.record(fresh, moved, still, after)
        if self._ignored() or self.moves.worst is None:
            return None
        start, end = self.moves.worst
        place: Tensor = start + torch.rand(1, generator=self.generator, dtype=torch.float64) * (end - start)
        return place

    def mark_incomplete(self, reason: str) -> None:
        """Note why directions may be missing. The first reason is the result's."""
        self.reason = self.reason or reason
        self.notes.append(reason)

    def _give_up(self) -> None:
        self.mark_incomplete(
            f"Moves in the null space still change an output by {self.moves.largest:.2g}, but further gradients show "
            "no new direction: the span is partial."
        )

    # -- gradients into the basis -------------------------------------------------------------------------------------

    def _difference(self, point: Tensor) -> Estimate:
        assert self.stencil is not None
        answers = self.selection.outputs(stencil_rows(point, self.stencil, self.checks))
        return gradient_from(answers, self.stencil, self.checks)

    def _take_estimate(self, estimate: Estimate) -> bool:
        """Add a gradient by differences, weighted by its error in the linearity test.

        A gradient that fails the test has a kink in its stencil and is dropped. If many fail, the stencil is narrowed.
        """
        assert self.stencil is not None
        rounding = self.oracle.eps * estimate.largest / self.stencil.step
        if self.adaptive and estimate.mismatch > _KINK * max(self.stencil.error, rounding):
            self.rejected += 1
            narrow = narrower(self.stencil)
            if self.rejected > 2 + len(self.curve) / 5 and narrow.error < estimate.mismatch / 2:
                self.stencil, self.rejected = narrow, 0
            if narrow.error < estimate.mismatch / 2:
                return False
        self.values.append(estimate.value[None])
        self._compare(estimate.gradient[None])
        self._take(estimate.gradient[None] * (self.error_unit / max(estimate.mismatch, self.stencil.error)))
        return True

    def _take(self, gradients: Tensor) -> None:
        """Add gradients [n, k, d], and append the rank after each of the n to the curve."""
        flat = gradients.reshape(-1, self.dim)
        self.rows.largest = max(self.rows.largest, float(flat.norm(dim=1).max()))
        size = self.rows.size
        joined = self.rows.add(flat, self._tolerance())
        for new in torch.tensor(joined).reshape(len(gradients), -1).sum(dim=1).tolist():
            size += new
            self.curve.append(size)
            self.idle = 0 if new else self.idle + 1

    def _compare(self, gradients: Tensor) -> None:
        """Measure how much gradients [n, k, d] differ from the first one."""
        if self.first_gradient is None:
            self.first_gradient = gradients[0]
        distances = (gradients - self.first_gradient).flatten(1).norm(dim=1)
        self.variation = max(self.variation, float(distances.max()))

    @property
    def affine(self) -> bool | None:
        """Whether all gradients are equal, to their precision; None with noise or fewer than two gradients."""
        if self.noisy or self.first_gradient is None or len(self.curve) < 2:
            return None
        error = self.error_unit * math.sqrt(self.first_gradient.numel()) if self.stencil else 0.0
        allowed = max(_ROUNDING * self.oracle.eps * float(self.first_gradient.norm()), 4 * error)
        return self.variation <= allowed

    def _tolerance(self) -> float:
        """The length of a residual that may be error. With noise every residual joins, and the gap decides later."""
        rounding = _ROUNDING * self.number_eps * self.rows.largest
        if self.stencil is None or self.noisy:
            return rounding
        care = min(32.0, max(4.0, 1e-5 / max(self.stencil.relative_error, 1e-12)))  # cautious where the error is small
        return max(rounding, care * self.error_unit * math.sqrt(self.dim))

    def threshold(self, singular: Tensor) -> float:
        if len(singular) == 0:
            return 0.0
        if self.method == "paper":
            return _PAPER_THRESHOLD * float(singular[0])
        return max(self._tolerance(), _ROUNDING * self.number_eps * float(singular[0]))

    def reached(self, rank: int | None) -> bool:
        return rank is not None and self.rows.size >= rank

    def _progress(self, total: int | None) -> None:
        report("recovering the span", len(self.curve), total, rank=self.rows.size, queries=self.oracle.ledger.total)

    def null_space_change(self, vectors: Tensor) -> Callable[[int], tuple[float, float]]:
        """For each rank of ``vectors``, the relative output change under moves outside, and between equal queries."""

        def ask(rank: int) -> tuple[float, float]:
            fresh, noise, other = (gaussian(_CONFIRMING, self.dim, self.scale, self.generator) for _ in range(3))
            basis, change = vectors[:rank].cpu(), noise - fresh
            moved = fresh + change - (change @ basis.T) @ basis
            still, again, after, elsewhere = self.selection.outputs(torch.cat([fresh, fresh, moved, other])).chunk(4)
            typical = max(_rms(elsewhere - still), torch.finfo(torch.float64).tiny)
            return _rms(after - still) / typical, _rms(again - still) / typical

        return ask

    def relative(self, change: float) -> float:
        """An output change over the usual change between two Gaussian points."""
        values = torch.cat(self.values)
        spread = float(values.std(dim=0).max()) * math.sqrt(2) if len(values) > 1 else 0.0
        return change / spread if spread else 0.0


def _rms(change: Tensor) -> float:
    return float(change.square().mean().sqrt())

"""One span recovery from labels: the search for boundary points, and the directions that their normals give."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from divulge.core.memory import claim
from divulge.core.progress import report
from divulge.oracles.base import Oracle
from divulge.span.labels.boundary import (
    CrossingEstimate,
    Normal,
    SameLabel,
    bisect_segments,
    estimate_crossing,
    normal_at,
)
from divulge.span.labels.verification import NullSpaceTest, examine_null_space
from divulge.span.result import Span

_ACCURACY = 1e-9  # error of a slope, where the oracle's precision allows it
_PILOTS = 6  # rough slopes outside the span found that estimate a normal
_ARTEFACT = 8.0  # the new part of a normal must exceed the error of the span found by this factor
GROUP = 8  # points queried in one slice
_FOLLOWED = 6  # moves that changed a label, along which one more direction is sought
SCALES = (1.0, 4.0, 0.25, 16.0, 64.0)  # times the spread of the points, tried in turn where labels do not change


@dataclass(frozen=True)
class Crossing:
    """A boundary point and the line on which it was found."""

    start_label: int
    """The label at the line's start."""
    point: Tensor
    along: Tensor
    """Unit direction of the line, [d]."""
    estimate: CrossingEstimate


class LabelRecovery:
    """The queries of one recovery, and the directions found so far."""

    def __init__(self, oracle: Oracle, *, tries: int, scale: float, step: float | None, moves: int, seed: int) -> None:
        self.oracle, self.tries, self.scale, self.moves, self.seed = oracle, tries, scale, moves, seed
        self.dim = oracle.input_dim
        self.generator = torch.Generator().manual_seed(seed)
        fine = torch.finfo(torch.float64).eps
        self.step = step if step is not None else 3e-5 * scale * (oracle.eps / fine) ** (1 / 3)
        self.resolution = max(_ACCURACY * self.step, 4 * oracle.eps * scale)
        self.basis = torch.zeros(0, self.dim, dtype=torch.float64)
        self.normals: list[Normal] = []
        self.curve: list[int] = []
        self.errors: list[float] = []  # angle by which each direction of the basis may be off
        self.searched = 0
        self.dropped = 0
        self.verifying = 0
        self.test: NullSpaceTest | None = None  # the last test of the null space
        self.started, self.ledger_before = time.perf_counter(), oracle.ledger.snapshot()

    def collect(self, rank: int | None, extra: float) -> None:
        """Find directions up to ``rank``, or until moves in the null space no longer change labels."""
        target = rank if rank is not None else self.dim
        while len(self.basis) < target:
            if not self._next_normal() and not self._normal_from_test():
                break
            report("recovering the span", len(self.basis), rank, rank=len(self.basis), queries=self.oracle.ledger.total)
        for _ in range(math.ceil(extra * len(self.basis))):
            self._another_normal()

    # -- one more direction -------------------------------------------------------------------------------------------

    def _next_normal(self) -> bool:
        """Find one more direction. False if labels no longer change outside the span."""
        best: Normal | None = None
        estimate: CrossingEstimate | None = None
        for _ in range(3):
            crossing = self._best_crossing(self.basis)
            if crossing is None:
                break
            normal = self._measure(crossing, self.basis)
            if normal is not None and (best is None or normal.error < best.error):
                best, estimate = normal, crossing.estimate
            if best is not None and best.error <= self._acceptable():
                break
            self.dropped += 1
        if best is None or estimate is None:
            return False
        self._keep(best, estimate)
        return True

    def _normal_from_test(self) -> bool:
        """Test the null space, and find one more direction where a move changed a label. False if there is none."""
        self.test = None
        if len(self.basis) == 0:
            return False
        before = self.oracle.ledger.label
        self.test = examine_null_space(
            self._labels,
            self.basis,
            boundary=torch.stack([normal.point for normal in self.normals]),
            normals=torch.stack([normal.direction for normal in self.normals]),
            moves=self.moves,
            tilt=math.hypot(*self.errors),
            scale=self.scale,
            generator=self.generator,
        )
        self.verifying += self.oracle.ledger.label - before
        starts, ends, start_labels = (part[:_FOLLOWED] for part in self.test.changed)
        crossing = self._crossing_on(starts, ends, start_labels, self.basis)
        normal = None if crossing is None else self._measure(crossing, self.basis)
        if crossing is None or normal is None:
            return False
        self._keep(normal, crossing.estimate)
        self.test = None  # it was about a smaller span
        return True

    def _best_crossing(self, found: Tensor) -> Crossing | None:
        """Of several boundary points, the one with the best estimated normal."""
        pairs = []
        for _ in range(3 if self.dim < 100 else 6):
            pair = self._search(found)
            if pair is None:
                break
            pairs.append(pair)
        if not pairs:
            return None
        starts, ends, start_labels = (torch.stack(parts) for parts in zip(*pairs, strict=True))
        return self._crossing_on(starts, ends, start_labels, found)

    def _crossing_on(self, starts: Tensor, ends: Tensor, start_labels: Tensor, found: Tensor) -> Crossing | None:
        """Of the boundary points on segments [m, d], the one with the best estimated normal."""
        if len(starts) == 0:
            return None
        points = bisect_segments(self._labels, starts, ends, start_labels, self.resolution / 16)
        crossings = (
            self._crossing(int(label), point, end - start, found)
            for label, point, start, end in zip(start_labels, points, starts, ends, strict=True)
        )
        # the error of the basis can change a label too, which is no new direction
        new = [crossing for crossing in crossings if crossing and self._is_new(crossing.estimate)]
        return max(new, key=lambda crossing: crossing.estimate.score, default=None)

    def _crossing(self, start_label: int, point: Tensor, along: Tensor, found: Tensor) -> Crossing | None:
        along = along - (found @ along) @ found
        along = along / along.norm()
        new = torch.randn(_PILOTS, self.dim, generator=self.generator, dtype=torch.float64)
        new = new - (new @ found.T) @ found
        new = new - (new @ along)[:, None] * along
        new = new / new.norm(dim=1, keepdim=True)
        estimate = estimate_crossing(self._same_label(start_label), point, along, new, found, step=self.step)
        return Crossing(start_label, point, along, estimate) if estimate is not None else None

    def _is_new(self, estimate: CrossingEstimate) -> bool:
        return estimate.new_part > _ARTEFACT * self._inherited(estimate)

    def _inherited(self, estimate: CrossingEstimate) -> float:
        """The new part that the error of the directions found so far explains."""
        errors = torch.tensor(self.errors[: len(estimate.known_part)], dtype=torch.float64)
        return float((estimate.known_part * errors).norm())

    def _labels(self, rows: Tensor) -> Tensor:
        return self.oracle.label(rows).cpu()

    def _same_label(self, label: int) -> SameLabel:
        return lambda rows: self._labels(rows) == label

    def _acceptable(self) -> float:
        """The error that a normal may have: a hundred times what resolution and curvature allow."""
        return 100 * max(_ACCURACY, self.resolution / self.step) * math.sqrt(self.dim)

    def _keep(self, normal: Normal, estimate: CrossingEstimate) -> None:
        """Add a direction. It inherits the errors of those before, more so where little of its normal is new."""
        direction = normal.direction
        for _ in range(2):
            direction = direction - (self.basis @ direction) @ self.basis
        self.basis = torch.cat([self.basis, (direction / direction.norm())[None]])
        self.errors.append(math.hypot(normal.error, self._inherited(estimate) / estimate.new_part))
        self.normals.append(normal)
        self.curve.append(len(self.basis))

    def _another_normal(self) -> None:
        """Measure a normal in the whole space, for averaging."""
        whole = torch.zeros(0, self.dim, dtype=torch.float64)
        crossing = self._best_crossing(whole)
        normal = self._measure(crossing, whole) if crossing is not None else None
        if normal is not None and normal.error <= self._acceptable():
            self.normals.append(normal)
            self.curve.append(len(self.basis))

    def _measure(self, crossing: Crossing, found: Tensor) -> Normal | None:
        """The normal at a crossing, within the directions that are not found yet."""
        claim(2 * self.dim**2, "A frame of the directions not found yet")
        noise = torch.randn(self.dim - len(found) - 1, self.dim, generator=self.generator, dtype=torch.float64)
        frame = torch.linalg.qr(torch.cat([found, crossing.along[None], noise]).T).Q.T
        return normal_at(
            self._same_label(crossing.start_label),
            crossing.point,
            crossing.along,
            frame[len(found) + 1 :],
            step=self.step,
            resolution=self.resolution,
            generator=self.generator,
        )

    # -- search for labels that change --------------------------------------------------------------------------------

    def _search(self, found: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """Two points with different labels that agree in the span found, and the label of the first.

        None if ``tries`` labels show no such pair.
        """
        asked = 0
        for points in self._slices(found):  # [slices, group, d]
            room = self.tries - asked
            points = points[: max(1, room // GROUP)]
            labels = self._labels(points.reshape(-1, self.dim)).reshape(points.shape[:2])
            asked += labels.numel()
            self.searched += labels.numel()
            mixed = (labels != labels[:, :1]).any(dim=1).nonzero()[:, 0]
            if len(mixed):
                group, group_labels = points[mixed[0]], labels[mixed[0]]
                other = int((group_labels != group_labels[0]).nonzero()[0, 0])
                return group[0], group[other], group_labels[0]
            if asked >= self.tries:
                return None
        return None

    def _slices(self, found: Tensor) -> Iterator[Tensor]:
        """Groups of points with the same part in ``found``: that of the origin, of a random or of a boundary point."""
        while True:
            for factor in SCALES:
                scale = self.scale * factor
                count = 4 if len(found) else 8
                anchors = scale * torch.randn(count, self.dim, generator=self.generator, dtype=torch.float64)
                anchors[0] = 0
                if self.normals and len(found):
                    anchors = torch.cat([anchors, self._near_boundaries(factor)])
                shared = (anchors @ found.T) @ found
                free = torch.randn(len(anchors), GROUP, self.dim, generator=self.generator, dtype=torch.float64)
                free = scale * (free - (free @ found.T) @ found)
                free[:, 0] = 0
                yield shared[:, None] + free

    def _near_boundaries(self, factor: float) -> Tensor:
        """Boundary points of earlier normals, shifted a little along the normal to either side."""
        picks = torch.randint(len(self.normals), (4,), generator=self.generator)
        pushes = torch.randn(4, generator=self.generator, dtype=torch.float64) * 0.1 * self.scale * factor
        rows = [self.normals[i].point + push * self.normals[i].direction for i, push in zip(picks, pushes, strict=True)]
        return torch.stack(rows)

    # -- the result ---------------------------------------------------------------------------------------------------

    def finish(self, asked: int | None, error: str = "") -> Span:
        """The result of the recovery."""
        rank = len(self.basis)
        reason = f"Stopped early: {error}" if error else self._reason(asked)
        notes = [reason] if reason else []
        if rank == self.dim:
            notes.append(f"The model depends on all {self.dim} input directions: there is no null space.")
        if self.dropped:
            notes.append(f"{self.dropped} normals were too imprecise and measured again elsewhere.")
        singular, basis = self._average(rank)
        tilt = math.hypot(*self.errors)
        return Span(
            basis=basis,
            singular_values=singular,
            gap=float(singular[-1]) / tilt if rank and tilt else math.inf,
            threshold=tilt,
            curve=tuple(self.curve),
            ledger=self.oracle.ledger.snapshot() - self.ledger_before,
            seed=self.seed,
            seconds=time.perf_counter() - self.started,
            method="default",
            source="labels",
            complete=not reason,
            reason=reason,
            moves=self.test.moves if self.test is not None and not reason else 0,
            outputs=max(1, self.oracle.output_dim - 1),
            notes=tuple(notes),
            facts=self._facts(),
        )

    def _reason(self, asked: int | None) -> str:
        """Why directions may be missing; empty where a test of the null space found none, or the rank was asked for."""
        rank = len(self.basis)
        if rank == self.dim or rank == asked or rank == 0:
            return ""
        if self.test is not None and len(self.test.changed[0]):
            return (
                f"{len(self.test.changed[0])} of {self.test.tested} labels tested still change outside the span found, "
                "but not sharply enough to measure more of it: the answers have a relative precision of "
                f"{self.oracle.eps:.1g}."
            )
        if asked is not None:
            return f"Asked for rank {asked}, found {rank}: {self.tries:,} further labels outside it never changed."
        if self.test is None or self.test.moves < self.moves:
            return (
                f"The rank is not verified: only {0 if self.test is None else self.test.moves} of {self.moves} moves "
                "in the null space could be tested, because the boundary points are too imprecise."
            )
        return ""

    def _average(self, rank: int) -> tuple[Tensor, Tensor]:
        """Singular values and the best subspace of that rank for all normals, each weighted by its precision."""
        if rank == 0:
            return self.basis.new_zeros(0), self.basis
        if len(self.normals) == rank:
            return torch.linalg.svdvals(torch.stack([normal.direction for normal in self.normals])), self.basis
        rows = torch.cat([self.basis, torch.stack([normal.direction for normal in self.normals[rank:]])])
        _, singular, vectors = torch.linalg.svd(rows, full_matrices=False)
        return singular[:rank], vectors[:rank]

    def _facts(self) -> dict[str, Any]:
        return {
            "normals": len(self.normals),
            "largest_normal_error": max((normal.error for normal in self.normals), default=0.0),
            "estimated_error": math.hypot(*self.errors),
            "step": self.step,
            "resolution": self.resolution,
            "labels_searching": self.searched,
            "labels_verifying": self.verifying,
            "labels_per_rank_and_input": self.oracle.ledger.total / max(1, len(self.basis) * self.dim),
        }

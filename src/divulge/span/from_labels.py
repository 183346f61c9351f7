"""The span from hard labels (Jayaram 2020, Algorithm 2): normals of the decision boundary are gradients.

Where a label flips, the gradient of what decides it is the boundary's normal, and lies in the span. As in the paper,
each search keeps to the directions that are not found yet, and each normal found there is a new direction.

As printed (``method="paper"``, see ``printed.py``) the scheme probes along directions that agree to N bits and cannot
run in float64. Here the normal comes from central differences of the boundary's height instead (``boundary.py``). And
where the paper searches the subspace orthogonal to what is found, we search the affine slices parallel to it through
random points and through boundary points found before: the label may never change in the slice through the origin.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from divulge.errors import AttackFailed, DivulgeError, InvalidInput
from divulge.oracles.base import Oracle, at_the_door
from divulge.progress import report
from divulge.span.boundary import Inside, Normal, Outlook, bisect_segments, normal_at, outlook
from divulge.span.result import Span

_ACCURACY = 1e-9  # slopes are found to this, where the oracle's precision allows
_PILOTS = 6  # rough slopes outside the span found that judge a crossing
_ARTEFACT = 8.0  # a normal must be new by this many times the error of the span found
_GROUP = 8  # points asked in one slice


def from_labels(
    oracle: Oracle,
    rank: int | None = None,
    *,
    method: Literal["default", "paper"] = "default",
    precision: Literal["double", "extended"] = "double",
    bits: int = 256,
    extra: float = 0.0,
    tries: int = 2000,
    scale: float = 1.0,
    step: float | None = None,
    seed: int = 0,
) -> Span:
    """Recover the span of a network's first linear map from its labels, two or more of them.

    ``rank`` stops the run there; without it the run ends when ``tries`` labels outside the span found are all alike
    within their slice. ``extra`` takes that part of the rank in further normals (0.5: half as many again), which
    average errors out. ``scale`` is the spread of the points, ``step`` the distance of the differences.
    """
    seed = at_the_door(oracle, seed)
    _check(oracle, rank, method, precision, extra, tries, scale, step)
    if precision == "extended" or method == "paper":
        from divulge.span.printed import printed_algorithm

        return printed_algorithm(oracle, rank, precision=precision, bits=bits, tries=tries, seed=seed)
    run = _Run(oracle, tries=tries, scale=scale, step=step, seed=seed)
    try:
        run.collect(rank, extra)
    except DivulgeError as error:
        if error.partial is None:
            error.partial = run.finish(rank, died=str(error))
        raise
    result = run.finish(rank)
    if result.rank == 0:
        raise AttackFailed(
            f"The label never changed in {run.searched:,} tries at {len(_SCALES)} scales around {scale:g}: there is no "
            "boundary to follow. Check that it is the right model, or give the spread of its inputs as scale=.",
            partial=result,
        )
    return result


_MOVES, _OFTEN = 128, 0.02
"""Moves outside the span that are looked at in the end, and the share of them that may change a label."""
_SCALES = (1.0, 4.0, 0.25, 16.0, 64.0)  # times the spread of the points, tried in turn where labels do not change


@dataclass(frozen=True)
class Crossing:
    """A boundary point, the line on which it was found, the label at the line's start, and how promising it is."""

    kind: int
    point: Tensor
    along: Tensor
    outlook: Outlook


class _Run:
    """The state of one recovery: the directions found, where, and what was asked."""

    def __init__(self, oracle: Oracle, *, tries: int, scale: float, step: float | None, seed: int) -> None:
        self.oracle, self.tries, self.scale, self.seed = oracle, tries, scale, seed
        self.dim = oracle.input_dim
        self.generator = torch.Generator().manual_seed(seed)
        fine = torch.finfo(torch.float64).eps
        self.step = step if step is not None else 3e-5 * scale * (oracle.eps / fine) ** (1 / 3)
        self.resolution = max(_ACCURACY * self.step, 4 * oracle.eps * scale)
        self.basis = torch.zeros(0, self.dim, dtype=torch.float64)
        self.normals: list[Normal] = []
        self.curve: list[int] = []
        self.errors: list[float] = []  # how far each direction of the basis may be tilted out of the true span
        self.searched = 0
        self.dropped = 0
        self.flipped = False  # did the last search find labels that change outside the span?
        self.missing = False  # ... and do so too often to be an artefact of a span that is a little off?
        self.began, self.before = time.perf_counter(), oracle.ledger.snapshot()

    def collect(self, rank: int | None, extra: float) -> None:
        target = rank if rank is not None else self.dim
        while len(self.basis) < target:
            if not self._next_normal():
                self.missing = self.flipped and self._still_decided_outside()
                break
            report("recovering the span", len(self.basis), rank, rank=len(self.basis), queries=self.oracle.ledger.total)
        for _ in range(math.ceil(extra * len(self.basis))):
            self._another_normal()

    # -- one more direction -------------------------------------------------------------------------------------------

    def _next_normal(self) -> bool:
        """Find a place where a new direction decides, and that direction. False if labels no longer change."""
        best: Normal | None = None
        seen: Outlook | None = None
        for _ in range(3):
            crossing = self._best_crossing(self.basis)
            if crossing is None:
                break
            normal = self._measure(crossing, self.basis)
            if normal is not None and (best is None or normal.error < best.error):
                best, seen = normal, crossing.outlook
            if best is not None and best.error <= self._acceptable():
                break
            self.dropped += 1
        if best is None or seen is None:
            return False
        self._keep(best, seen)
        return True

    def _still_decided_outside(self) -> bool:
        """Whether points often change their label when they are moved outside the span found."""
        points, moves = self.scale * torch.randn(2, _MOVES, self.dim, generator=self.generator, dtype=torch.float64)
        moves = moves - (moves @ self.basis.T) @ self.basis
        before, after = self._labels(torch.cat([points, points + moves])).chunk(2)
        return float((before != after).double().mean()) > _OFTEN

    def _best_crossing(self, found: Tensor) -> Crossing | None:
        """Of several places where the label flips within a slice, the one that promises the most exact normal."""
        pairs = []
        for _ in range(3 if self.dim < 100 else 6):
            pair = self._search(found)
            if pair is None:
                break
            pairs.append(pair)
        if not pairs:
            return None
        starts, ends, kinds = (torch.stack(parts) for parts in zip(*pairs, strict=True))
        places = bisect_segments(self._labels, starts, ends, kinds, self.resolution / 16)
        judged = (
            self._judge(int(kind), place, end - start, found)
            for kind, place, start, end in zip(kinds, places, starts, ends, strict=True)
        )
        # a label that changes only because the span found is a little off is no new direction
        real = [crossing for crossing in judged if crossing and self._is_new(crossing.outlook)]
        return max(real, key=lambda crossing: crossing.outlook.promise, default=None)

    def _judge(self, kind: int, point: Tensor, along: Tensor, found: Tensor) -> Crossing | None:
        along = along - (found @ along) @ found
        along = along / along.norm()
        new = torch.randn(_PILOTS, self.dim, generator=self.generator, dtype=torch.float64)
        new = new - (new @ found.T) @ found
        new = new - (new @ along)[:, None] * along
        new = new / new.norm(dim=1, keepdim=True)
        seen = outlook(self._inside(kind), point, along, new, found, step=self.step)
        return Crossing(kind, point, along, seen) if seen is not None else None

    def _is_new(self, seen: Outlook) -> bool:
        return seen.fresh > _ARTEFACT * self._inherited(seen)

    def _inherited(self, seen: Outlook) -> float:
        """How much of a normal may look new only because the directions found are a little off."""
        errors = torch.tensor(self.errors[: len(seen.known)], dtype=torch.float64)
        return float((seen.known * errors).norm())

    def _labels(self, rows: Tensor) -> Tensor:
        return self.oracle.label(rows).cpu()

    def _inside(self, kind: int) -> Inside:
        return lambda rows: self._labels(rows) == kind

    def _acceptable(self) -> float:
        """The error a normal should have: what the resolution and the step's curvature allow, with room to spare."""
        return 100 * max(_ACCURACY, self.resolution / self.step) * math.sqrt(self.dim)

    def _keep(self, normal: Normal, seen: Outlook) -> None:
        """One direction more; the errors of those before tilt it, the more the less of the normal is new."""
        direction = normal.direction
        for _ in range(2):
            direction = direction - (self.basis @ direction) @ self.basis
        self.basis = torch.cat([self.basis, (direction / direction.norm())[None]])
        self.errors.append(math.hypot(normal.error, self._inherited(seen) / seen.fresh))
        self.normals.append(normal)
        self.curve.append(len(self.basis))

    def _another_normal(self) -> None:
        """A normal in the whole space, for averaging."""
        whole = torch.zeros(0, self.dim, dtype=torch.float64)
        crossing = self._best_crossing(whole)
        normal = self._measure(crossing, whole) if crossing is not None else None
        if normal is not None and normal.error <= self._acceptable():
            self.normals.append(normal)
            self.curve.append(len(self.basis))

    def _measure(self, crossing: Crossing, found: Tensor) -> Normal | None:
        """The normal at a crossing, within the directions that are not found yet."""
        noise = torch.randn(self.dim - len(found) - 1, self.dim, generator=self.generator, dtype=torch.float64)
        frame = torch.linalg.qr(torch.cat([found, crossing.along[None], noise]).T).Q.T
        return normal_at(
            self._inside(crossing.kind),
            crossing.point,
            crossing.along,
            frame[len(found) + 1 :],
            step=self.step,
            resolution=self.resolution,
            generator=self.generator,
        )

    # -- where to look ------------------------------------------------------------------------------------------------

    def _search(self, found: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """Two points of one slice (equal in the span found) with different labels, and the first one's label.

        None if ``tries`` labels show none.
        """
        asked = 0
        for points in self._slices(found):  # [slices, group, d]
            room = self.tries - asked
            points = points[: max(1, room // _GROUP)]
            labels = self._labels(points.reshape(-1, self.dim)).reshape(points.shape[:2])
            asked += labels.numel()
            self.searched += labels.numel()
            mixed = (labels != labels[:, :1]).any(dim=1).nonzero()[:, 0]
            self.flipped = len(mixed) > 0
            if self.flipped:
                group, kinds = points[mixed[0]], labels[mixed[0]]
                other = int((kinds != kinds[0]).nonzero()[0, 0])
                return group[0], group[other], kinds[0]
            if asked >= self.tries:
                return None
        return None

    def _slices(self, found: Tensor) -> Iterator[Tensor]:
        """Groups of points that share their part in ``found``: through the origin, random, and near old boundaries."""
        while True:
            for factor in _SCALES:
                scale = self.scale * factor
                count = 4 if len(found) else 8
                anchors = scale * torch.randn(count, self.dim, generator=self.generator, dtype=torch.float64)
                anchors[0] = 0
                if self.normals and len(found):
                    anchors = torch.cat([anchors, self._near_boundaries(factor)])
                shared = (anchors @ found.T) @ found
                free = torch.randn(len(anchors), _GROUP, self.dim, generator=self.generator, dtype=torch.float64)
                free = scale * (free - (free @ found.T) @ found)
                free[:, 0] = 0
                yield shared[:, None] + free

    def _near_boundaries(self, factor: float) -> Tensor:
        """Boundary points of earlier normals, pushed a little to either side, where little decides the label."""
        picks = torch.randint(len(self.normals), (4,), generator=self.generator)
        pushes = torch.randn(4, generator=self.generator, dtype=torch.float64) * 0.1 * self.scale * factor
        rows = [self.normals[i].point + push * self.normals[i].direction for i, push in zip(picks, pushes, strict=True)]
        return torch.stack(rows)

    # -- the result ---------------------------------------------------------------------------------------------------

    def finish(self, asked: int | None, died: str = "") -> Span:
        rank = len(self.basis)
        notes: list[str] = []
        complete = not died and not self.missing
        if died:
            notes.append(f"Stopped early: {died}")
        if self.missing:
            notes.append(
                "Labels still change outside the span found, but not sharply enough to measure more of it: the answers "
                f"have a relative precision of {self.oracle.eps:.1g}."
            )
        elif asked is not None and rank < asked:
            complete = False
            notes.append(
                f"Asked for rank {asked}, found {rank}: {self.tries:,} further labels outside it never changed."
            )
        if rank == self.dim:
            notes.append(f"The first layer has full rank {self.dim}: there is no null space, every input matters.")
        if self.dropped:
            notes.append(f"{self.dropped} normals were too imprecise and measured again elsewhere.")
        singular, basis = self._average(rank)
        error = math.hypot(*self.errors)
        return Span(
            basis=basis,
            singular_values=singular,
            gap=float(singular[-1]) / error if rank and error else math.inf,
            threshold=error,
            curve=tuple(self.curve),
            ledger=self.oracle.ledger.snapshot() - self.before,
            seed=self.seed,
            seconds=time.perf_counter() - self.began,
            source="labels",
            complete=complete,
            notes=tuple(notes),
            facts=self._facts(),
        )

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
            "labels_per_rank_and_input": self.oracle.ledger.total / max(1, len(self.basis) * self.dim),
        }


def _check(
    oracle: Oracle,
    rank: int | None,
    method: str,
    precision: str,
    extra: float,
    tries: int,
    scale: float,
    step: float | None,
) -> None:
    if method not in ("default", "paper"):
        raise InvalidInput(f'method is "default" or "paper", not {method!r}.')
    if precision not in ("double", "extended"):
        raise InvalidInput(f'precision is "double" or "extended", not {precision!r}.')
    if rank is not None and not 1 <= rank <= oracle.input_dim:
        raise InvalidInput(
            f"A span in {oracle.input_dim} inputs has rank 1 to {oracle.input_dim}; rank={rank} cannot be."
        )
    if extra < 0 or tries < _GROUP:
        raise InvalidInput(f"extra must not be negative and tries must be at least {_GROUP}; got {extra} and {tries}.")
    for name, number in (("scale", scale), ("step", 1.0 if step is None else step)):
        if not (number > 0 and math.isfinite(number)):
            raise InvalidInput(f"{name} must be a positive number; got {number}.")

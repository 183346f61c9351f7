"""Finding hyperplane crossings along lines: the search that every exact attack shares.

On a line x(t) = u + t v a piecewise-linear function is a broken line; each break (kink) is a hyperplane crossed. One
sample tells the value and the slope there (and, with gradient access, the whole affine map of its cell), so two samples
predict where a single kink between them must sit: where their affine pieces meet. Milli 2019, Algorithm 1a, bisects;
here the kink is predicted and then checked from just beside it, and only a prediction that falls outside is bisected.

Many lines are searched at once, and every round is one batch of queries: one for each chosen interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from divulge.extraction.failures import SearchFailed

ROUNDS = 120
FLAT_STEPS = 8
CALIBRATIONS = 20
NEAR = 100.0
"""Affine pieces seen from so many times the typical |t| are precise where they meet."""
RANK_ONE = 1e-6
"""Largest second singular value of the jump of a single neuron, as a share of the first."""
CLOSEST = 1e-9
MOST_SAMPLES = 16_384
"""A search gives up beyond so many samples: the function keeps bending however closely it is looked at."""


@dataclass(frozen=True)
class Samples:
    """The function at points of lines: ``line`` [n], ``t`` [n], ``value`` [n, k], ``slope`` [n, k] along the line, and
    ``gradient`` [n, k, d] where the access grants it."""

    line: Tensor
    t: Tensor
    value: Tensor
    slope: Tensor
    gradient: Tensor | None = None

    def __len__(self) -> int:
        return len(self.t)


Ask = Callable[[Tensor, Tensor], Samples]
"""Takes ``line`` [n] and ``t`` [n] and answers the samples there, in that order."""


@dataclass(frozen=True)
class Tolerance:
    """What counts as equal."""

    jump: float
    """The smallest change of slope (of the gradient, where there is one) that is a kink."""
    value: float
    """The error of a value at t = 0."""
    drift: float
    """What is added to that for each unit of |t|."""
    closest: float = CLOSEST
    """Kinks nearer to each other than this, at t = 0, count as one."""
    rank_one: float = RANK_ONE
    """The second singular value of the jump of a single neuron is at most this share of the first."""

    def of_value(self, t: Tensor) -> Tensor:
        return self.value + self.drift * t.abs()


class KinkSearch:
    """Samples on lines, and the intervals between neighbours, refined until each holds at most one kink.

    An interval is *empty* if both ends see the same affine piece, *settled* if it holds a kink that was checked from
    just beside it on both sides (or is too narrow to split), and *open* otherwise. A ``quick`` search checks one side
    only, and none where the jump of several outputs has rank one, as that of a single neuron does: it asks fewer rows,
    and takes two kinks for one now and then.
    """

    def __init__(
        self, ask: Ask, start: Tensor, tolerance: Tolerance, *, spread: float = 1.0, quick: bool = False
    ) -> None:
        """``start`` [lines, p]: where to sample each line first, in rising order; ``spread``: the typical |t|."""
        self.ask, self.tolerance, self.spread, self.quick = ask, tolerance, spread, quick
        lines, points = start.shape
        first = ask(torch.arange(lines).repeat_interleave(points), start.reshape(-1))
        self._batches = _Growing(first)
        index = torch.arange(lines * points).reshape(lines, points)
        self.left, self.right = index[:, :-1].reshape(-1), index[:, 1:].reshape(-1)
        self._measure_all()

    def set_tolerance(self, tolerance: Tolerance) -> None:
        """Judge all intervals by another tolerance, as the first samples may suggest."""
        self.tolerance = tolerance
        self._measure_all()

    # -- what is known ------------------------------------------------------------------------------------------------

    @property
    def samples(self) -> Samples:
        return self._batches.samples

    @property
    def empty(self) -> Tensor:
        return self._empty

    @property
    def settled(self) -> Tensor:
        return ~self._empty & self._settled

    @property
    def open(self) -> Tensor:
        return ~self._empty & ~self._settled

    @property
    def doubtful(self) -> Tensor:
        """How much of each interval's angle lies on unchecked sides of its predicted kink; 0 for empty ones."""
        samples = self.samples
        low, high = self._angle(samples.t[self.left]), self._angle(samples.t[self.right])
        kink = self._angle(self.crossing)
        inside = (kink > low) & (kink < high)
        unchecked = torch.where(inside, torch.maximum(kink - low, high - kink), 2 * (high - low))
        return torch.where(self._empty, torch.zeros_like(unchecked), unchecked)

    # -- refinement ---------------------------------------------------------------------------------------------------

    def refine(self, chosen: Tensor, at: Tensor | None = None) -> None:
        """One round: a query in every interval of ``chosen`` (indices), which splits it in two.

        ``at`` says where; by default just beside the predicted kink, or in the middle if there is none to predict.
        """
        if not len(chosen):
            return
        if len(self.samples) > MOST_SAMPLES:
            raise SearchFailed()
        line = self.samples.line[self.left[chosen]]
        new = self._batches.append(self.ask(line, self._aim(chosen) if at is None else at))
        keep = torch.ones(len(self.left), dtype=torch.bool)
        keep[chosen] = False
        added_left = torch.cat([self.left[chosen], new])
        added_right = torch.cat([new, self.right[chosen]])
        fresh = self._measure(added_left, added_right)
        self.left = torch.cat([self.left[keep], added_left])
        self.right = torch.cat([self.right[keep], added_right])
        self._set(*(torch.cat([old[keep], now]) for old, now in zip(self._state(), fresh, strict=True)))
        self._calibrate()

    def run(self, *, rounds: int = ROUNDS) -> bool:
        """Refine until nothing is open: every kink checked from both sides. True if that was reached."""
        for _ in range(rounds):
            chosen = self.open.nonzero().flatten()
            if not len(chosen):
                return True
            self.refine(chosen)
        return not bool(self.open.any())

    def sample_ends(self) -> None:
        """Sample each line's outermost cells nearer to their kink, where their affine maps are known more precisely."""
        chosen, places = [], []
        t = self.samples.t
        for _, intervals in self.cells():
            if not len(intervals):
                continue
            for end, outermost in ((intervals[0], self.left), (intervals[-1], self.right)):
                kink, far = float(self.crossing[end]), float(t[outermost[end]])
                between = 2 * kink if abs(kink) > self.spread else math.copysign(2 * self.spread, far)
                if kink * far > 0 and abs(far) > 4 * abs(between) and int(end) not in chosen:
                    chosen.append(int(end))
                    places.append(between)
        if chosen:
            self.refine(torch.tensor(chosen), torch.tensor(places, dtype=torch.float64))

    def _calibrate(self) -> None:
        """Where many intervals show a step in value but none in slope, values are noisier than was thought."""
        for _ in range(CALIBRATIONS):
            bent = self.size > self.tolerance.jump
            if int((~self._empty & ~bent).sum()) <= FLAT_STEPS + int(bent.sum()) // 2:
                return
            self.tolerance = replace(self.tolerance, value=4 * self.tolerance.value, drift=4 * self.tolerance.drift)
            self._measure_all()

    def cells(self) -> list[tuple[Tensor, Tensor]]:
        """For each line, from left to right: the most precise sample of each cell, and the intervals between cells."""
        samples, found = self.samples, []
        order = torch.argsort(samples.t[self.left])
        for line in range(int(samples.line.max()) + 1):
            mine = order[samples.line[self.left[order]] == line]
            breaks = ~self._empty[mine]
            nodes = torch.cat([self.left[mine][:1], self.right[mine]])
            cell = torch.cat([torch.zeros(1, dtype=torch.long), breaks.long().cumsum(0)])
            best = torch.full((int(cell[-1]) + 1,), torch.inf, dtype=torch.float64)
            distance = samples.t[nodes].abs()
            best = best.scatter_reduce(0, cell, distance, "amin")
            pick = torch.empty(len(best), dtype=torch.long)
            winners = distance == best[cell]
            pick[cell[winners]] = nodes[winners]
            found.append((pick, mine[breaks]))
        return found

    # -- one interval -------------------------------------------------------------------------------------------------

    def _aim(self, chosen: Tensor) -> Tensor:
        """Just beside the predicted kink, on the side less well known; the middle if the prediction falls outside."""
        t = self.samples.t
        low, high, kink, beside = (
            t[self.left[chosen]],
            t[self.right[chosen]],
            self.crossing[chosen],
            self.beside[chosen],
        )
        middle = self.spread * torch.tan((self._angle(low) + self._angle(high)) / 2)
        middle = torch.where((middle > low) & (middle < high), middle, (low + high) / 2)
        on_left = self._angle(kink) - self._angle(low) >= self._angle(high) - self._angle(kink)
        target = torch.where(on_left, kink - beside, kink + beside)
        return torch.where((target > low) & (target < high) & (kink > low) & (kink < high), target, middle)

    def _measure(self, left: Tensor, right: Tensor) -> tuple[Tensor, ...]:
        """Crossing [m], how far beside it to ask [m], size of the jump [m], empty [m], settled [m]."""
        s = self.samples
        low, high = s.t[left], s.t[right]
        bend = s.slope[right] - s.slope[left]  # [m, k]
        if s.gradient is None:
            size = bend.norm(dim=1)
        else:
            size = (s.gradient[right] - s.gradient[left]).flatten(1).norm(dim=1)
        # both pieces seen from the middle, so that a far end does not cost precision near the other one
        near = torch.where(low.abs() < high.abs(), low, high)
        gap = (s.value[right] + s.slope[right] * (near - high)[:, None]) - (
            s.value[left] + s.slope[left] * (near - low)[:, None]
        )
        error = self.tolerance.of_value(low) + self.tolerance.of_value(high)
        squared = (bend * bend).sum(dim=1).clamp_min(torch.finfo(torch.float64).tiny)
        crossing = near - (gap * bend).sum(dim=1) / squared
        flat = squared.sqrt() <= self.tolerance.jump * 1e-3
        crossing = torch.where(flat, torch.full_like(crossing, torch.inf), crossing)
        empty = (size <= self.tolerance.jump) & (gap.norm(dim=1) <= error)
        closest = self.tolerance.closest * (1 + crossing.abs().clamp_max(1e300) / self.spread)
        beside = torch.maximum(closest, error / squared.sqrt())
        inside = (crossing > low) & (crossing < high)
        by_low, by_high = crossing - low <= 3 * beside, high - crossing <= 3 * beside
        tight = inside & (by_low & by_high if not self.quick else by_low | by_high)
        if self.quick and s.gradient is not None and s.gradient.shape[1] > 1:
            near_origin = torch.maximum(low.abs(), high.abs()) <= NEAR * self.spread
            tight |= inside & near_origin & _rank_one(s.gradient[right] - s.gradient[left], self.tolerance.rank_one)
        narrow = high - low <= 4 * self.tolerance.closest * (self.spread + near.abs())
        return crossing, beside, size, empty, tight | narrow

    def _angle(self, t: Tensor) -> Tensor:
        return torch.atan(t / self.spread)

    def _measure_all(self) -> None:
        self._set(*self._measure(self.left, self.right))

    def _state(self) -> tuple[Tensor, ...]:
        return self.crossing, self.beside, self.size, self._empty, self._settled

    def _set(self, crossing: Tensor, beside: Tensor, size: Tensor, empty: Tensor, settled: Tensor) -> None:
        self.crossing, self.beside, self.size, self._empty, self._settled = crossing, beside, size, empty, settled


def _rank_one(jump: Tensor, share: float) -> Tensor:
    """Whether each of the jumps [m, k, d] has rank one [m], as that of a single neuron has."""
    values = torch.linalg.eigvalsh(jump @ jump.transpose(1, 2))  # [m, k] rising
    single: Tensor = values[:, -2] <= share**2 * values[:, -1]
    return single


class _Growing:
    """Samples in tensors that double when full, so that appending a round does not copy all earlier ones."""

    def __init__(self, first: Samples) -> None:
        self._count = len(first)
        self._store = {name: part for name, part in vars(first).items() if part is not None}

    def append(self, more: Samples) -> Tensor:
        """Indices of the added samples."""
        start, self._count = self._count, self._count + len(more)
        for name, kept in self._store.items():
            if len(kept) < self._count:
                larger = kept.new_empty(max(2 * len(kept), self._count), *kept.shape[1:])
                larger[:start] = kept[:start]
                self._store[name] = kept = larger
            kept[start : self._count] = getattr(more, name)
        return torch.arange(start, self._count)

    @property
    def samples(self) -> Samples:
        return Samples(**{name: part[: self._count] for name, part in self._store.items()})

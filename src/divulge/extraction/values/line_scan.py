"""Every kink of a piecewise linear function along a line, from its values alone.

Milli 2019 (Algorithm 1-MQ) bisects one kink at a time with estimated gradients. Here the restriction of the function to
a line is sampled as a scalar function. Three neighbouring samples on a straight line make a *run*; where two runs meet,
their lines predict the kink, and one sample on either side of it proves the prediction. Only what is not explained yet
is sampled more densely, all of it in one request a round, so a line with h kinks costs a handful of samples for each
kink and a dozen requests in all.

A search is written as a generator that yields rows and is sent their values. ``run_together`` advances many of them
at once and puts all their rows into the same request.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
T = TypeVar("T")
Questions = Generator[Array, Array, T]  # yields rows [n, d], is sent values [n, k], returns T
Ask = Callable[[Array], Array]

CERTAIN = 8.0
"""Deviations of more than this many standard errors are real."""


def run_together(ask: Ask, searches: Sequence[Questions[T]]) -> list[T]:
    """Run the searches in step, one request a round for all of them; their results in the same order."""
    results: dict[int, T] = {}
    waiting: dict[int, Array] = {}

    def advance(index: int, answer: Array | None) -> None:
        try:
            rows = searches[index].send(answer) if answer is not None else next(searches[index])
            waiting[index] = rows
        except StopIteration as end:
            results[index] = end.value
            waiting.pop(index, None)

    for index in range(len(searches)):
        advance(index, None)
    while waiting:
        order = sorted(waiting)
        answers = ask(np.concatenate([waiting[index] for index in order]))
        start = 0
        for index in order:
            rows = len(waiting[index])
            advance(index, answers[start : start + rows])
            start += rows
    return [results[index] for index in range(len(searches))]


@dataclass(frozen=True)
class Line:
    """The points origin + t * direction."""

    origin: Array  # [d]
    direction: Array  # [d]

    def at(self, t: Array) -> Array:
        return np.asarray(self.origin + np.asarray(t)[..., None] * self.direction)


@dataclass(frozen=True)
class Piece:
    """A stretch of the line on which the function is straight, with the samples that lie on it."""

    t: Array  # [n] sorted, at least two
    y: Array  # [n, k]
    noise: Array  # [n] standard errors of the samples

    @property
    def slope(self) -> Array:
        """From the two samples farthest apart."""
        return np.asarray((self.y[-1] - self.y[0]) / (self.t[-1] - self.t[0]))

    def at(self, t: float) -> Array:
        i, j, _ = self._nearest(t)
        return chord_at(np.array(t), self.t[i], self.y[i], self.t[j], self.y[j])

    def uncertainty(self, t: float) -> float:
        """Standard error of ``at(t)``, which grows where the straight line is continued beyond its samples."""
        i, j, share = self._nearest(t)
        return float(np.hypot((1.0 - share) * self.noise[i], share * self.noise[j]))

    def _nearest(self, t: float) -> tuple[int, int, float]:
        """The samples to take a value from: those around ``t``, or else the nearest and the farthest one."""
        i, j = 0, len(self.t) - 1
        if self.t[0] < t < self.t[-1]:
            j = int(np.searchsorted(self.t, t))
            i = j - 1
        return i, j, (t - self.t[i]) / (self.t[j] - self.t[i])


@dataclass(frozen=True)
class Kink:
    """Where two pieces meet. If not ``single``, several kinks may hide between ``left`` and ``right``."""

    t: float
    jump: Array  # [k] change of slope
    left: float
    right: float
    single: bool


@dataclass(frozen=True)
class Scan:
    """What a search along a line found: pieces and the kinks between them, from left to right."""

    pieces: tuple[Piece, ...]
    kinks: tuple[Kink, ...]  # one fewer than pieces
    complete: bool
    """False if the search gave up: the function keeps bending however closely it is looked at."""
    strain: float
    """Median distance of the pieces' samples from their chords, in standard errors, where there are many pieces."""
    widest: float
    """Longest stretch of the line's middle part, |t| <= 3, in which nothing was sampled."""
    low: float
    high: float
    """Where the search began and ended."""


@dataclass
class _Samples:
    line: Line
    noise: Callable[[Array], Array]
    t: Array
    y: Array  # [n, k]
    s: Array  # [n]
    closed: dict[tuple[float, float], Kink] = field(default_factory=dict)
    refuted: list[float] = field(default_factory=list)  # where a kink was predicted and is not
    proven: int = 0

    def add(self, t: Array, y: Array) -> None:
        order = np.argsort(np.concatenate([self.t, t]), kind="stable")
        s = self.noise(self.line.at(t))
        self.t = np.concatenate([self.t, t])[order]
        self.y = np.concatenate([self.y, y])[order]
        self.s = np.concatenate([self.s, s])[order]

    def piece(self, run: tuple[int, int]) -> Piece:
        part = slice(run[0], run[1] + 1)
        return Piece(self.t[part], self.y[part], self.s[part])

    def runs(self) -> list[tuple[int, int]]:
        """Longest stretches of at least three samples on one straight line, none across a closed kink."""
        t, y, s = self.t, self.y, self.s
        share = (t[2:] - t[1:-1]) / (t[2:] - t[:-2])  # weight of the left neighbour
        straight = chord_at(t[1:-1], t[:-2], y[:-2], t[2:], y[2:])
        allowed = CERTAIN * np.sqrt(s[1:-1] ** 2 + (share * s[:-2]) ** 2 + ((1 - share) * s[2:]) ** 2)
        collinear = np.abs(y[1:-1] - straight).max(axis=1) <= allowed
        barrier = np.array([(t[i], t[i + 1]) in self.closed for i in range(len(t) - 1)])
        collinear &= ~(barrier[:-1] | barrier[1:])
        inner = np.concatenate([[False], collinear, [False]])
        edges = np.flatnonzero(np.diff(inner.astype(np.int8)))
        runs = [(int(a), int(b) + 1) for a, b in zip(edges[::2], edges[1::2], strict=True)]
        return [part for run in runs for part in self._straight(run)]

    def _straight(self, run: tuple[int, int]) -> list[tuple[int, int]]:
        """The run, or its parts if it bends too little from sample to sample but too much as a whole.

        A part counts only with a sample well inside it: two of three samples right beside each other prove nothing.
        """
        i, j = run
        if j < i + 2:
            return []
        angle = np.arctan(self.t[i : j + 1])
        depth = (angle - angle[0]) / (angle[-1] - angle[0])
        if not np.any((depth > 0.02) & (depth < 0.98)):
            return []
        excess = self.excess(run)
        worst = int(np.argmax(excess))
        if excess[worst] <= CERTAIN:
            return [run]
        return self._straight((i, i + worst)) + self._straight((i + worst, j))

    def excess(self, run: tuple[int, int]) -> Array:
        """Distance of a run's samples from its chord, in standard errors."""
        i, j = run
        inside = slice(i, j + 1)
        place = (self.t[inside] - self.t[i]) / (self.t[j] - self.t[i])
        chord = chord_at(self.t[inside], self.t[i], self.y[i], self.t[j], self.y[j])
        spread = np.sqrt(self.s[inside] ** 2 + ((1 - place) * self.s[i]) ** 2 + (place * self.s[j]) ** 2)
        return np.asarray(np.abs(self.y[inside] - chord).max(axis=1) / spread)

    def drop(self, t: float) -> None:
        """Forget a sample that is too close to another one to be of use."""
        keep = self.t != t
        self.t, self.y, self.s = self.t[keep], self.y[keep], self.s[keep]


def chord_at(t: Array, a: Array, at_a: Array, b: Array, at_b: Array) -> Array:
    """The straight line through (a, at_a) and (b, at_b) at t, reckoned from the nearer end: no digits are lost."""
    slope = (at_b - at_a) / np.asarray(b - a)[..., None]
    from_a = np.asarray(np.abs(t - a) <= np.abs(t - b))[..., None]
    start, value = np.where(from_a[..., 0], a, b), np.where(from_a, at_a, at_b)
    return np.asarray(value + slope * np.asarray(t - start)[..., None])


def middle(a: float, b: float) -> float:
    """Halfway between two positions: in angle, so that a line's far ends are as near as its middle."""
    if abs(b - a) < 0.1 * (1.0 + min(abs(a), abs(b))):
        return 0.5 * (a + b)
    return float(np.tan(0.5 * (np.arctan(a) + np.arctan(b))))


def scan(
    line: Line,
    low: float,
    high: float,
    *,
    noise: Callable[[Array], Array],
    smallest: Callable[[float], float],
    known: Callable[[Array], Array] | None = None,
    start: int = 16,
    also: float | None = None,
    limit: int = 4_000,
    rng: np.random.Generator,
) -> Questions[Scan]:
    """Search a line between ``low`` and ``high``.

    ``noise`` is the standard error of values at rows; ``known`` is subtracted from the values; kinks closer to each
    other than ``smallest(t)`` are reported as one that is not ``single``. The first ``start`` samples are spread over
    the line, with one at ``also``. Gives up beyond ``limit`` samples, or 40 for each proven kink if that is more.
    """
    angles = np.linspace(np.arctan(low), np.arctan(high), start)
    angles[1:-1] += rng.uniform(-0.3, 0.3, start - 2) * (angles[1] - angles[0])
    wanted = np.tan(angles)
    wanted[0], wanted[-1] = low, high
    if also is not None:
        wanted = np.sort(np.append(wanted, also))
    samples = _Samples(line, noise, np.empty(0), np.empty((0, 0)), np.empty(0))
    predicted: list[tuple[Piece, Piece, Kink]] = []
    while len(wanted):
        rows = line.at(wanted)
        values = yield rows
        if known is not None:
            values = values - known(rows)
        if not len(samples.t):
            samples.y = np.empty((0, values.shape[1]))
        samples.add(wanted, values)
        for before, after, kink in predicted:
            _prove(samples, before, after, kink)
        if len(samples.t) > max(limit, 4 * start, 40 * samples.proven):
            return _result(samples, complete=False)
        wanted, predicted = _next(samples, smallest, rng)
    return _result(samples, complete=True)


def _prove(samples: _Samples, before: Piece, after: Piece, kink: Kink) -> None:
    """Close a predicted kink if the samples on both sides of it lie where the pieces say."""
    for t, piece in ((kink.left, before), (kink.right, after)):
        seen = samples.y[np.searchsorted(samples.t, t)]
        spread = float(np.hypot(piece.uncertainty(t), samples.s[np.searchsorted(samples.t, t)]))
        if np.abs(seen - piece.at(t)).max() > CERTAIN * spread:
            samples.drop(kink.right if kink.right < after.t[0] else kink.left)
            samples.refuted.append(kink.t)
            return
    samples.closed[(kink.left, kink.right)] = kink
    samples.proven += 1


def _next(
    samples: _Samples, smallest: Callable[[float], float], rng: np.random.Generator
) -> tuple[Array, list[tuple[Piece, Piece, Kink]]]:
    """Where to sample next, and the kinks those samples would prove."""
    t = samples.t
    runs = samples.runs()
    wanted: list[float] = []
    predicted: list[tuple[Piece, Piece, Kink]] = []
    edges = [(0, 0), *runs, (len(t) - 1, len(t) - 1)]
    for number, (before, after) in enumerate(itertools.pairwise(edges)):
        i, j = before[1], after[0]
        outer = number == 0 or number == len(edges) - 2
        if i == j and outer:
            continue
        if j == i + 1 and (t[i], t[j]) in samples.closed:
            continue
        if not outer:
            settled = _meet(samples, before, after, smallest)
            if settled is not None:
                new, kink = settled
                wanted += new
                if kink is not None and new:
                    predicted.append((samples.piece(before), samples.piece(after), kink))
                continue
        wanted += [
            _between(t[m], t[m + 1], rng)
            for m in range(i, j)
            if t[m + 1] - t[m] > 0.01 * smallest(t[m]) and (t[m], t[m + 1]) not in samples.closed
        ]
    return np.unique(np.array(wanted)), predicted


def _between(a: float, b: float, rng: np.random.Generator) -> float:
    m = middle(a, b)
    return m + float(rng.uniform(-0.1, 0.1)) * min(m - a, b - m)


def _meet(
    samples: _Samples, before: tuple[int, int], after: tuple[int, int], smallest: Callable[[float], float]
) -> tuple[list[float], Kink | None] | None:
    """How two neighbouring runs meet: samples that would prove one kink, or a kink closed here and now, or None."""
    i, j = before[1], after[0]
    left, right = samples.t[i], samples.t[j]
    first, second = samples.piece(before), samples.piece(after)
    jump = second.slope - first.slope
    size = float(jump @ jump)
    if size == 0.0:
        return None
    t = left - float((second.at(left) - first.at(left)) @ jump) / size
    spread = float(np.hypot(first.uncertainty(t), second.uncertainty(t))) / np.sqrt(size)
    narrow = smallest(left)
    if i == j:
        if abs(t - left) <= 2 * CERTAIN * spread:
            return [], None
        around = [(samples.t[m], samples.t[m + 1]) for m in (i - 1, i)]
        return [middle(a, b) for a, b in around if b - a > 0.01 * narrow], None
    if right - left <= narrow or (j <= i + 1 and right - left <= 4 * CERTAIN * spread):
        single = j <= i + 1 and left - CERTAIN * spread <= t <= right + CERTAIN * spread
        kink = Kink(float(np.clip(t, left, right)), jump, left, right, single)
        for m in range(i, j):
            samples.closed[(samples.t[m], samples.t[m + 1])] = kink
        return [], kink
    if j > i + 1 or not left < t < right:
        return None
    reach = max(2 * CERTAIN * spread, 1e-7 * (right - left))
    if reach > 0.25 * (right - left) or any(abs(t - other) <= 2 * reach for other in samples.refuted):
        return None
    new = []
    nearest, farthest = left, right
    if t - reach > left + 0.05 * reach:
        nearest = t - reach
        new.append(nearest)
    if t + reach < right - 0.05 * reach:
        farthest = t + reach
        new.append(farthest)
    return new, Kink(t, jump, nearest, farthest, True)


def _result(samples: _Samples, *, complete: bool) -> Scan:
    """Pieces and kinks from what is closed; an unfinished search keeps what it has."""
    runs = samples.runs()
    pieces = [samples.piece(run) for run in runs]
    kinks = []
    for (a, before), (b, after) in zip(
        zip(runs[:-1], pieces[:-1], strict=True), zip(runs[1:], pieces[1:], strict=True), strict=True
    ):
        left, right = samples.t[a[1]], samples.t[b[0]]
        jump = after.slope - before.slope
        size = float(jump @ jump)
        t = left - float((after.at(left) - before.at(left)) @ jump) / size if size else 0.5 * (left + right)
        known = samples.closed.get((left, right))
        single = known.single if known is not None else (a[1] == b[0])
        kinks.append(Kink(float(np.clip(t, left, right)), jump, left, right, single))
    strain = 0.0
    if len(runs) >= 20:
        strain = float(np.median([samples.excess(run).max() for run in runs]))
    inner = samples.t[np.abs(samples.t) <= 3.0]
    widest = float(np.diff(inner).max(initial=0.0))
    low, high = float(samples.t[0]), float(samples.t[-1])
    return Scan(tuple(pieces), tuple(kinks), complete, strain, widest, low, high)

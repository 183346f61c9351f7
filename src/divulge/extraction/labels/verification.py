"""Does the copy decide like the target? Fresh rows of the region, and rows beside the boundary of either.

A copy without boundary where the target has one is caught by the target's own boundary points and by random rows; a
copy with a boundary too many by its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from divulge.extraction.labels.asking import Array, bisect_all, together
from divulge.extraction.labels.survey import Survey

DISTANCES = (1e-3, 1e-6)
"""Distances from the boundary, in spreads, at which copy and target are compared."""
REPAIR_DISTANCE = 1e-7
SEGMENTS = 40
"""Random segments for each boundary point wanted."""
MOST_REPAIRS = 2
TOWARDS, HALVINGS = 8, 12
"""Rows of another label towards which the target's boundary is looked for from a row that the copy gets wrong, and how
near to it that begins."""
FLAT, STEEP_ROWS = 1e-4, 1000
"""Logits are flat where they are less steep than this share of their steepest among so many rows: where no neuron of a
network without an output bias is on, its logit is 0, and that of the copy is rounding."""


class Decides(Protocol):
    """A copy: its labels, and the differences of its logits."""

    def labels(self, x: Array) -> Array: ...

    def difference(self, x: Array, pairs: Array) -> tuple[Array, Array]: ...


@dataclass(frozen=True)
class Disagreement:
    """A segment on which copy and target disagree: rows of different labels, and the label of the first."""

    one: Array
    two: Array
    label: int


@dataclass(frozen=True)
class Crossings:
    """Where random segments cross the copy's boundary."""

    starts: Array  # [n, d]
    stops: Array  # [n, d]
    points: Array  # [n, d]
    pairs: Array  # [n, 2] the copy's labels on both sides
    normals: Array  # [n, d] unit, to the first label


@dataclass(frozen=True)
class Agreement:
    """Shares of fresh rows on which copy and target agree."""

    rows: float
    near: dict[float, float]
    """By distance from the boundary, in spreads."""
    own: float
    """On the user's rows; 1 where there are none."""
    compared: int
    """Rows of the region."""
    compared_near: int
    """Rows at each distance."""
    balance: float
    """Share of the most frequent label among the rows of the region."""
    wrong: list[Disagreement]
    """Segments on which copy and target disagree, for a repair."""

    @property
    def least(self) -> float:
        """The smallest of the shares."""
        return min(self.rows, self.own, *self.near.values())

    @property
    def shares(self) -> tuple[float, float]:
        """The smaller share of whole rows, and the smallest of all: the copy with larger ones is better."""
        return min(self.rows, self.own), self.least

    @property
    def complete(self) -> bool:
        return self.least == 1


def crossings(copy: Decides, survey: Survey, count: int) -> Crossings | None:
    """Up to ``count`` points of the copy's boundary; no labels are asked. None if it has none in the region."""
    rows = survey.rows(2 * SEGMENTS * count)
    X, Y = rows[: SEGMENTS * count], rows[SEGMENTS * count :]
    label = copy.labels(X)
    chosen = np.nonzero(label != copy.labels(Y))[0][:count]
    if not len(chosen):
        return None
    X, Y, label = X[chosen], Y[chosen], label[chosen]
    low, high = np.zeros(len(X)), np.ones(len(X))
    for _ in range(52):
        middle = (low + high) / 2
        same = copy.labels(X + middle[:, None] * (Y - X)) == label
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    one, two = X + low[:, None] * (Y - X), X + high[:, None] * (Y - X)
    pairs = np.stack([copy.labels(one), copy.labels(two)], axis=1)
    before, beyond = copy.difference(one, pairs)[1], copy.difference(two, pairs)[1]
    sizes = [np.linalg.norm(gradient, axis=1, keepdims=True) for gradient in (before, beyond)]
    gradient = np.where(sizes[0] < FLAT * sizes[1], beyond, before)  # logits are flat on one side of some boundaries
    size = np.linalg.norm(gradient, axis=1, keepdims=True)
    return Crossings(X, Y, one, pairs, gradient / np.maximum(size, 1e-300))


def disagreements(copy: Decides, survey: Survey, count: int) -> list[Disagreement]:
    """Segments to repair the copy with: those on which the target disagrees about the copy's boundary."""
    found = crossings(copy, survey, count)
    if found is None:
        return []
    distance = max(REPAIR_DISTANCE * survey.tolerances.spread, survey.tolerances.offset)
    return _around(found, survey, np.nonzero(~_both_sides(copy, found, survey, distance))[0])


def _segments(survey: Survey, rows: Array, truth: Array, wrong: Array) -> list[Disagreement]:
    """Segments from rows that the copy gets wrong to the nearest that the target decides otherwise."""
    others = [np.nonzero(truth != truth[i])[0][:TOWARDS] for i in wrong[:MOST_REPAIRS]]
    found = [nearest_change(survey, rows[i], rows[j]) for i, j in zip(wrong, others, strict=False)]
    return [one for one in found if one is not None]


def nearest_change(survey: Survey, x: Array, towards: Array) -> Disagreement | None:
    """The shortest segment from x towards one of these rows [n, d] whose ends have different labels.

    What the copy gets wrong may be a small pocket: on a longer way the boundary may be one that it has right.
    """
    lengths = 2.0 ** -np.arange(HALVINGS)
    ends = x + lengths[:, None, None] * (towards - x)  # [halvings, n, d]
    labels = survey.ask(np.concatenate([x[None], ends.reshape(-1, len(x))]))
    other = labels[1:].reshape(ends.shape[:2]) != labels[0]
    away = np.where(other, lengths[:, None] * np.linalg.norm(towards - x, axis=1), np.inf)
    at = np.unravel_index(int(away.argmin()), away.shape)
    return Disagreement(x, ends[at], int(labels[0])) if np.isfinite(away[at]) else None


def _around(found: Crossings, survey: Survey, wrong: Array) -> list[Disagreement]:
    """Of these crossings of the copy's boundary, the shortest segments that cross the target's."""
    if not len(wrong):
        return []
    others = np.stack(survey.of_both_labels())
    ends = [np.concatenate([found.starts[i][None], found.stops[i][None], others]) for i in wrong[:MOST_REPAIRS]]
    segments = [nearest_change(survey, found.points[i], rows) for i, rows in zip(wrong, ends, strict=False)]
    return [one for one in segments if one is not None]


def _both_sides(copy: Decides, found: Crossings, survey: Survey, distance: float) -> Array:
    """At which points the target decides like the copy on both sides; next to a bend these may be of one label."""
    aside = distance * found.normals
    rows = np.concatenate([found.points + aside, found.points - aside])
    return np.asarray((survey.ask(rows) == copy.labels(rows)).reshape(2, -1).all(axis=0))


def agreement(copy: Decides, survey: Survey, checks: int, own: Array | None) -> Agreement:
    """Compare copy and target on ``checks`` fresh rows, and on a tenth as many beside both boundaries."""
    rows = survey.rows(checks)
    truth = survey.ask(rows)
    same = float((truth == copy.labels(rows)).mean())
    near, compared, kept = {}, 0, 1.0
    wrong = _segments(survey, rows, truth, np.nonzero(truth != copy.labels(rows))[0])
    if own is not None:
        answers = survey.ask(own)
        right = answers == copy.labels(own)
        kept = float(right.mean())
        wrong = wrong or _segments(survey, own, answers, np.nonzero(~right)[0])
    beside = max(10, checks // 10)
    ours = crossings(copy, survey, beside)
    theirs = _target_points(survey, rows, truth, max(5, beside // 10))
    for distance in DISTANCES:
        away = max(distance * survey.tolerances.spread, survey.tolerances.offset)
        beside_both = [] if ours is None else [_both_sides(copy, ours, survey, away)]
        if ours is not None and not wrong:
            wrong = _around(ours, survey, np.nonzero(~beside_both[0])[0])
        if theirs is not None:
            points, segments = theirs
            beside_both.append(_beside(copy, survey, points, away))
            wrong = wrong or [segments[i] for i in np.nonzero(~beside_both[-1])[0][:MOST_REPAIRS]]
        joined = np.concatenate(beside_both) if beside_both else np.zeros(0, bool)
        compared = len(joined)
        near[distance] = float(joined.mean()) if compared else 0.0
    balance = float(np.unique(truth, return_counts=True)[1].max() / len(truth))
    return Agreement(same, near, kept, len(rows), compared, balance, wrong)


def _target_points(survey: Survey, rows: Array, labels: Array, count: int) -> tuple[Array, list[Disagreement]] | None:
    """Points of the target's own boundary, and the segments between fresh rows of different labels that they are on."""
    half = len(rows) // 2
    chosen = np.nonzero(labels[:half] != labels[half : 2 * half])[0][:count]
    if not len(chosen):
        return None
    inner, outer = rows[chosen], rows[half + chosen]
    zero = np.zeros(len(chosen))
    precise = max(0.01 * DISTANCES[-1] * survey.tolerances.spread, survey.tolerances.resolution)
    longest = float(np.linalg.norm(inner - outer, axis=1).max())
    search = bisect_all(outer, inner - outer, zero, zero + 1, labels[chosen], precise / longest)
    t, _, _ = together(survey.ask, [search])[0]
    points = np.asarray(outer + t[:, None] * (inner - outer))
    return points, [Disagreement(inner[k], outer[k], int(labels[i])) for k, i in enumerate(chosen)]


def _beside(copy: Decides, survey: Survey, points: Array, distance: float) -> Array:
    """Whether copy and target agree at random rows this far from the target's boundary points.

    Of a coarse target the rows lie at about half a right angle to the copy's boundary: rounding decides nearer ones.
    """
    away = _unit_rows(survey.random.standard_normal(points.shape))
    if survey.tolerances.coarse:
        normals = _nearest_normals(copy, points, survey.classes)
        away = _unit_rows(away + np.where((away * normals).sum(axis=1, keepdims=True) > 0, normals, -normals))
    rows = points + distance * away
    return np.asarray(survey.ask(rows) == copy.labels(rows))


def _nearest_normals(copy: Decides, points: Array, classes: int) -> Array:
    """Of unit length, across the copy's boundary that is nearest to each point [n, d]; 0 where the copy is flat."""
    decided = copy.labels(points)
    value, gradient = zip(
        *(copy.difference(points, np.stack([decided, np.full(len(points), k)], axis=1)) for k in range(classes)),
        strict=True,
    )
    away = np.abs(np.stack(value)) / np.maximum(np.linalg.norm(gradient, axis=2), 1e-300)
    away[decided, np.arange(len(points))] = np.inf
    return _unit_rows(np.stack(gradient)[away.argmin(axis=0), np.arange(len(points))])


def _unit_rows(rows: Array) -> Array:
    """Rows at length one; those of length zero stay."""
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300))

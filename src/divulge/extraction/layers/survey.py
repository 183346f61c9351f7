"""Everything that was asked on segments: samples, the intervals between neighbours, and the kinks in them.

A kink is a point of the bent hyperplane of some neuron, of whatever layer, and the jump of the gradient there is along
its normal. All kinks are kept, and are used for all layers.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np
import torch

from divulge.extraction.gradients.affine_maps import SampleLines
from divulge.extraction.gradients.kink_search import CLOSEST, RANK_ONE, KinkSearch, Samples, Tolerance
from divulge.extraction.layers.accuracy import Accuracy
from divulge.extraction.layers.known_layers import Array, KnownLayers
from divulge.extraction.layers.query_space import QuerySpace

JUMP = 1e-10
"""Smallest change of the gradient that is a kink, as a share of the gradient."""
ROUNDING = 2e-14
"""Error of values, as a share of the sizes of values and slopes: some 100 units in the last place."""
ERRORS, VALUE_ERRORS, RANK_ONE_ERRORS = 10.0, 3.0, 300.0
"""Imprecise answers: jumps above so many times the error of gradients are kinks, values differ by at most so many times
it, and jumps of one neuron have rank one up to so many times it."""
STEEP = 10.0
"""Values that change over an interval by more than so many times its slopes tell jump."""
STRONG = 0.1
"""Kinks whose jump is a smaller share of the gradient than this count less, in proportion."""


@dataclass
class Batch:
    """Samples and intervals, each as one array."""

    Y: Array  # [n, dim]
    value: Array  # [n, k]
    gradient: Array  # [n, k, dim]
    left: Array  # [m] sample at the left end of each interval
    right: Array  # [m]
    kinked: Array  # [m] whether the interval holds a kink
    kink: Array  # [m, dim] where it is
    normal: Array  # [m, dim]
    strength: Array  # [m] jump as a share of the gradient
    weight: Array  # [m] how much the equations of each kink count
    error: Array  # [m] relative error of the normal, beyond what float64 has


class FollowedKink(Protocol):
    """A kink of which more is known (``followed_kinks.py``)."""

    @property
    def depth(self) -> int:
        """Layers that were known when it was followed."""

    def row(self, layers: KnownLayers) -> tuple[Array, float, Array] | None:
        """Row of length one, bias and known entries, if it belongs to a neuron on ``layers``."""


class Survey:
    """All samples and intervals of the segments searched in one space."""

    has_gradients = True
    """Whether a gradient is a single row, and as precise at any point as on a segment."""

    def __init__(self, space: QuerySpace) -> None:
        self.space = space
        self.segments = 0
        self.followed: dict[int, FollowedKink] = {}  # by interval
        self._batch: Batch | None = None

    @property
    def data(self) -> Batch:
        assert self._batch is not None
        return self._batch

    @property
    def jumps(self) -> int:
        """Intervals over which values change by more than slopes explain: a continuous function has none."""
        data = self.data
        gap = np.linalg.norm(data.Y[data.right] - data.Y[data.left], axis=1)
        change = np.abs(data.value[data.right] - data.value[data.left]).max(axis=1)
        slope = np.linalg.norm(data.gradient, axis=2).max(axis=1)
        level = np.abs(data.value).max(axis=1)
        error = self.space.accuracy.at_least(ROUNDING, VALUE_ERRORS)
        steep = STEEP * (slope[data.left] + slope[data.right]) * gap
        return int((change > steep + error * (level[data.left] + level[data.right]) + error * slope.max()).sum())

    def append(self, new: Batch, segments: int) -> None:
        """Add the samples and intervals of further segments."""
        self.segments += segments
        if self._batch is None:
            self._batch = new
            return
        old = self._batch
        new.left, new.right = new.left + len(old.Y), new.right + len(old.Y)
        parts = {part.name: (getattr(old, part.name), getattr(new, part.name)) for part in fields(Batch)}
        self._batch = Batch(**{name: np.concatenate(both) for name, both in parts.items()})

    def add(self, begin: Array, end: Array, start: list[float], *, spread: float = 0.5) -> None:
        """Search segments begin + t (end - begin) for all their kinks; ``start`` are the first places t asked."""
        search_segments(self, begin, end, start, spread=spread)

    def add_points(self, Y: Array) -> None:
        """Ask single points: samples without intervals."""
        Y = self.space.clear_of_zero(Y)
        value, gradient = self.space.maps(Y)
        none = np.zeros((0, Y.shape[1]))
        count, index, flags = np.zeros(0), np.zeros(0, int), np.zeros(0, bool)
        self.append(Batch(Y, value, gradient, index, index, flags, none, none, count, count, count), 0)


def search_segments(survey: Survey, begin: Array, end: Array, start: list[float], *, spread: float) -> None:
    """All kinks of segments from gradients, added to a survey."""
    space = survey.space
    begin, end = (space.clear_of_zero(Y) for Y in (begin, end))
    along = end - begin

    def ask(line: torch.Tensor, t: torch.Tensor) -> Samples:
        i, s = line.numpy(), t.numpy()
        value, jacobian = space.maps(begin[i] + s[:, None] * along[i])
        slope = np.einsum("nkd,nd->nk", jacobian, along[i])
        return Samples(line, t, *(torch.from_numpy(np.ascontiguousarray(part)) for part in (value, slope, jacobian)))

    places = torch.tensor([start] * len(begin), dtype=torch.float64)
    search = KinkSearch(ask, places, Tolerance(jump=0.0, value=0.0, drift=0.0), spread=spread, quick=True)
    search.set_tolerance(tolerance_of(search.samples, space.accuracy))
    search.run()
    survey.append(batch_of(search, begin, along, space.accuracy), len(begin))


def search_again(survey: Survey, lines: SampleLines) -> None:
    """Find the kinks that an earlier search of a line left open, and add the line to a survey of inputs."""
    begin, along = lines.origins.numpy(), lines.directions.numpy()
    order = torch.cat([part.t for part in lines.answers]).argsort()
    parts = zip(*(vars(part).values() for part in lines.answers), strict=True)
    known = Samples(*(torch.cat(part)[order] for part in parts))

    def ask(line: torch.Tensor, t: torch.Tensor) -> Samples:
        value, gradient = lines.target.maps(lines.at(line, t))
        return Samples(line, t, value, torch.einsum("nkd,nd->nk", gradient, lines.directions[line]), gradient)

    accuracy = survey.space.accuracy
    search = KinkSearch(lambda line, t: known, known.t[None], tolerance_of(known, accuracy), quick=True)
    search.ask = ask
    search.run()
    survey.append(batch_of(search, begin, along, accuracy), 1)


def tolerance_of(samples: Samples, accuracy: Accuracy) -> Tolerance:
    """What counts as equal, from the sizes of the first answers."""
    assert samples.gradient is not None
    near = samples.t.abs() <= 1.0
    size = float(samples.gradient.flatten(1).norm(dim=1).max())
    slope, level = float(samples.slope.norm(dim=1).max()), float(samples.value[near].norm(dim=1).max())
    rounding = accuracy.at_least(ROUNDING, VALUE_ERRORS)
    return Tolerance(
        jump=accuracy.at_least(JUMP, ERRORS) * size, value=rounding * (slope + level + size),
        drift=rounding * (slope + size), closest=accuracy.at_least(CLOSEST, ERRORS),
        rank_one=accuracy.at_least(RANK_ONE, RANK_ONE_ERRORS),
    )  # fmt: skip


def batch_of(search: KinkSearch, begin: Array, along: Array, accuracy: Accuracy) -> Batch:
    """The samples of a finished search and the kinks between them."""
    samples = search.samples
    assert samples.gradient is not None
    line, t, jacobian = samples.line.numpy(), samples.t.numpy(), samples.gradient.numpy()
    left, right = search.left.numpy(), search.right.numpy()
    kinked = ~search.empty.numpy()
    crossing = np.clip(search.crossing.numpy(), t[left], t[right])
    normal, strength = np.zeros((len(left), begin.shape[1])), np.zeros(len(left))
    normal[kinked], strength[kinked] = normals(jacobian[left[kinked]], jacobian[right[kinked]])
    return Batch(
        Y=begin[line] + t[:, None] * along[line], value=samples.value.numpy(), gradient=jacobian, left=left,
        right=right, kinked=kinked, kink=begin[line[left]] + crossing[:, None] * along[line[left]], normal=normal,
        strength=strength, weight=np.minimum(1.0, strength / STRONG),
        error=np.minimum(1.0, accuracy.error / np.maximum(strength, np.finfo(float).tiny)),
    )  # fmt: skip


def normals(before: Array, after: Array) -> tuple[Array, Array]:
    """Unit normals [m, d] of the jumps between gradients [m, k, d], and their sizes as shares of the gradients [m]."""
    jump = after - before
    if jump.shape[1] > 1:  # the direction that all outputs share
        gram = jump @ jump.transpose(0, 2, 1)
        mix = np.linalg.eigh(gram)[1][:, :, -1]
        row = np.einsum("mk,mkd->md", mix, jump)
    else:
        row = jump[:, 0]
    size = np.linalg.norm(jump, axis=(1, 2))
    level = np.linalg.norm(np.abs(before) + np.abs(after), axis=(1, 2))
    tiny = np.finfo(float).tiny
    return row / np.maximum(np.linalg.norm(row, axis=1, keepdims=True), tiny), size / np.maximum(level, tiny)

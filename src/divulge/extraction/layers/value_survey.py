"""A survey from values alone: kinks along each segment from scalar samples, and one gradient in each cell between them.

The kinks come from ``values/line_scan.py`` and the gradients, by finite differences, from ``values/cell_gradients.py``.
In activations of the first layer a gradient takes as many values as that layer has units, not as many as there are
inputs. The samples of the survey are the ends of cells, extrapolated from their middles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from divulge.extraction.layers.known_layers import Array
from divulge.extraction.layers.query_space import QuerySpace
from divulge.extraction.layers.survey import Batch, Survey, normals
from divulge.extraction.precision import Precision
from divulge.extraction.relu_network import NetworkEstimate
from divulge.extraction.values.cell_gradients import Cells, Gradients, Measurement, random_frame
from divulge.extraction.values.line_scan import Line, Scan, run_together, scan

STEP = 1e-5
"""Step of rough gradients, as a share of the coordinates: they only answer whether there is a kink."""
SMALLEST = 1e-7
"""Kinks closer to each other than this are not told apart."""
ON_SEGMENT, ON_LINE = 8, 24
"""Samples that a scan starts with."""
INSET = 1e-7
"""Samples lie so far inside their cells."""
FULL_WEIGHT = 1e-12
"""Relative error of a jump at which its kink counts fully."""
UNTRUSTED = 1e-6


class ValueSpace(QuerySpace):
    """Coordinates in which values are asked, and gradients are differences of values."""

    beside = 1e-4

    def __init__(
        self, ask: Callable[[Array], Array], inputs: int, rng: np.random.Generator,
        first: tuple[Array, Array] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(inputs, first)
        self._ask, self.rng = ask, rng
        self._precision: Precision | None = None

    def values(self, Y: Array) -> Array:
        """Values [n, k]."""
        return self._ask(self.to_inputs(Y))

    def maps(self, Y: Array) -> tuple[Array, Array]:
        """Values [n, k] and rough gradients [n, k, dim]."""
        step = STEP * np.median(np.abs(Y), axis=1)
        rows = Y[:, None] + step[:, None, None] * np.eye(self.dim)
        values = self.values(np.concatenate([Y, rows.reshape(-1, self.dim)]))
        base, rest = values[: len(Y)], values[len(Y) :].reshape(len(Y), self.dim, -1)
        return base, ((rest - base[:, None]) / step[:, None, None]).transpose(0, 2, 1)

    def precision(self) -> Precision:
        """The rounding of values, measured once on short straight stretches."""
        if self._precision is None:
            t = np.linspace(-1, 1, 9)
            found = []
            for y in self.points(8, self.rng):
                rows = y + 1e-12 * np.abs(y).mean() * t[:, None] * self.rng.normal(size=self.dim)
                values = self.values(rows)
                values = values - values.mean(axis=0)
                slope = (t @ values) / (t @ t)
                spread = (values - t[:, None] * slope).std(axis=0).max()
                found.append(1.2 * spread / np.linalg.norm(y) * np.sqrt(self.dim))
            size = float(np.max(found)) + 1e-17
            self._precision = Precision(torch.float64, size, size / np.sqrt(self.dim), 0.0, True, False)
        return self._precision


@dataclass(frozen=True)
class _Cut:
    """A segment cut into cells at its kinks."""

    line: Line
    scan: Scan
    edges: Array  # [c + 1] places of the ends and kinks

    @property
    def middles(self) -> Array:
        return np.asarray(0.5 * (self.edges[1:] + self.edges[:-1]))


class ValueSurvey(Survey):
    """Samples and kinks of segments, from values."""

    has_gradients = False

    def __init__(self, space: ValueSpace) -> None:
        super().__init__(space)
        self.values = space

    def add(self, begin: Array, end: Array, start: list[float], *, spread: float = 0.5) -> None:
        """Search segments begin + t (end - begin), or whole lines if ``start`` reaches beyond them."""
        long = (begin != end).any(axis=1)  # both ends may be drawn from the same points
        begin, end = begin[long], end[long]
        far = max(abs(t) for t in start)
        cuts = self._cut(begin, end - begin, far) if far > 1 else self._cut(0.5 * (begin + end), 0.5 * (end - begin), 1)
        space, precision = self.values, self.values.precision()
        frame = random_frame(space.dim, space.rng)
        works = [Measurement(self._cells(cut), frame=frame, precision=precision, rng=space.rng) for cut in cuts]
        gradients = run_together(space.values, [work.run() for work in works])
        for cut, work, gradient in zip(cuts, works, gradients, strict=True):
            self.append(_batch(cut, work.cells, gradient), 1)

    def kinks_on(self, origin: Array, direction: Array, far: float) -> Array:
        """Places t of the kinks on the line origin + t direction, without gradients: a handful of values for each."""
        cut = self._cut(origin[None], direction[None], far)[0]
        return np.array([kink.t for kink in cut.scan.kinks])

    def take_over(self, line: Line, estimate: NetworkEstimate, noise: float) -> None:
        """Add a line that was searched before, from a network of one hidden layer that is right all along it.

        ``noise`` is the standard error of that network's derivatives.
        """
        batch = _batch_of_network(line, estimate, noise)
        if batch is not None:
            self.append(batch, 1)

    def _cut(self, middle: Array, half: Array, far: float) -> list[_Cut]:
        space, lines = self.values, [Line(m, h) for m, h in zip(middle, half, strict=True)]
        noise = space.precision().noise
        searches = [
            scan(line, -far, far, noise=noise, smallest=lambda t: SMALLEST * (1 + abs(t)),
                 start=ON_LINE if far > 1 else ON_SEGMENT, rng=space.rng)
            for line in lines
        ]  # fmt: skip
        cuts = []
        for line, found in zip(lines, run_together(space.values, searches), strict=True):
            edges = np.array([-far, *[kink.t for kink in found.kinks], far])
            if far > 1 and len(edges) > 3:  # outer cells have no end
                edges[0], edges[-1] = 2 * edges[1] - edges[2] - 1, 2 * edges[-2] - edges[-3] + 1
            cuts.append(_Cut(line, found, edges))
        return cuts

    def _cells(self, cut: _Cut) -> Cells:
        length = float(np.linalg.norm(cut.line.direction))
        base = cut.line.at(cut.middles)
        return Cells(
            base=base, value=self.values.values(base), noise=self.values.precision().noise(base),
            slope=np.stack([piece.slope for piece in cut.scan.pieces]) / length,
            direction=cut.line.direction / length, room=np.maximum(0.5 * np.diff(cut.edges) * length, 1e-9),
        )  # fmt: skip


def _batch(cut: _Cut, cells: Cells, found: Gradients) -> Batch:
    """The ends of cells as samples, and the kinks between cells."""
    jacobian, edges, count = found.gradient, cut.edges, len(cells.base)
    gap = np.diff(edges)
    room = np.minimum(np.append(gap[0], gap), np.append(gap, gap[-1]))
    inset = np.minimum(INSET * (1 + np.abs(edges)), 0.1 * room)
    t = np.stack([edges[:-1] + inset[:-1], edges[1:] - inset[1:]], axis=1).reshape(-1)
    owner = np.repeat(np.arange(count), 2)
    Y = cut.line.at(t)
    value = cells.value[owner] + np.einsum("nkd,nd->nk", jacobian[owner], Y - cells.base[owner])
    left = np.arange(2 * count - 1)
    kinked = left % 2 == 1
    dim = Y.shape[1]
    kink, normal = np.zeros((len(left), dim)), np.zeros((len(left), dim))
    strength, weight = np.zeros(len(left)), np.zeros(len(left))
    normal[kinked], strength[kinked] = normals(jacobian[:-1], jacobian[1:])
    kink[kinked] = cut.line.at(_meeting_places(cut, cells, jacobian))
    size = np.maximum(np.linalg.norm(jacobian[1:] - jacobian[:-1], axis=(1, 2)), np.finfo(float).tiny)
    error = np.maximum(found.noise[:-1] + found.noise[1:], np.finfo(float).tiny) / size
    trusted = found.trusted[:-1] & found.trusted[1:]
    weight[kinked] = np.where(trusted, np.minimum(1.0, FULL_WEIGHT / error), UNTRUSTED)
    return Batch(
        Y=Y, value=value, gradient=jacobian[owner], left=left, right=left + 1, kinked=kinked, kink=kink, normal=normal,
        strength=strength, weight=weight, error=np.zeros(len(left)),
    )  # fmt: skip


def _batch_of_network(line: Line, estimate: NetworkEstimate, noise: float) -> Batch | None:
    """Samples beside the kinks of a line and the kinks, from the neurons of a network; None if it has none there."""
    A, b, W, P, _ = estimate.arrays()
    along = A @ line.direction
    keep = np.abs(along) > np.finfo(float).tiny
    A, b, W, along = A[keep], b[keep], W[:, keep], along[keep]
    if not len(b):
        return None
    t = -(A @ line.origin + b) / along
    order = np.argsort(t)
    A, W, t, along = A[order], W[:, order], t[order], along[order]
    gap = np.diff(t)
    room = np.minimum(np.append(np.inf, gap), np.append(gap, np.inf))
    inset = np.minimum(INSET * (1 + np.abs(t)), 0.1 * room)
    places = np.stack([t - inset, t + inset], axis=1).reshape(-1)
    cell = np.repeat(np.arange(len(t) + 1), 2)[1:-1]  # how many kinks lie to the left of each sample
    on = np.where(along > 0, np.arange(len(t)) < cell[:, None], np.arange(len(t)) >= cell[:, None])  # [n, h]
    jacobian = P + np.einsum("kh,nh,hd->nkd", W, on, A)
    Y = line.at(places)
    kinked = np.arange(len(places) - 1) % 2 == 0
    kink, normal = (np.zeros((len(kinked), Y.shape[1])) for _ in range(2))
    strength, weight = np.zeros(len(kinked)), np.zeros(len(kinked))
    kink[kinked], normal[kinked] = line.at(t), A / np.linalg.norm(A, axis=1, keepdims=True)
    size = np.linalg.norm(W, axis=0) * np.linalg.norm(A, axis=1)
    strength[kinked] = normals(jacobian[:-1:2], jacobian[1::2])[1]
    weight[kinked] = np.minimum(1.0, FULL_WEIGHT * size / max(2 * noise, np.finfo(float).tiny))
    left = np.arange(len(kinked))
    return Batch(
        Y=Y, value=estimate(Y), gradient=jacobian, left=left, right=left + 1, kinked=kinked, kink=kink, normal=normal,
        strength=strength, weight=weight, error=np.zeros(len(left)),
    )  # fmt: skip


def _meeting_places(cut: _Cut, cells: Cells, jacobian: Array) -> Array:
    """Where the affine maps of neighbouring cells meet on the line [c - 1], or the scan's kink if that is elsewhere."""
    jump = jacobian[1:] - jacobian[:-1]
    bend = jump @ cut.line.direction
    step = cells.base[1:] - cells.base[:-1]
    gap = cells.value[1:] - np.einsum("nkd,nd->nk", jacobian[1:], step) - cells.value[:-1]
    squared = np.maximum((bend * bend).sum(axis=1), np.finfo(float).tiny)
    meet = cut.middles[:-1] - (gap * bend).sum(axis=1) / squared
    seen = cut.edges[1:-1]
    good = (cut.edges[:-2] < meet) & (meet < cut.edges[2:]) & (np.abs(meet - seen) < 1e-4 * (1 + np.abs(meet)))
    return np.where(good, meet, seen)

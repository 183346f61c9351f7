"""A survey from values alone: kinks along each segment from scalar samples, and one gradient in each cell between them.

The kinks come from ``values/line_scan.py`` and the gradients, by finite differences, from ``values/cell_gradients.py``.
In activations of the first layer a gradient takes as many values as that layer has units, not as many as there are
inputs. The samples of the survey are the ends of cells, extrapolated from their middles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from divulge.extraction.layers.known_layers import Array
from divulge.extraction.layers.query_space import QuerySpace
from divulge.extraction.layers.survey import Batch, Survey, normals
from divulge.extraction.precision import Precision
from divulge.extraction.values.cell_gradients import Cells, Gradients, Measurement, random_frame
from divulge.extraction.values.line_scan import Line, Piece, run_together, scan
from divulge.extraction.values.search_state import SearchedLine

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
class CutLine:
    """A line or segment cut into cells at its kinks."""

    line: Line
    pieces: tuple[Piece, ...]  # [c]
    edges: Array  # [c + 1] places of the ends and kinks

    @property
    def kinks(self) -> Array:
        return self.edges[1:-1]

    @property
    def middles(self) -> Array:
        return np.asarray(0.5 * (self.edges[1:] + self.edges[:-1]))

    def around(self, kink: int) -> CutLine:
        """The two cells beside a kink."""
        return CutLine(self.line, self.pieces[kink : kink + 2], self.edges[kink : kink + 3])


class ValueSurvey(Survey):
    """Samples and kinks of segments, from values."""

    has_gradients = False

    def __init__(self, space: ValueSpace) -> None:
        super().__init__(space)
        self.values = space
        self._frame = random_frame(space.dim, space.rng)

    def add(self, begin: Array, end: Array, start: list[float], *, spread: float = 0.5) -> None:
        """Search segments begin + t (end - begin), or whole lines if ``start`` reaches beyond them."""
        long = (begin != end).any(axis=1)  # both ends may be drawn from the same points
        begin, end = begin[long], end[long]
        far = max(abs(t) for t in start)
        middle, half = (begin, end - begin) if far > 1 else (0.5 * (begin + end), 0.5 * (end - begin))
        for batch in self._measured(self.cut(middle, half, far if far > 1 else 1)):
            self.append(batch, 1)

    def add_around(self, cut: CutLine, kinks: Array) -> tuple[Array, Array, Array]:
        """Measure the cells beside some kinks of a line: their normals [m, dim], places [m, dim] and weights [m]."""
        batches = self._measured([cut.around(kink) for kink in kinks.tolist()])
        for batch in batches:
            self.append(batch, 0)
        normal, place, weight = zip(*((b.normal[1], b.kink[1], b.weight[1]) for b in batches), strict=True)
        return np.array(normal), np.array(place), np.array(weight)

    def take_over(self, searched: SearchedLine) -> None:
        """Add a line that was searched before; its narrow cells are measured where they are, as well as that goes."""
        pieces, t = searched.scan.pieces, searched.t
        if len(pieces) < 2:
            return
        kinks = np.array([kink.t for kink in searched.scan.kinks])
        cut = CutLine(searched.line, pieces, np.array([2 * t[0] - kinks[0], *kinks, 2 * t[-1] - kinks[-1]]))
        narrow = np.setdiff1d(np.arange(len(pieces)), searched.wide)
        cells, gradients = searched.cells, searched.gradients
        if len(narrow):
            some = self._cells(cut, narrow)
            (measured,) = run_together(self.values.values, [self._measurement(some).run()])
            order = np.argsort(np.concatenate([searched.wide, narrow]))

            def joined(one: Array, other: Array) -> Array:
                return np.concatenate([one, other])[order]

            cells = replace(cells, base=joined(cells.base, some.base), value=joined(cells.value, some.value))
            gradients = Gradients(
                joined(gradients.gradient, measured.gradient), joined(gradients.noise, measured.noise),
                joined(gradients.trusted, measured.trusted), None,
            )  # fmt: skip
        self.append(_batch(cut, cells, gradients), 1)

    def cut(self, middle: Array, half: Array, far: float) -> list[CutLine]:
        """The lines middle + t half with t up to ``far``, cut at their kinks: a handful of values for each kink."""
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
            cuts.append(CutLine(line, found.pieces, edges))
        return cuts

    def _measured(self, cuts: list[CutLine]) -> list[Batch]:
        """The samples and kinks of lines, with one gradient measured in each cell."""
        works = [self._measurement(self._cells(cut, np.arange(len(cut.pieces)))) for cut in cuts]
        gradients = run_together(self.values.values, [work.run() for work in works])
        return [_batch(cut, work.cells, g) for cut, work, g in zip(cuts, works, gradients, strict=True)]

    def _measurement(self, cells: Cells) -> Measurement:
        space = self.values
        return Measurement(cells, frame=self._frame, precision=space.precision(), rng=space.rng)

    def _cells(self, cut: CutLine, which: Array) -> Cells:
        length = float(np.linalg.norm(cut.line.direction))
        base = cut.line.at(cut.middles[which])
        return Cells(
            base=base, value=self.values.values(base), noise=self.values.precision().noise(base),
            slope=np.stack([cut.pieces[cell].slope for cell in which]) / length,
            direction=cut.line.direction / length,
            room=np.maximum(0.5 * np.diff(cut.edges)[which] * length, 1e-9),
        )  # fmt: skip


def _batch(cut: CutLine, cells: Cells, found: Gradients) -> Batch:
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


def _meeting_places(cut: CutLine, cells: Cells, jacobian: Array) -> Array:
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

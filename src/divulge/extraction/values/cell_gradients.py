"""The gradient of a piecewise linear function in many cells along a line, one value for each cell and direction.

The slope along the line is known from the search that found the cells, so d - 1 directions across it are left. They
are asked block by block for all cells at once. If the rows fill only a space of low rank (a first layer that depends on
few directions), a few cells are asked in full and the others follow from them. One more value a cell, in a random
direction, shows whether a step left its cell; the entries that did are found block by block and asked again closer by.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.linalg import qr

from divulge.core.errors import InvalidInput
from divulge.extraction.precision import Precision
from divulge.extraction.values.line_scan import CERTAIN, Array, Questions

SHARE = 0.03
"""Step, as a share of the distance to the nearest kink on the line: small enough that few steps leave the cell."""
SHRINK = 5.0
"""How much shorter a step is taken again that left its cell."""
ATTEMPTS = 9
EARLY = 8
"""After so many directions the steps are checked once, before the rest is asked with steps that are too long."""
CHUNK = 8_000_000
"""Most numbers in one request."""


@dataclass(frozen=True)
class Cells:
    """Where to measure: base points on the line, what is known there, and how far the nearest kink is."""

    base: Array  # [c, d]
    value: Array  # [c, k]
    noise: Array  # [c] standard error of those values
    slope: Array  # [c, k] derivative along the unit direction of the line
    direction: Array  # [d] of the line, unit length
    room: Array  # [c] distance to the nearest kink along the line
    slack: float = 0.0
    """Standard error of the gradient of what is subtracted as known."""
    wanted_error: float = 0.0
    """Standard error of a derivative that need not be beaten: steps are as short as that allows."""
    share: float = SHARE
    """First step, as a share of the room."""


@dataclass(frozen=True)
class Gradients:
    gradient: Array  # [c, k, d]
    noise: Array  # [c] standard error of the derivative in any one direction
    trusted: Array  # [c] False where the checks never came out right
    rank: int | None
    """Dimension of the space the gradients lie in, where it is small enough to have saved queries."""


def random_frame(d: int, rng: np.random.Generator) -> Array:
    """A random orthonormal basis [d, d]: no weight vector is large along only a few of its directions."""
    return np.linalg.qr(rng.normal(size=(d, d)))[0]


def basis_of(span: Any, inputs: int, scale: Array | None = None) -> Array | None:
    """Orthonormal rows [k, d] of a span, or None for the whole input space.

    ``scale`` [d] is that of the coordinates in which the rows are wanted, x = scale * u.
    """
    if span is None or (isinstance(span, str) and span == "auto"):
        return None
    if isinstance(span, str):
        raise InvalidInput(f'span is "auto", None, a result of divulge.span or a matrix of rows, not {span!r}.')
    rows = np.asarray(torch.as_tensor(getattr(span, "basis", span)).detach().cpu().to(torch.float64))
    if rows.ndim != 2 or rows.shape[1] != inputs or not len(rows) or not np.isfinite(rows).all():
        raise InvalidInput(f"A span is a matrix of rows with {inputs} columns each, or a result of divulge.span.")
    return np.linalg.qr((rows if scale is None else rows * scale).T)[0].T


def across(direction: Array, frame: Array) -> Array:
    """An orthonormal basis [d - 1, d] of what is orthogonal to a unit direction: the frame, mirrored to fit it."""
    mirror = frame[0] - direction
    length = float(mirror @ mirror)
    if length < 1e-24:
        return frame[1:]
    return frame[1:] - np.outer(frame[1:] @ mirror, 2.0 * mirror / length)


def _schedule(cells: int, directions: int) -> list[int]:
    """After how many directions to cell and look: at eight, for steps too long; later, for low rank."""
    marks = [EARLY] if directions > 2 * EARLY else []
    return [*marks, *range(2 * EARLY, min(directions - 2 * EARLY, cells - EARLY), EARLY), directions]


class Measurement:
    """The gradients of all cells of one line: derivatives ``g`` [c, k, m] across it, standard errors ``error`` [c, m].

    ``frame`` is an orthonormal basis of all inputs, or of those that the gradients are known to lie in. ``known`` is
    subtracted from the function. ``run`` asks; ``result`` may be read at any time, and what was not asked yet counts as
    zero in it.
    """

    def __init__(
        self,
        cells: Cells,
        *,
        frame: Array,
        precision: Precision,
        rng: np.random.Generator,
        known: Callable[[Array], Array] | None = None,
    ) -> None:
        self.cells, self.precision, self.known, self.rng = cells, precision, known, rng
        self.whole = len(frame) == cells.base.shape[1]
        self.basis = across(cells.direction, frame) if self.whole else frame
        c, k = cells.value.shape
        m = len(self.basis)
        self.sigma = np.hypot(precision.noise(cells.base), cells.noise)  # [c]
        self.step = np.repeat(self._first_steps()[:, None], m, axis=1)  # [c, m]
        self.g = np.zeros((c, k, m))
        self.error = self.sigma[:, None] / self.step  # [c, m]
        self.trusted = np.ones(c, dtype=bool)
        self.rank: int | None = None

    def _first_steps(self) -> Array:
        """As long as the room allows, or as short as the precision allows: a short step seldom leaves its cell."""
        longest = self.cells.share * self.cells.room
        if not self.cells.wanted_error:
            return longest
        return np.clip(self.sigma / self.cells.wanted_error, 0.1 * longest, longest)

    def run(self) -> Questions[Gradients]:
        """Ask all directions in all cells, or fewer where the rank is low."""
        c, m = len(self.cells.base), len(self.basis)
        everywhere = np.arange(c)
        done = checked = 0
        for upto in _schedule(c, m):
            yield from self.ask(everywhere, np.arange(done, upto))
            done = upto
            if upto in (EARLY, m) or self.rank_at(upto) <= upto - 4:  # low rank is accepted only from clean rows
                yield from self.verify(everywhere, np.arange(checked, upto))
                checked = upto
            rank = self.rank_at(upto) if EARLY < upto < m else m
            if rank <= upto - 4 and rank + 8 < c:
                yield from self._from_pivots(rank, upto)
                break
        return self.result()

    def _from_pivots(self, rank: int, upto: int) -> Questions[None]:
        """Ask the rest of the directions in few cells, and fill them in for the others."""
        self.rank = rank
        pivots = self.pivots(rank, upto)
        rest = np.arange(upto, len(self.basis))
        yield from self.ask(pivots, rest)
        yield from self.verify(pivots, rest)
        self.complete(pivots, upto)
        yield from self.verify(np.setdiff1d(np.arange(len(self.cells.base)), pivots), rest)

    def result(self) -> Gradients:
        c, m = len(self.cells.base), len(self.basis)
        full = self.g @ self.basis
        if self.whole:
            full += self.cells.slope[:, :, None] * self.cells.direction
        noise = np.sqrt(np.mean(self.error**2, axis=1)) if m else np.zeros(c)
        return Gradients(full, noise, self.trusted, self.rank)

    def _changes(self, which: Array, moves: Array) -> Questions[Array]:
        """Change of the function from the base of cells ``which`` [n] along ``moves`` [n, d] (as far as rounded)."""
        changes = []
        rows_at_once = max(1, CHUNK // moves.shape[1])
        for start in range(0, len(which), rows_at_once):
            part = slice(start, start + rows_at_once)
            rows = self.precision.store(self.cells.base[which[part]] + moves[part])
            values = yield rows
            if self.known is not None:
                values = values - self.known(rows)
            changes.append(values - self.cells.value[which[part]])
        return np.concatenate(changes)

    def ask(self, cells: Array, directions: Array) -> Questions[None]:
        """Measure these directions in these cells with their present steps."""
        if not len(cells) or not len(directions):
            return
        pairs = np.stack(np.meshgrid(cells, directions, indexing="ij"), axis=-1).reshape(-1, 2)
        yield from self.ask_pairs(pairs[:, 0], pairs[:, 1])

    def ask_pairs(self, cells: Array, directions: Array) -> Questions[None]:
        rows_at_once = max(1, CHUNK // self.basis.shape[1])
        for start in range(0, len(cells), rows_at_once):
            which, way = cells[start : start + rows_at_once], directions[start : start + rows_at_once]
            step = self.step[which, way]
            changes = yield from self._changes(which, step[:, None] * self.basis[way])
            self.g[which, :, way] = changes / step[:, None]
            self.error[which, way] = self.sigma[which] / step

    def rank_at(self, upto: int) -> int:
        """Rank of the gradients in the first ``upto`` directions, as far as it stands out of the noise."""
        rows, _ = self._whitened(upto)
        singular = np.linalg.svd(rows, compute_uv=False)
        return int((singular > 4.0 * (np.sqrt(len(rows)) + np.sqrt(upto))).sum())

    def pivots(self, rank: int, upto: int) -> Array:
        """Few cells whose gradients span those of all."""
        rows, owner = self._whitened(upto)
        order = qr(rows.T, pivoting=True, mode="r")[1]
        return np.array(list(dict.fromkeys(owner[order[:rank]])))

    def _whitened(self, upto: int) -> tuple[Array, Array]:
        """The gradients of trusted cells in units of their largest errors [n, upto], and which cell each is of."""
        trusted = np.flatnonzero(self.trusted)
        scaled = self.g[trusted, :, :upto] / self.error[trusted, :upto].max(axis=1)[:, None, None]
        return scaled.reshape(-1, upto), np.repeat(trusted, self.g.shape[1])

    def complete(self, pivots: Array, upto: int) -> None:
        """Fill the directions that only the pivots were asked for, from the pivots."""
        c, k, m = self.g.shape
        source = self.g[pivots].reshape(-1, m) / np.repeat(self.error[pivots, :upto].max(axis=1), k)[:, None]
        others = np.setdiff1d(np.arange(c), pivots)
        left, values, right = np.linalg.svd(source[:, :upto], full_matrices=False)
        keep = values > 4.0 * (np.sqrt(len(source)) + np.sqrt(upto))
        inverse = (right[keep].T / values[keep]) @ left[:, keep].T  # [upto, pivots]
        mix = self.g[others].reshape(-1, m)[:, :upto] @ inverse
        self.g[others, :, upto:] = (mix @ source[:, upto:]).reshape(len(others), k, m - upto)
        self.error[others, upto:] = np.linalg.norm(mix, axis=1).reshape(len(others), k).max(axis=1)[:, None]

    def verify(self, cells: Array, directions: Array) -> Questions[None]:
        """Check every cell in a random direction; measure again, closer, what left its cell."""
        if not len(directions):
            return
        among = np.zeros(self.g.shape[2], dtype=bool)
        among[directions] = True
        for _ in range(ATTEMPTS):
            failed = yield from self._failed(cells, np.repeat(among[None], len(cells), axis=0))
            cells = cells[failed]
            if not len(cells):
                return
            yield from self._mend(cells, directions)
        self.trusted[cells] = False

    def _failed(self, cells: Array, among: Array) -> Questions[Array]:
        """Where a random combination of the directions ``among`` [n, m] does not change the values as predicted."""
        mix = self.rng.normal(size=among.shape) * among  # not signs alone: equal errors of two entries would cancel
        mix /= np.linalg.norm(mix, axis=1)[:, None]
        smallest = np.where(among, self.step[cells], np.inf).min(axis=1)
        weights = mix * smallest[:, None]  # [n, m]
        changes = yield from self._changes(cells, weights @ self.basis)
        predicted = np.einsum("nkm,nm->nk", self.g[cells], weights)
        spread = np.sqrt(
            (weights**2 * self.error[cells] ** 2).sum(axis=1)
            + self.sigma[cells] ** 2
            + (self.cells.slack * smallest) ** 2
        )
        return np.asarray(np.abs(changes - predicted).max(axis=1) > CERTAIN * spread)

    def _mend(self, cells: Array, directions: Array) -> Questions[None]:
        """Find the blocks of directions whose steps left the cell, and ask those again with a quarter of the step."""
        m = self.g.shape[2]
        blocks = np.array_split(directions, max(1, int(np.sqrt(len(directions)))))
        if len(directions) <= EARLY:
            blocks = [directions]
            failed = np.ones(len(cells), dtype=bool)
        among = np.zeros((len(cells) * len(blocks), m), dtype=bool)
        for number in range(len(cells)):
            for index, block in enumerate(blocks):
                among[number * len(blocks) + index, block] = True
        owner = np.repeat(cells, len(blocks))
        if len(blocks) > 1:
            failed = yield from self._failed(owner, among)
        which, way = np.nonzero(among & failed[:, None])
        if not len(which):
            return
        later = np.arange(m) > directions[-1]
        for cell in np.unique(owner[which]):
            self.step[cell, later] /= SHRINK
        self.step[owner[which], way] /= SHRINK
        yield from self.ask_pairs(owner[which], way)

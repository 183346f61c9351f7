"""Points that nothing was fitted to, the target's answers there, and how wrong a draft is on them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from divulge.extraction.draft import Draft
from divulge.extraction.lines import Array

TYPICAL, FARTHER = 24, 8
"""Points of one round: typical inputs, and inputs ten times as far out for neurons that switch there."""
FEWEST_CHECKS = TYPICAL + FARTHER
AROUND = 8
"""Points among neurons that a further line found."""
PARALLEL = 0.999
NOISE = 1e3
"""Deviations up to so many times the precision of the answers are all there is of a constant."""


class Fresh:
    """``ask`` answers rows of all ``inputs``; drafts are functions of the rows' coordinates in ``basis`` [k, d]."""

    def __init__(
        self, ask: Callable[[Array], Array], inputs: int, eps: float, basis: Array | None, rng: np.random.Generator
    ) -> None:
        self.ask, self.inputs, self.eps, self.basis, self.rng = ask, inputs, eps, basis, rng
        self.renew()

    def renew(self) -> None:
        """Other points instead, for a draft that was fitted with the present ones in sight."""
        d = self.inputs
        rows = np.concatenate([self.rng.normal(size=(TYPICAL, d)), 10.0 * self.rng.normal(size=(FARTHER, d))])
        self.truth, self.rows = self.ask(rows), rows  # together, or not at all where the budget ends
        spread = float(self.typical.std(axis=0).max())
        rounding = NOISE * self.eps * float(np.abs(self.truth).max())
        self.scale = spread if spread > rounding else max(float(np.abs(self.truth).max()), 1.0)

    @property
    def typical(self) -> Array:
        """Answers at the typical inputs."""
        return self.truth[:TYPICAL]

    def add(self, rows: Array) -> None:
        self.truth = np.concatenate([self.truth, self.ask(rows)])
        self.rows = np.concatenate([self.rows, rows])

    def look_around(self, point: Array, draft: Draft, found: int) -> None:
        """Points between the ``found`` hyperplanes last added: a bump that was met must be right all over."""
        A, b = draft.A[-found:], draft.b[-found:]
        normal = A[0]
        depth = -(b * np.sign(A @ normal))[np.abs(A @ normal) > PARALLEL]
        rows = point + self.rng.normal(size=(AROUND, len(point)))
        rows += (self.rng.uniform(depth.min(), depth.max(), AROUND) - rows @ normal)[:, None] * normal
        self.add(rows if self.basis is None else rows @ self.basis)

    def error(self, draft: Draft) -> float:
        """Largest absolute difference."""
        return float(self._gaps(draft).max())

    def wrong(self, draft: Draft, allowed: float) -> Array:
        """One of the points where the draft is most wrong, by more than ``allowed``."""
        gaps = self._gaps(draft)
        return np.asarray(self.rows[self.rng.choice(np.flatnonzero(gaps > max(allowed, 0.1 * gaps.max())))])

    def _gaps(self, draft: Draft) -> Array:
        """Absolute differences; those of far points count in proportion to their distance."""
        rows = self.rows if self.basis is None else self.rows @ self.basis.T
        size = np.linalg.norm(self.rows, axis=1) / np.sqrt(self.inputs)
        return np.asarray(np.abs(draft(rows) - self.truth).max(axis=1) / np.maximum(1.0, size))

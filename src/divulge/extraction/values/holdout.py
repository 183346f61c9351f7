"""Hold-out points: rows that no fit used, the target's answers there, and how wrong an estimate is on them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from divulge.extraction.relu_network import NetworkEstimate
from divulge.extraction.values.line_scan import Array

TYPICAL, FARTHER = 24, 8
"""Points of one draw: typical inputs, and inputs ten times as far out for neurons that switch there."""
FEWEST_CHECKS = TYPICAL + FARTHER
BETWEEN = 8
"""Points between hyperplanes that a further line found."""
PARALLEL = 0.999
NOISE = 1e3
"""Deviations up to so many times the precision of the answers are those of a constant."""


class HoldOut:
    """Rows of all inputs with their answers; estimates are functions of the rows' coordinates in ``basis`` [k, d]."""

    def __init__(
        self,
        ask: Callable[[Array], Array],
        inputs: int,
        eps: float,
        basis: Array | None,
        rng: np.random.Generator,
        *,
        farther: float = 10.0,
    ) -> None:
        self.ask, self.inputs, self.eps, self.basis, self.rng, self.farther = ask, inputs, eps, basis, rng, farther
        self.rows, self.truth = np.empty((0, inputs)), np.empty((0, 0))
        self.scale = 1.0

    def redraw(self) -> None:
        """Other points, for an estimate that was fitted with the present ones known."""
        d = self.inputs
        rows = np.concatenate([self.rng.normal(size=(TYPICAL, d)), self.farther * self.rng.normal(size=(FARTHER, d))])
        self.truth, self.rows = self.ask(rows), rows  # together, or neither where the budget ends
        spread = float(self.typical.std(axis=0).max())
        rounding = NOISE * self.eps * float(np.abs(self.truth).max())
        self.scale = spread if spread > rounding else max(float(np.abs(self.truth).max()), 1.0)

    @property
    def typical(self) -> Array:
        """Answers at the typical inputs."""
        return self.truth[:TYPICAL]

    def add(self, rows: Array, truth: Array | None = None) -> None:
        """More points, with their answers where these are known."""
        self.truth = np.concatenate([self.truth, self.ask(rows) if truth is None else truth])
        self.rows = np.concatenate([self.rows, rows])

    def add_between(self, point: Array, estimate: NetworkEstimate, found: int) -> None:
        """Points between the ``found`` hyperplanes added last: a bump that was met must be right everywhere."""
        A, b = estimate.A[-found:].numpy(), estimate.b[-found:].numpy()
        normal = A[0]
        depth = -(b * np.sign(A @ normal))[np.abs(A @ normal) > PARALLEL]
        if not len(depth):
            return
        rows = point + self.rng.normal(size=(BETWEEN, len(point)))
        rows += (self.rng.uniform(depth.min(), depth.max(), BETWEEN) - rows @ normal)[:, None] * normal
        self.add(rows if self.basis is None else rows @ self.basis)

    def error(self, estimate: NetworkEstimate) -> float:
        """Largest absolute difference."""
        return float(self._differences(estimate).max())

    def worst_point(self, estimate: NetworkEstimate, allowed: float) -> Array:
        """One of the points where the estimate is most wrong, by more than ``allowed``."""
        off = self._differences(estimate)
        return np.asarray(self.rows[self.rng.choice(np.flatnonzero(off > max(allowed, 0.1 * off.max())))])

    def _differences(self, estimate: NetworkEstimate) -> Array:
        """Absolute differences; those of far points count in proportion to their distance."""
        rows = self.rows if self.basis is None else self.rows @ self.basis.T
        size = np.linalg.norm(self.rows, axis=1) / np.sqrt(self.inputs)
        return np.asarray(np.abs(estimate(rows) - self.truth).max(axis=1) / np.maximum(1.0, size))

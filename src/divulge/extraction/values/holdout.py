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


Precise = Callable[[Array], Array]  # from answers [n, k] to whether each is precise [n]
ROUNDS = 6
"""Draws, at most, for as many rows with precise answers as are wanted."""


def drawn_precisely(
    ask: Callable[[Array], Array], precise: Precise, rng: np.random.Generator, shape: tuple[int, int]
) -> tuple[Array, Array]:
    """Typical rows with precise answers, and the answers: as many as wanted, or fewer where most are not precise."""
    rows, values = [], []
    wanted = shape[0]
    for number in range(ROUNDS):
        if number and not wanted:
            break
        drawn = rng.normal(size=(2 * wanted, shape[1]))
        answers = ask(drawn)
        keep = np.flatnonzero(precise(answers))[:wanted]
        rows.append(drawn[keep])
        values.append(answers[keep])
        wanted -= len(keep)
    return np.concatenate(rows), np.concatenate(values)


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
        precise: Precise | None = None,
    ) -> None:
        self.precise = precise
        self.ask, self.inputs, self.eps, self.basis, self.rng, self.farther = ask, inputs, eps, basis, rng, farther
        self.rows, self.truth = np.empty((0, inputs)), np.empty((0, 0))
        self.scale, self.count = 1.0, TYPICAL

    def redraw(self) -> None:
        """Other points, for an estimate that was fitted with the present ones known."""
        d = self.inputs
        rows = np.concatenate([self.rng.normal(size=(TYPICAL, d)), self.farther * self.rng.normal(size=(FARTHER, d))])
        truth = self.ask(rows)
        count = TYPICAL
        if self.precise is not None:
            keep = self.precise(truth)
            rows, truth, count = rows[keep], truth[keep], int(keep[:TYPICAL].sum())
            if count < TYPICAL:
                more, answers = drawn_precisely(self.ask, self.precise, self.rng, (TYPICAL - count, d))
                rows, truth = np.concatenate([more, rows]), np.concatenate([answers, truth])
                count += len(more)
        self.start(rows, truth, count)  # together, or neither where the budget ends

    def start(self, rows: Array, truth: Array, typical: int) -> None:
        """These points, of which the first are typical inputs, in place of the present ones."""
        self.rows, self.truth, self.count = rows, truth, typical
        spread = float(self.typical.std(axis=0).max()) if typical else 0.0
        largest = float(np.abs(self.truth).max(initial=0.0))
        self.scale = spread if spread > NOISE * self.eps * largest else max(largest, 1.0)

    @property
    def typical(self) -> Array:
        """Answers at the typical inputs."""
        return self.truth[: self.count]

    def add(self, rows: Array, truth: Array | None = None) -> None:
        """More points, with their answers where these are known."""
        truth = self.ask(rows) if truth is None else truth
        if self.precise is not None:
            keep = self.precise(truth)
            rows, truth = rows[keep], truth[keep]
        self.truth = np.concatenate([self.truth, truth])
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
        return float(self._differences(estimate).max(initial=0.0))

    def worst_point(self, estimate: NetworkEstimate, allowed: float) -> Array:
        """One of the points where the estimate is most wrong, by more than ``allowed``."""
        off = self._differences(estimate)
        return np.asarray(self.rows[self.rng.choice(np.flatnonzero(off > max(allowed, 0.1 * off.max())))])

    def _differences(self, estimate: NetworkEstimate) -> Array:
        """Absolute differences; those of far points count in proportion to their distance."""
        rows = self.rows if self.basis is None else self.rows @ self.basis.T
        size = np.linalg.norm(self.rows, axis=1) / np.sqrt(self.inputs)
        return np.asarray(np.abs(estimate(rows) - self.truth).max(axis=1) / np.maximum(1.0, size))

"""Asking for steps: which answers are equal, and where along one column an answer changes, by bisection."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from divulge.extraction.trees.domain import Array, Domain
from divulge.oracles.base import Oracle

ROWS_AT_ONCE = 8192
ROUNDING = 64.0
"""Answers that differ by no more than so many rounding errors are one: threads add up trees in any order."""
TRIED = 2
"""Thresholds that lie between two float32 numbers, and nowhere else, before rows are taken to be rounded to these."""


@dataclass(frozen=True)
class Step:
    """A jump: up to ``threshold`` in column ``feature`` the answer is one, above it is another."""

    feature: int
    threshold: float
    below: Array
    """The row just below it [d]."""
    above: Array
    """The row just above it, in that column alone."""


class Asker:
    """Answers of a target on a domain; the domain turns to float32 once thresholds show that the target does."""

    def __init__(self, oracle: Oracle, domain: Domain) -> None:
        self.oracle, self.domain = oracle, domain
        self.size = 0.0
        self.asked: list[tuple[Array, Array]] = []
        """Every row that was asked, and its answer."""
        self._seen: list[bool] = []

    def value(self, X: Array) -> Array:
        """The answers [n, k]."""
        if len(X) == 0:
            return np.zeros((0, self.oracle.output_dim))
        parts = [self.oracle.value(torch.from_numpy(part)) for part in np.array_split(X, -(-len(X) // ROWS_AT_ONCE))]
        answers = torch.cat(parts).to("cpu", torch.float64).numpy()
        self.size = max(self.size, float(np.abs(answers).max()))
        self.asked.append((np.array(X), answers.copy()))  # the caller may write into its own
        return np.asarray(answers)

    @property
    def tolerance(self) -> float:
        """Up to this difference two answers are equal."""
        return ROUNDING * self.oracle.eps * self.size

    def differ(self, a: Array, b: Array) -> NDArray[np.bool_]:
        """Which rows of answers differ [n]."""
        return np.asarray((np.abs(a - b) > self.tolerance).any(axis=1))

    # -- from two rows that differ to the step between them -----------------------------------------------------------

    def steps(
        self, known: Array, other: Array, answers: Array, order: NDArray[np.int64]
    ) -> list[tuple[Step, Array, Array]]:
        """A step on a path from each known row, with its answer, to another one that is answered otherwise.

        Columns are exchanged one after another in this order: a binary search finds one whose exchange changes the
        answer. Returns the step and the answers below and above it.
        """
        n, d = known.shape
        first, end = np.zeros(n, dtype=int), np.full(n, d)  # columns exchanged: same answer, another answer
        place = np.argsort(order)
        while (open_ := end - first > 1).any():
            half = (first + end) // 2
            rows = np.where(place < half[:, None], other, known)
            moved = np.zeros(n, dtype=bool)
            moved[open_] = self.differ(self.value(rows[open_]), answers[open_])
            end, first = np.where(open_ & moved, half, end), np.where(open_ & ~moved, half, first)
        same, changed = (np.where(place < count[:, None], other, known) for count in (first, end))
        return self.bisected(same, changed, order[first], answers)

    def bisected(
        self, same: Array, changed: Array, j: NDArray[np.int64], answers: Array
    ) -> list[tuple[Step, Array, Array]]:
        """The step between rows that differ in the columns j alone, nearest to ``same`` by bisection."""
        same, changed = same.copy(), changed.copy()
        every = np.arange(len(same))
        there = self.value(changed)
        open_ = np.ones(len(same), dtype=bool)
        while True:
            middle, done = self.domain.middle(j, same[every, j], changed[every, j])
            open_ &= ~done
            if not open_.any():
                break
            rows = same.copy()
            rows[every, j] = middle
            said = self.value(rows[open_])
            moved = self.differ(said, answers[open_])
            at = every[open_]
            changed[at[moved], j[at[moved]]] = middle[at[moved]]
            there[at[moved]] = said[moved]
            same[at[~moved], j[at[~moved]]] = middle[at[~moved]]
        return [self._step(same[i], changed[i], int(j[i]), answers[i], there[i]) for i in every]

    def _step(self, same: Array, changed: Array, j: int, here: Array, there: Array) -> tuple[Step, Array, Array]:
        up = bool(changed[j] > same[j])
        low, high = (same, changed) if up else (changed, same)
        threshold = 0.0 if low[j] < 0 < high[j] else float(low[j])
        self._note(j, float(low[j]), float(high[j]))
        return Step(j, threshold, low, high), *((here, there) if up else (there, here))

    def _note(self, j: int, low: float, high: float) -> None:
        """Whether the first thresholds lie between float32 numbers: then rows are rounded to these."""
        if self.domain.single or self.domain.whole[j] or len(self._seen) >= TRIED:
            return
        self._seen.append(bool(np.float32(low) != np.float32(high)))
        if len(self._seen) == TRIED and all(self._seen):
            self.domain = self.domain.in_single()

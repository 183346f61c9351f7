"""A sum of small trees from values: boosted trees and forests of few columns a tree.

A sum of trees that each look at up to q columns is a sum of tables over up to q columns each. Its thresholds are found
column by column: along lines through many rows every step is bisected. Which columns act together shows in mixed
differences: f(a, b) - f(a, b') - f(a', b) + f(a', b') is zero wherever no table holds both columns. Every table is then
read off one base row, cell by cell, and the parts are separated by inclusion and exclusion. Tramèr et al. 2016 stop at
single trees; the tables are ours.

The number of cells grows with the power q of the thresholds in a column, which bounds what this reaches.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from numpy.typing import NDArray

from divulge.core.progress import report
from divulge.extraction.trees.domain import Array
from divulge.extraction.trees.steps import Asker
from divulge.models.step_functions import StepTables

Columns = tuple[int, ...]
Pair = tuple[int, Array, Array, Array, Array]
"""A column, a row and its answer, and another row that differs in this column, with its answer."""
GRID = 24
"""Numbers along a line, beside the thresholds that are known."""
LINES, QUIET = 60, 6
"""Lines along each column at most; they end when so many in a row show no new step."""
DIFFERENCES = 24
"""Mixed differences that show whether columns act together."""
MOST_TOGETHER = 4
"""Columns in a table, at most."""
LOOSE = 16.0
"""A mixed difference counts from so many tolerances: it adds up to sixteen answers."""


class NotATable(Exception):
    """The function is no sum of tables that can be read; the message says why."""


class Tables:
    """Finds thresholds and tables of a function; behind a ``link`` the logits of its answers add up."""

    def __init__(self, asker: Asker, *, cells: int, rng: np.random.Generator, link: str = "") -> None:
        self.asker, self.most, self.rng, self.link = asker, cells, rng, link
        self.below: list[list[float]] = []
        self.above: list[list[float]] = []

    def build(self) -> StepTables:
        """The model, or NotATable."""
        self._find_thresholds()
        family, top = self._family()
        cells = sum(math.prod(len(self.below[j]) + 1 for j in columns) for columns in top)
        if cells > self.most:
            raise NotATable(f"its tables have {cells:,} cells, more than the {self.most:,} that were allowed")
        return self._model(family, top)

    def _f(self, X: Array) -> Array:
        y = self.asker.value(X)
        if not self.link:
            return y
        if (y <= 0).any() or (y >= 1).any():
            raise NotATable("its probabilities reach 0 or 1, which hides their logits")
        logs = np.log(y)
        return np.asarray(logs - (np.log1p(-y) if self.link == "logistic" else logs.mean(axis=1, keepdims=True)))

    # -- thresholds ---------------------------------------------------------------------------------------------------

    def _find_thresholds(self) -> None:
        d = len(self.asker.domain.low)
        known: list[dict[float, float]] = [{} for _ in range(d)]
        quiet = np.zeros(d, dtype=int)
        for line in range(LINES):
            columns = np.flatnonzero(quiet < QUIET)
            if len(columns) == 0:
                break
            base = self.asker.domain.typical(1, self.rng) if line % 2 else self.asker.domain.draw(1, self.rng)
            found = self._on_lines(base[0], columns, known)
            quiet[columns] = np.where(found, 0, quiet[columns] + 1)
            total = sum(map(len, known))
            report("finding thresholds", line, LINES, thresholds=total, rows=self.asker.oracle.ledger.total)
            if 4 * total > self.most:
                raise NotATable(f"it has more than {total:,} thresholds")
        self.below = [sorted(one) for one in known]
        self.above = [[one[below] for below in sorted(one)] for one in known]

    def _on_lines(self, base: Array, columns: NDArray[np.int64], known: list[dict[float, float]]) -> list[bool]:
        """Look for new steps along lines through one row; which columns had any."""
        numbers = [self._numbers(int(j), known[j]) for j in columns]
        rows = [np.repeat(base[None], len(part), axis=0) for part in numbers]
        for j, part, several in zip(columns, numbers, rows, strict=True):
            several[:, j] = part
        ends = np.cumsum([len(part) for part in numbers])[:-1]
        answers = np.split(self.asker.value(np.concatenate(rows)), ends)
        pairs: list[Pair] = []
        for j, several, y in zip(columns, rows, answers, strict=True):
            pairs += [
                (int(j), several[i], y[i], several[i + 1], y[i + 1])
                for i in np.flatnonzero(self.asker.differ(y[1:], y[:-1]))
                if known[j].get(float(several[i, j])) != float(several[i + 1, j])
            ]
        new = {pair[0] for pair in pairs}
        while pairs:
            pairs = self._bisected(pairs, known)
        return [int(j) in new for j in columns]

    def _numbers(self, j: int, known: dict[float, float]) -> Array:
        """Numbers along a line: a grid, and both sides of every known threshold."""
        domain = self.asker.domain
        low, high = domain.low[j], domain.high[j]
        if domain.whole[j] and high - low <= GRID:
            return np.arange(low, high + 1)
        grid = np.concatenate([[low, high], self.rng.uniform(low, high, GRID)])
        if domain.rows is not None:
            grid = np.concatenate([grid, self.rng.choice(domain.rows[:, j], GRID)])
        whole = np.zeros((len(grid), len(domain.low)))
        whole[:, j] = grid
        return np.unique(np.concatenate([domain.rounded(whole)[:, j], list(known), list(known.values())]))

    def _bisected(self, pairs: list[Pair], known: list[dict[float, float]]) -> list[Pair]:
        """Bisect each pair; what is left of it beyond the step where several steps lie in it."""
        same, changed = np.stack([pair[1] for pair in pairs]), np.stack([pair[3] for pair in pairs])
        j = np.array([pair[0] for pair in pairs])
        found = self.asker.bisected(same, changed, j, np.stack([pair[2] for pair in pairs]))
        left = []
        for (column, _, _, end, last), (step, _, beyond) in zip(pairs, found, strict=True):
            known[column][float(step.below[column])] = float(step.above[column])
            if self.asker.differ(beyond[None], last[None])[0]:
                left.append((column, step.above, beyond, end, last))
        return left

    # -- which columns act together -----------------------------------------------------------------------------------

    def _family(self) -> tuple[list[Columns], list[Columns]]:
        """The sets of columns that act together, all and the largest ones."""
        stepped = [j for j, below in enumerate(self.below) if below]
        if not stepped:
            raise NotATable("it has no thresholds in the domain")
        family: list[Columns] = [(), *((j,) for j in stepped)]
        level: list[Columns] = [(j,) for j in stepped]
        while level:
            size = len(level[0]) + 1
            have = set(level)
            wider = sorted({tuple(sorted({*one, j})) for one in level for j in stepped if j not in one})
            wider = [one for one in wider if all(part in have for part in itertools.combinations(one, size - 1))]
            if not wider:
                break
            rows = len(wider) * DIFFERENCES * 2**size
            if rows > 10 * self.most:
                raise NotATable(f"{rows:,} rows are needed to find which columns act together")
            level = self._acting(wider)
            if level and size > MOST_TOGETHER:
                raise NotATable(f"more than {MOST_TOGETHER} columns act together")
            family += level
        top = [one for one in family if one and not any(set(one) < set(other) for other in family)]
        return family, top

    def _acting(self, sets: list[Columns]) -> list[Columns]:
        """The sets of columns whose mixed differences are not all zero."""
        rows, size = [], len(sets[0])
        corners = list(itertools.product((0, 1), repeat=size))
        for columns in sets:
            base = self._representatives(self.asker.domain.typical(DIFFERENCES, self.rng))
            two = [[self._cell_numbers(j, DIFFERENCES) for j in columns] for _ in (0, 1)]
            for corner in corners:
                several = base.copy()
                for place, (j, side) in enumerate(zip(columns, corner, strict=True)):
                    several[:, j] = two[side][place]
                rows.append(several)
        y = self._f(np.concatenate(rows)).reshape(len(sets), len(corners), DIFFERENCES, -1)
        signs = np.array([(-1) ** sum(corner) for corner in corners])
        mixed = np.abs(np.einsum("c,scno->sno", signs, y)).max(axis=(1, 2))
        return [columns for columns, size_ in zip(sets, mixed, strict=True) if size_ > LOOSE * self._tolerance(y)]

    def _tolerance(self, y: Array) -> float:
        if not self.link:
            return self.asker.tolerance
        return 1e3 * self.asker.oracle.eps * float(np.exp(np.abs(y).max())) + self.asker.tolerance

    def _cells(self, j: int) -> tuple[Array, Array]:
        """First and last number of every cell of a column, inside the domain."""
        domain = self.asker.domain
        return np.array([domain.low[j], *self.above[j]]), np.array([*self.below[j], domain.high[j]])

    def _middles(self, j: int) -> Array:
        """One number in every cell of a column."""
        start, end = self._cells(j)
        whole = np.zeros((len(start), len(self.below)))
        whole[:, j] = start + (end - start) / 2
        return np.clip(self.asker.domain.rounded(whole)[:, j], start, end)

    def _cell_numbers(self, j: int, n: int) -> Array:
        middles = self._middles(j)
        return middles[self.rng.integers(len(middles), size=n)]

    def _representatives(self, X: Array) -> Array:
        """Rows in random cells for half of their columns, where steps lie close together."""
        out = X.copy()
        for j, below in enumerate(self.below):
            if below:
                moved = self.rng.random(len(X)) < 0.5
                out[moved, j] = self._cell_numbers(j, int(moved.sum()))
        return out

    def beside(self, n: int, rng: np.random.Generator) -> Array:
        """Rows [n, d] of the domain, half of them like the data, moved beside a threshold in one column."""
        half = n // 2
        X = np.concatenate([self.asker.domain.draw(n - half, rng), self.asker.domain.typical(half, rng)])
        every = [(j, number) for sides in (self.below, self.above) for j, one in enumerate(sides) for number in one]
        for i, chosen in enumerate(rng.integers(len(every), size=n)):
            X[i, every[chosen][0]] = every[chosen][1]
        return X

    # -- the tables ---------------------------------------------------------------------------------------------------

    def _model(self, family: list[Columns], top: list[Columns]) -> StepTables:
        base = self._representatives(self.asker.domain.typical(1, self.rng))[0]
        at = [int(np.searchsorted(below, base[j])) for j, below in enumerate(self.below)]
        read = {columns: self._read(base, columns) for columns in top}
        k = next(iter(read.values())).shape[-1]
        domain = self.asker.domain
        model = StepTables(len(base), k, [len(one) for one in self.below], family, single=domain.single, link=self.link)
        model.thresholds[:] = torch.tensor([t for one in self.below for t in one], dtype=torch.float64)
        for number, columns in enumerate(family):
            over = next(one for one in top if set(columns) <= set(one))
            part = torch.from_numpy(_interaction(read[over], over, columns, at))
            getattr(model, f"table_{number}")[:] = part.reshape(-1, k)
        return model

    def _read(self, base: Array, columns: Columns) -> Array:
        """The answers in every cell of these columns, the others as in the base row."""
        middles = [self._middles(j) for j in columns]
        grid = np.stack(np.meshgrid(*middles, indexing="ij"), axis=-1)
        rows = np.repeat(base[None], grid[..., 0].size, axis=0)
        rows[:, list(columns)] = grid.reshape(-1, len(columns))
        report("reading tables", 0, 1, cells=len(rows))
        return self._f(rows).reshape(*grid.shape[:-1], -1)


def _interaction(table: Array, over: Columns, columns: Columns, at: list[int]) -> Array:
    """What a set of columns adds beyond its parts: inclusion and exclusion over the base row's cells."""
    part = table
    for axis, j in enumerate(over):
        here = np.take(part, [at[j]], axis=axis)
        part = part - here if j in columns else here
    return part

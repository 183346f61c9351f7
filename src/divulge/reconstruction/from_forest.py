"""The training table out of a random forest's own counts (Ferry et al. 2024, "Trained random forests completely reveal
your dataset").

A forest keeps in every leaf how many training rows of each class reached it. Each tree cuts the same table in another
way, and few small tables fit all cuts. Constraint programming finds one that does (``forest/solver.py``). It needs the
file, and no query.

It rebuilds tables of 0 and 1: binary and one-hot columns. A table that meets every count need not be the true one; how
near it is says ``match``, beside two controls: rows at random, and the rebuilt table with every column shuffled, which
has the same sums and no rows.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from divulge.core.errors import InvalidInput
from divulge.core.result import AttackResult
from divulge.core.validation import checked_number, checked_rows, checked_seed, checked_whole
from divulge.reconstruction.forest.counts import read_counts
from divulge.reconstruction.forest.solver import Groups, solve

CONTROLS = 20
"""Draws of each control."""


@dataclass(frozen=True)
class TableMatch:
    """How near a rebuilt table is to the true one: shares of wrong cells, after rows were matched at best."""

    error: float
    """Of the rebuilt table."""
    random: float
    """Of tables with cells at random, one-hot columns respected: the mean of twenty."""
    shuffled: float
    """Of the rebuilt table with every column shuffled among the rows: the mean of twenty."""
    exact_rows: int
    """Rows of the true table that were rebuilt in every cell."""

    def as_dict(self) -> dict[str, float]:
        """The figures, for JSON."""
        return dict(self.__dict__)


@dataclass(frozen=True, kw_only=True, eq=False)
class TableFromForest(AttackResult):
    """A table that meets all counts of a forest; without success it has no rows."""

    samples: NDArray[np.int8]
    """Rows of 0 and 1 [n, d], sorted by class."""
    labels: NDArray[np.int64]
    """Their classes [n], as numbers of the forest's ``classes_``."""
    groups: Groups = ()
    """One-hot columns."""

    def match(self, X: Any) -> TableMatch:
        """Compare with the true training inputs.

        Parameters
        ----------
        X : array-like of shape [n, d]
            The training inputs.

        Returns
        -------
        TableMatch
            Wrong cells after the best matching of rows, beside the controls.
        """
        truth = checked_rows(X, what="rows of the training data", width=self.samples.shape[1]).numpy()
        if len(truth) != len(self.samples):
            raise InvalidInput(f"The training data has {len(truth)} rows, and the table {len(self.samples)}.")
        rng = np.random.default_rng(self.seed + 1)
        wrong = _wrong_cells(self.samples, truth)
        blind = [_wrong_cells(_random(self.samples.shape, self.groups, rng), truth).mean() for _ in range(CONTROLS)]
        mixed = [_wrong_cells(_shuffled(self.samples, self.groups, rng), truth).mean() for _ in range(CONTROLS)]
        d = truth.shape[1]
        return TableMatch(
            float(wrong.mean()) / d, float(np.mean(blind)) / d, float(np.mean(mixed)) / d, int((wrong == 0).sum())
        )

    def as_dict(self) -> dict[str, Any]:
        """The result without the table, for JSON."""
        return super().as_dict() | {"rows": len(self.samples)}


def from_forest(
    forest: Any, *, groups: Sequence[Sequence[int]] = (), seconds: float = 60.0, seed: int = 0, workers: int = 1
) -> TableFromForest:
    """Rebuild the training table of a random forest from its counts.

    Parameters
    ----------
    forest : RandomForestClassifier, ExtraTreesClassifier or DecisionTreeClassifier
        The fitted model of scikit-learn. Its columns are 0 and 1.
    groups : sequence of sequence of int, default ()
        Columns of which exactly one is 1 in each row: one-hot codes of one category.
    seconds : float, default 60.0
        Time for the solver.
    seed : int, default 0
        Fixes the solver, as far as it ends before its time.
    workers : int, default 1
        Threads of the solver.

    Returns
    -------
    TableFromForest
        ``samples`` [n, d] and ``labels``; ``match(X)`` compares them with the true table.

    Raises
    ------
    UnsupportedModel
        If it is no such forest, or splits at numbers outside of 0 to 1.
    MissingPackage
        If OR-Tools is not installed.

    Examples
    --------
    >>> import divulge, numpy
    >>> from sklearn.ensemble import RandomForestClassifier
    >>> X = numpy.random.default_rng(0).integers(0, 2, (20, 6))
    >>> forest = RandomForestClassifier(20, bootstrap=False, random_state=0).fit(X, X[:, 0] ^ X[:, 1])
    >>> found = divulge.reconstruction.from_forest(forest)  # doctest: +SKIP
    >>> found.match(X).error < found.match(X).random  # doctest: +SKIP
    True
    """
    started = time.perf_counter()
    seed = checked_seed(seed)
    checked_number("seconds", seconds, above=0)
    checked_whole("workers", workers, at_least=1)
    counts = read_counts(forest)
    known = tuple(tuple(int(j) for j in group) for group in groups)
    if any(j < 0 or j >= counts.columns for group in known for j in group):
        raise InvalidInput(f"groups are numbers of columns from 0 to {counts.columns - 1}.")
    table, reason = solve(counts, known, seconds=seconds, seed=seed, workers=workers)
    found = np.zeros((0, counts.columns), dtype=np.int8) if table is None else table
    unseen = counts.columns - len(set(counts.used) | {j for group in known for j in group})
    return TableFromForest(
        method="constraint programming", seed=seed, seconds=time.perf_counter() - started, reason=reason,
        samples=found, labels=np.repeat(np.arange(len(counts.classes)), counts.classes)[: len(found)], groups=known,
        notes=(f"{unseen} columns are in no split, and nothing is known of them.",) if unseen else (),
        facts={"trees": len(counts.trees), "bootstrap": counts.bootstrap, "columns_in_no_split": unseen,
               "leaves": sum(map(len, counts.trees))},
    )  # fmt: skip


def _wrong_cells(table: NDArray[Any], truth: NDArray[Any]) -> NDArray[np.float64]:
    """Wrong cells of each row after the best matching of rows [n]."""
    distance = np.abs(table[:, None, :].astype(float) - truth[None, :, :]).sum(axis=2)
    rows, columns = linear_sum_assignment(distance)
    return np.asarray(distance[rows, columns])


def _random(shape: tuple[int, ...], groups: Groups, rng: np.random.Generator) -> NDArray[np.int8]:
    table = rng.integers(0, 2, shape).astype(np.int8)
    for group in groups:
        table[:, list(group)] = np.eye(len(group), dtype=np.int8)[rng.integers(len(group), size=shape[0])]
    return table


def _shuffled(table: NDArray[np.int8], groups: Groups, rng: np.random.Generator) -> NDArray[np.int8]:
    grouped = {j for group in groups for j in group}
    parts = [*groups, *((j,) for j in range(table.shape[1]) if j not in grouped)]
    mixed = table.copy()
    for part in parts:
        mixed[:, list(part)] = table[rng.permutation(len(table))][:, list(part)]
    return mixed

"""Decision trees and small sums of trees from their values: path finding (Tramèr et al. 2016, section 4).

Tramèr et al. rebuild single trees whose leaves all answer differently. Here leaves may answer alike (pure leaves do),
thresholds are bisected to the last bit of the number format that the target compares in, whole-number columns are asked
whole numbers only, and sums of trees that look at few columns each are read as tables:

1. A few hundred rows of the domain tell whether the target answers in steps, and how many different answers it has.
2. Few answers: one tree, by splitting boxes (``trees/partition.py``). Many: a sum of tables (``trees/tables.py``);
   where one does not end in its limits, the other is tried.
3. The copy is compared with the target on every row that was asked, and on fresh rows, a third of them beside its own
   thresholds (``trees/checks.py``). Rows on which a tree is wrong are learned from, and fresh ones are drawn.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from divulge.core.errors import BudgetExhausted
from divulge.core.validation import checked_whole
from divulge.extraction.tree_result import TreeCopy
from divulge.extraction.trees.checks import Checked, checked
from divulge.extraction.trees.domain import Array, Domain
from divulge.extraction.trees.partition import Partition, TooManyLeaves
from divulge.extraction.trees.steps import Asker
from divulge.extraction.trees.tables import NotATable, Tables
from divulge.extraction.verification import spread
from divulge.models.step_functions import DecisionTree, StepTables
from divulge.oracles.base import Oracle, check_oracle_and_seed
from divulge.oracles.ledger import Spent
from divulge.oracles.outputs import outputs_shown

SCREENED = 256
"""Rows that show what kind of function the target is."""
NEAR = 1e-7
"""How far a row is moved, in lengths of the domain, to see whether the target answers in steps."""
FINEST, FINEST_ROUNDINGS = 1e-5, 1e4
"""Share of their spread, or so many rounding errors, up to which answers count as equal: a copy that is no nearer than
that is not exact."""
MANY = 0.4
"""Share of different answers from which on a sum of trees is tried first."""
SMALLER = 8
"""A target with many answers is tried as one tree of so many times fewer leaves: few sums of trees are one."""
CHECKS = 6000
REPAIRS = 4
"""Times that wrong rows are learned from."""


def from_tree_values(
    oracle: Oracle,
    *,
    inputs: Any = None,
    seed: int = 0,
    checks: int = CHECKS,
    leaves: int = 2000,
    cells: int = 200_000,
) -> TreeCopy:
    """Rebuild a decision tree, or a small sum of trees, from its values.

    Parameters
    ----------
    oracle : Oracle
        The target, with value access: a tree, a forest or boosted trees.
    inputs : array-like of shape [n, d], optional
        Rows like the target's data. They say where the columns lie and which of them are whole numbers. By default
        inputs lie between -4 and 4.
    seed : int, default 0
        Fixes every random choice.
    checks : int, default 6000
        Fresh rows that verify the copy.
    leaves : int, default 2000
        The most leaves of a copy that is one tree.
    cells : int, default 200000
        The most cells of a copy that is a sum of tables: about as many rows are asked.

    Returns
    -------
    TreeCopy
        The copy. ``exact`` is True only if it answers every verification row as the target does, on the domain of the
        inputs; else ``reason`` says why not.

    Raises
    ------
    InvalidInput
        If a parameter makes no sense.
    BudgetExhausted
        If the oracle's budget ends first; ``partial`` holds the copy so far, where there is one.

    Examples
    --------
    >>> import divulge
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.tree import DecisionTreeClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> tree = DecisionTreeClassifier(max_depth=3, random_state=0).fit(X, y)
    >>> stolen = divulge.extraction.from_tree_values(divulge.oracle(tree), inputs=X)
    >>> stolen.exact, bool(stolen.leaves <= 2 * tree.get_n_leaves())
    (True, True)
    """
    seed = check_oracle_and_seed(oracle, seed)
    checked_whole("checks", checks, at_least=3)
    checked_whole("leaves", leaves, at_least=2)
    checked_whole("cells", cells, at_least=2)
    attack = _Attack(oracle, Domain.of(oracle, inputs), seed, checks, leaves, cells)
    try:
        return attack.run()
    except BudgetExhausted as error:
        error.partial = attack.unfinished("The budget ended before the copy was complete.")
        raise


@dataclass
class _Attack:
    """One run: what it found so far, and what that cost."""

    oracle: Oracle
    domain: Domain
    seed: int
    checks: int
    leaves: int
    cells: int
    partition: Partition | None = None
    verifying: Spent = field(default_factory=Spent)
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.started, self.before = time.perf_counter(), self.oracle.ledger.snapshot()
        self.rng = np.random.default_rng([self.seed, 7])
        self.fresh = np.random.default_rng([self.seed, 11])
        self.asker = Asker(self.oracle, self.domain)

    def run(self) -> TreeCopy:
        half = SCREENED // 2
        X = np.concatenate([self.domain.draw(half, self.rng), self.domain.typical(half, self.rng)])
        y = self.asker.value(X)
        if obstacle := self._screened(X, y):
            return self._result(_constant(y[0], X.shape[1]), "none", None, obstacle)
        many = len(np.unique(np.round(y / (4 * self.asker.tolerance)), axis=0)) > MANY * len(y)
        if many:
            found = self._tables(X, y) or self._tree(X, y, max(2, self.leaves // SMALLER))
        else:
            found = self._tree(X, y, self.leaves) or self._tables(X, y)
        return found or self.unfinished(f"The target is no small function of steps: {'; '.join(self.failures)}.")

    def _screened(self, X: Array, y: Array) -> str:
        """Why these are no steps that can be found; empty if they are."""
        if not self.asker.differ(y, y[:1]).any():
            return (
                "The answers are constant on all rows that were asked, which proves nothing about other rows. Give "
                "inputs= with rows like the target's data."
            )
        varies = spread(torch.from_numpy(y))
        if self.asker.tolerance > max(FINEST, FINEST_ROUNDINGS * self.oracle.eps) * varies:
            return (
                f"The answers vary by {varies:.1e} about numbers of the size {self.asker.size:.1e}: steps and rounding "
                "cannot be told apart. Subtract the constant from the answers."
            )
        free = ~self.domain.whole
        if free.any():
            near = X[:64] + NEAR * (self.domain.high - self.domain.low) * free * self.rng.choice([-1, 1], X[:64].shape)
            if self.asker.differ(self.asker.value(near), y[:64]).mean() > 0.25:
                return "The answers change between neighbouring rows: the target does not answer in steps."
        return ""

    # -- the two ways -------------------------------------------------------------------------------------------------

    def _tree(self, X: Array, y: Array, most: int) -> TreeCopy | None:
        partition = self.partition = Partition(self.asker, X, y, most=most, rng=self.rng)
        try:
            partition.grow()
            for turn in range(REPAIRS + 1):
                model = partition.tree()
                found = self._verified(model, partition.beside(self.checks // 3, self.fresh), 1.0)
                if not found.wrong.any() or turn == REPAIRS:
                    return self._result(model, "path finding", found, found.reason)
                self.verifying = Spent()  # these rows were learned from
                partition.learn(found.X[found.wrong], found.truth[found.wrong])
                partition.grow()
        except TooManyLeaves:
            self.failures.append(f"one tree needs more than {most:,} leaves")
        return None

    def _tables(self, X: Array, y: Array) -> TreeCopy | None:
        shown = outputs_shown(torch.from_numpy(y), self.oracle.threshold)
        links = ["", "logistic" if y.shape[1] == 1 else "softmax"] if shown == "probabilities" else [""]
        best: TreeCopy | None = None
        for link in links:
            tables = Tables(self.asker, cells=self.cells, rng=self.rng, link=link)
            try:
                model = tables.build()
            except NotATable as error:
                self.failures.append(f"as a sum of tables {error}")
                continue
            found = self._verified(model, tables.beside(self.checks // 3, self.fresh), 64.0 if not link else 4096.0)
            best = self._result(model, "tables", found, found.reason)
            if best.exact:
                return best
            self.failures.append(f"as a sum of tables it is wrong on {found.wrong.mean():.1%} of the rows")
        return None

    def _verified(self, model: nn.Module, beside: Array, loose: float) -> Checked:
        before = self.oracle.ledger.snapshot()
        found = checked(self.asker, model, beside, self.fresh, loose)
        self.verifying = self.oracle.ledger.snapshot() - before
        return found

    # -- results ------------------------------------------------------------------------------------------------------

    def unfinished(self, reason: str) -> TreeCopy:
        """What is known so far: the tree as far as it was grown."""
        self.verifying = Spent()
        if self.partition is None:
            return self._result(
                _constant(np.zeros(self.oracle.output_dim), self.oracle.input_dim), "none", None, reason
            )
        return self._result(self.partition.tree(), "path finding", None, reason)

    def _result(self, model: nn.Module, method: str, found: Checked | None, reason: str) -> TreeCopy:
        domain = self.asker.domain
        facts: dict[str, Any] = {
            "whole_columns": int(domain.whole.sum()), "rounds_to_float32": domain.single,
            "verification": found.facts() if found is not None else {}, "tried": list(self.failures),
        }  # fmt: skip
        size, thresholds = _size(model)
        return TreeCopy(
            model=model.eval(), exact=found is not None and not reason, leaves=size, thresholds=thresholds,
            worst_error=np.inf if found is None else found.worst, scale=1.0 if found is None else found.scale,
            verified_points=0 if found is None else found.fresh, verification=self.verifying, domain=domain,
            method=method, seed=self.seed, seconds=time.perf_counter() - self.started,
            ledger=self.oracle.ledger.snapshot() - self.before, reason=reason, facts=facts,
        )  # fmt: skip


def _size(model: nn.Module) -> tuple[int, int]:
    """Leaves or cells, and different thresholds."""
    if isinstance(model, DecisionTree):
        inner = model.feature >= 0
        pairs = torch.stack([model.feature[inner].double(), model.threshold[inner]], dim=1)
        return model.leaves, len(torch.unique(pairs, dim=0))
    assert isinstance(model, StepTables)
    return sum(len(table) for name, table in model.named_buffers() if name != "thresholds"), len(model.thresholds)


def _constant(value: Array, inputs: int) -> DecisionTree:
    tree = DecisionTree(inputs, len(value), 1)
    tree.value[0] = torch.from_numpy(value)
    return tree

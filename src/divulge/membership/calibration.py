"""Attacks on one model alone, without reference models: thresholds, and quantile regression.

``loss`` compares the loss of a record with one threshold (Yeom et al. 2018). ``confidence`` compares the logit of a
record's label with the mean and spread of non-members of the same class (Song and Mittal 2021 take a threshold for each
class; standardising by class gives one score for all). A non-member is left out of its own mean and spread, so that it
is treated as a member would be that the model never saw.

``quantile`` learns from non-members what the model answers to a record like this one (Bertran et al. 2023). They learn
a quantile for each false positive rate; here one regression learns the mean, another the spread around it, and the
score is how many spreads a record lies above its mean, which orders records for all rates at once. Non-members are
scored by a regression that was learned from the other half of them, and each member by one of the two halves' at
random, so that both sides are scored alike.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from divulge.core.errors import InvalidInput

Array = NDArray[np.float64]
FEWEST_IN_CLASS = 10
"""Non-members that a class needs for a mean and a spread of its own; smaller classes share those of all."""
FEWEST_TO_LEARN = 100
MOST_TO_LEARN = 20_000
"""Non-members that a regression learns from."""
TREES = 60
LEAF = 5
COLUMNS = 64
"""Wider rows are projected onto this many principal components before a tree sees them."""


def by_class(members: Array, others: Array, member_classes: Any, other_classes: Any) -> tuple[Array, Array]:
    """Scores of both sides in units of the spread of non-members of the same class."""
    scored, rest = _standardised(members, others)
    for label in np.unique(other_classes):
        inside, outside = member_classes == label, other_classes == label
        if outside.sum() >= FEWEST_IN_CLASS:
            scored[inside], rest[outside] = _standardised(members[inside], others[outside])
    return scored, rest


def _standardised(members: Array, others: Array) -> tuple[Array, Array]:
    """(x - mean) / spread, with the mean and the spread of the non-members."""
    mean = float(others.mean())
    spread = max(float(others.std()), 1e-9 * (1 + abs(mean)))
    return (members - mean) / spread, (others - mean) / spread


def by_quantile(
    members: Array, others: Array, member_rows: Tensor, other_rows: Tensor, member_y: Any, other_y: Any, seed: int
) -> tuple[Array, Array]:
    """How many spreads each record lies above the mean that records like it have."""
    if len(others) < FEWEST_TO_LEARN:
        raise InvalidInput(
            f"Quantile regression learns from at least {FEWEST_TO_LEARN} non-members; there are {len(others)}."
        )
    rng = np.random.default_rng(seed)
    rows = _table(other_rows, other_y, other_rows, other_y, seed)
    own = _table(member_rows, member_y, other_rows, other_y, seed)
    half = rng.permutation(len(others)) % 2
    turn = rng.integers(0, 2, len(members))
    scored, rest = np.empty(len(members)), np.empty(len(others))
    for side in (0, 1):
        learned = _Conditional(rows[half == side], others[half == side], seed)
        rest[half != side] = learned.score(rows[half != side], others[half != side])
        if (turn == side).any():
            scored[turn == side] = learned.score(own[turn == side], members[turn == side])
    return scored, rest


class _Conditional:
    """The mean and the spread of a signal, given the record."""

    def __init__(self, rows: Array, signal: Array, seed: int) -> None:
        from sklearn.ensemble import ExtraTreesRegressor

        rows, signal = rows[:MOST_TO_LEARN], signal[:MOST_TO_LEARN]
        low, high = np.quantile(signal, [0.005, 0.995])
        kept = signal.clip(low, high)
        forest = ExtraTreesRegressor(TREES, min_samples_leaf=LEAF, bootstrap=True, oob_score=True, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a row that every tree saw counts as predicted without error
            self._mean = forest.fit(rows, kept)
        away = np.abs(kept - self._mean.oob_prediction_)
        self._floor = max(0.1 * float(away.mean()), 1e-9)
        self._spread = ExtraTreesRegressor(TREES, min_samples_leaf=LEAF, bootstrap=True, random_state=seed).fit(
            rows, away
        )

    def score(self, rows: Array, signal: Array) -> Array:
        out: Array = (signal - self._mean.predict(rows)) / np.maximum(self._spread.predict(rows), self._floor)
        return out


def _table(rows: Tensor, y: Any, basis_rows: Tensor, basis_y: Any, seed: int) -> Array:
    """Rows, or their principal components, with the label as a last column."""
    labels = np.unique(basis_y)
    column = np.searchsorted(labels, y).astype(float) if y.ndim == 1 else y[:, 0].astype(float)
    return np.column_stack([narrow(rows, basis_rows, seed), column])


def narrow(rows: Tensor, basis_rows: Tensor, seed: int) -> Array:
    """Rows as they are, or as principal components of ``basis_rows`` where they are wide."""
    if rows.shape[1] <= COLUMNS:
        values: Array = rows.numpy()
        return values
    from sklearn.decomposition import PCA

    basis = PCA(min(COLUMNS, len(basis_rows)), svd_solver="randomized", random_state=seed)
    basis.fit(basis_rows[:5000].numpy())
    out: Array = basis.transform(rows.numpy())
    return out

"""The sets that come with scikit-learn: digits, and three small tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from divulge.datasets.dataset import Dataset, Rows

BUNDLED = ("digits", "breast-cancer", "diabetes", "iris")
_TEST_SHARE = 0.2
_SPLIT_SEED = 0  # the sets come in one part; this split is fixed so that everyone trains on the same rows


def load_bundled(name: str) -> Dataset:
    """A bundled set with one fifth of its rows, by a fixed shuffle, in its test part."""
    from sklearn import datasets as sets

    if name == "digits":
        digits = sets.load_digits()
        X = torch.from_numpy(digits.data).to(torch.uint8)
        train, test, rows = train_test_split(Rows(X, torch.from_numpy(digits.target).long()), _TEST_SHARE, _SPLIT_SEED)
        classes = tuple("0123456789")
        return Dataset(name, train, test, shape=(1, 8, 8), classes=classes, high=16.0, rows=rows)
    loaders = {"breast-cancer": sets.load_breast_cancer, "iris": sets.load_iris}
    table: Any = sets.load_diabetes(scaled=False) if name == "diabetes" else loaders[name]()
    X = torch.from_numpy(np.ascontiguousarray(table.data, dtype=np.float64))
    classes = () if name == "diabetes" else tuple(str(label) for label in table.target_names)
    y = torch.from_numpy(np.asarray(table.target))
    y = y.long() if classes else y.to(torch.float32)
    return table_set(name, X, y, classes=classes, columns=tuple(str(column) for column in table.feature_names))


def table_set(
    name: str,
    X: torch.Tensor,
    y: torch.Tensor,
    *,
    classes: tuple[str, ...],
    columns: tuple[str, ...],
    test: float = _TEST_SHARE,
    seed: int = _SPLIT_SEED,
) -> Dataset:
    """A table of numbers as a data set: each column's own range becomes [0, 1]."""
    train, held_out, rows = train_test_split(Rows(X, y), test, seed)
    low, high = X.min(dim=0).values, X.max(dim=0).values
    return Dataset(
        name, train, held_out, shape=(X.shape[1],), classes=classes, columns=columns, low=low, high=high, rows=rows
    )


def train_test_split(rows: Rows, test: float, seed: int) -> tuple[Rows, Rows, torch.Tensor]:
    """A training and a test part by a seeded shuffle, each in its own order, and the numbers of the training rows."""
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(rows.y)))
    held_out = round(test * len(order))
    chosen, kept = order[:held_out].sort().values, order[held_out:].sort().values
    return Rows(rows.X[kept], rows.y[kept]), Rows(rows.X[chosen], rows.y[chosen]), kept

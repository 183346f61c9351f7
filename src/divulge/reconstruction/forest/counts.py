"""What the file of a forest says of its training rows: for every leaf its conditions and its counts by class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from divulge.core.errors import UnsupportedModel


@dataclass(frozen=True)
class Leaf:
    """A leaf: columns that are 1 or 0 in all its rows, rows of each class, and different rows."""

    ones: tuple[int, ...]
    zeros: tuple[int, ...]
    counts: NDArray[np.int64]
    """Rows of each class, as often as they were drawn [classes]."""
    rows: int
    """Different rows."""


@dataclass(frozen=True)
class ForestCounts:
    """The counts of all trees."""

    columns: int
    trees: tuple[tuple[Leaf, ...], ...]
    bootstrap: bool

    @property
    def rows(self) -> int:
        """Rows of the training table."""
        return int(sum(leaf.counts.sum() for leaf in self.trees[0]))

    @property
    def classes(self) -> NDArray[np.int64]:
        """Rows of each class: exact without bootstrap, else the mean over the trees, rounded to the number of rows."""
        drawn = np.array([sum(leaf.counts for leaf in tree) for tree in self.trees]).mean(axis=0)
        whole = np.floor(drawn).astype(np.int64)
        whole[np.argsort(whole - drawn)[: self.rows - int(whole.sum())]] += 1
        return np.asarray(whole)

    @property
    def used(self) -> list[int]:
        """Columns that some tree splits at."""
        return sorted({j for tree in self.trees for leaf in tree for j in (*leaf.ones, *leaf.zeros)})


def read_counts(forest: Any) -> ForestCounts:
    """The counts in a random forest or decision tree of scikit-learn, or UnsupportedModel."""
    forest = getattr(forest, "best_estimator_", forest)
    trees = [one.tree_ for one in np.ravel(getattr(forest, "estimators_", forest))] if is_forest(forest) else []
    if not trees or not hasattr(forest, "classes_"):
        raise UnsupportedModel(
            f"{type(forest).__name__} is no random forest or decision tree classifier of scikit-learn, whose counts "
            "could be read."
        )
    bootstrap = bool(getattr(forest, "bootstrap", False))
    if bootstrap and getattr(forest, "max_samples", None) is not None:
        raise UnsupportedModel("A forest with max_samples does not say how many rows its table has.")
    if any(tree.n_outputs > 1 for tree in trees):
        raise UnsupportedModel("A forest with several outputs cannot be read.")
    inner = np.concatenate([tree.threshold[tree.feature >= 0] for tree in trees])
    if ((inner < 0) | (inner >= 1)).any():
        raise UnsupportedModel(
            "The forest splits at numbers outside of 0 to 1; only tables of 0 and 1 (one-hot columns) are rebuilt."
        )
    return ForestCounts(int(forest.n_features_in_), tuple(_leaves(tree) for tree in trees), bootstrap)


def is_forest(forest: Any) -> bool:
    """Whether this is a forest or a tree whose counts can be read."""
    kind = type(forest).__name__
    return kind in ("RandomForestClassifier", "ExtraTreesClassifier", "DecisionTreeClassifier", "ExtraTreeClassifier")


def _leaves(tree: Any) -> tuple[Leaf, ...]:
    shares = tree.value[:, 0, :]
    weights = tree.weighted_n_node_samples
    whole = abs(shares.sum(axis=1) - 1).max() > 1e-6  # older versions of scikit-learn keep the counts themselves
    counts = shares if whole else shares * weights[:, None]
    if abs(counts - np.round(counts)).max() > 1e-3:
        raise UnsupportedModel("The forest was trained with weights: its counts are not whole rows.")
    found = []
    waiting: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = [(0, (), ())]
    while waiting:
        node, ones, zeros = waiting.pop()
        j = int(tree.feature[node])
        if j < 0:
            found.append(Leaf(ones, zeros, np.round(counts[node]).astype(np.int64), int(tree.n_node_samples[node])))
        else:
            waiting += [(int(tree.children_left[node]), ones, (*zeros, j)),
                        (int(tree.children_right[node]), (*ones, j), zeros)]  # fmt: skip
    return tuple(found)

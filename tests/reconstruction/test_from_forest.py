"""What the file of a forest says of its rows, read without OR-Tools; the rebuilt table is tested in tests/extras."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier

import divulge
from divulge.errors import MissingPackage, UnsupportedModel
from divulge.reconstruction.forest.counts import read_counts

X = np.random.default_rng(0).integers(0, 2, (40, 6))
Y = X[:, 0] ^ X[:, 1]


@pytest.mark.parametrize("bootstrap", [False, True], ids=["all rows", "bootstrap"])
def test_counts_are_those_of_the_rows(bootstrap):
    forest = RandomForestClassifier(5, bootstrap=bootstrap, random_state=0).fit(X, Y)
    counts = read_counts(forest)
    assert counts.rows == 40
    assert int(counts.classes.sum()) == 40
    if not bootstrap:
        assert counts.classes.tolist() == np.bincount(Y).tolist()
        for leaf in counts.trees[0]:
            inside = (X[:, list(leaf.ones)] == 1).all(axis=1) & (X[:, list(leaf.zeros)] == 0).all(axis=1)
            assert np.bincount(Y[inside], minlength=2).tolist() == leaf.counts.tolist()
            assert int(inside.sum()) == leaf.rows


def test_other_models_and_other_columns_are_refused():
    with pytest.raises(UnsupportedModel, match="no random forest"):
        divulge.reconstruction.from_forest(GradientBoostingClassifier(n_estimators=2).fit(X, Y))
    with pytest.raises(UnsupportedModel, match="0 and 1"):
        divulge.reconstruction.from_forest(RandomForestClassifier(3, random_state=0).fit(*load_iris(return_X_y=True)))


@pytest.mark.skipif(importlib.util.find_spec("ortools") is not None, reason="OR-Tools is installed")
def test_without_or_tools_one_sentence_says_what_to_install():
    with pytest.raises(MissingPackage, match=r"divulge\[solver\]"):
        divulge.reconstruction.from_forest(RandomForestClassifier(3, bootstrap=False, random_state=0).fit(X, Y))

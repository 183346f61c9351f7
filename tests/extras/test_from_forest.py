"""The training table out of a forest's counts, by OR-Tools: nearer to the truth than both controls."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier

pytest.importorskip("ortools", reason="runs in make test-extras: OR-Tools is not installed")

import divulge
from divulge.auditing import AuditOptions
from divulge.auditing.opening import open_target
from divulge.auditing.probes import forest_table


def table(seed: int, rows: int = 30, columns: int = 10):
    """Real rows, each column as above its median or not."""
    X, y = load_breast_cancer(return_X_y=True)
    chosen = np.random.default_rng(seed).permutation(len(X))[:rows]
    return (X[:, :columns] > np.median(X[:, :columns], axis=0))[chosen].astype(int), y[chosen]


@pytest.mark.parametrize("bootstrap", [False, True], ids=["all rows", "bootstrap"])
def test_every_count_is_met_and_the_table_is_nearer_than_chance(bootstrap):
    X, y = table(0)
    forest = RandomForestClassifier(30, bootstrap=bootstrap, random_state=0).fit(X, y)
    found = divulge.reconstruction.from_forest(forest, seconds=60)
    assert found.success, found.reason
    match = found.match(X)
    assert match.error < 0.8 * min(match.random, match.shuffled)
    if not bootstrap:  # the solver's table goes through every tree as the true one does
        for tree in forest.estimators_:
            leaves = tree.apply(found.samples.astype(np.float32))
            for leaf in np.unique(leaves):
                assert (leaves == leaf).sum() == tree.tree_.n_node_samples[leaf]


def test_the_true_table_in_another_order_has_no_error():
    X, y = table(1)
    forest = RandomForestClassifier(3, bootstrap=False, random_state=0).fit(X, y)
    found = divulge.reconstruction.from_forest(forest, seconds=30)
    true = type(found)(samples=X[::-1].astype(np.int8), labels=y[::-1])
    assert true.match(X).error == 0
    assert true.match(X).exact_rows == len(X)


def test_one_hot_columns_stay_one_hot():
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 4, 24)
    X = np.column_stack([np.eye(4, dtype=int)[kind], rng.integers(0, 2, (24, 4))])
    forest = RandomForestClassifier(20, bootstrap=False, random_state=0).fit(X, (kind > 1) ^ (X[:, 4] == 1))
    found = divulge.reconstruction.from_forest(forest, groups=[range(4)], seconds=30)
    assert found.success
    assert (found.samples[:, :4].sum(axis=1) == 1).all()


def test_the_probe_and_the_command(tmp_path):
    import joblib
    from typer.testing import CliRunner

    from divulge.cli import app

    X, y = table(2, rows=24, columns=8)
    forest = RandomForestClassifier(40, bootstrap=False, random_state=0).fit(X, y)
    target = open_target(forest, (X, y), AuditOptions())
    [probe] = forest_table.PROBES
    assert probe.obstacle(target) == ""
    found = probe.run(target, 60.0)
    assert found.outcome in ("succeeded", "partly")
    joblib.dump(forest, tmp_path / "forest.joblib")
    words = ["reconstruct", str(tmp_path / "forest.joblib"), "--trust-pickle", "--out", str(tmp_path / "out"), "--json"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["rows"] == 24
    assert np.load(tmp_path / "out" / "arrays.npz")["samples"].shape == (24, 8)

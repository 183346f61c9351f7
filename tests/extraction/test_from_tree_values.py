"""Trees from their values: exact on the domain, thresholds to the last bit, and an honest failure where it is not."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.ensemble import (
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from typer.testing import CliRunner

import divulge
from divulge import models
from divulge.auditing import AuditOptions
from divulge.auditing.opening import open_target
from divulge.auditing.probes import exact_copy
from divulge.cli import app
from divulge.errors import BudgetExhausted, InvalidInput
from divulge.extraction.trees.domain import Domain
from divulge.extraction.trees.partition import Box, Partition, _gains
from divulge.extraction.trees.steps import Asker

IRIS, CANCER, DIABETES = (load(return_X_y=True) for load in (load_iris, load_breast_cancer, load_diabetes))


def extracted(model, X, **options):
    return divulge.extraction.from_tree_values(divulge.oracle(model, access="value"), inputs=X, **options)


def differences(copy, oracle, X) -> int:
    X = torch.as_tensor(X, dtype=torch.float64)
    return int(((copy(X) - oracle.value(X).double()).abs() > 1e-9).any(dim=1).sum())


def near_thresholds(tree, X, rng) -> np.ndarray:
    """Rows of the data with one number within a few float32 numbers of a threshold of the true tree."""
    rows = X[rng.integers(len(X), size=2000)].astype(float)
    inner = np.flatnonzero(tree.feature >= 0)
    node = inner[rng.integers(len(inner), size=2000)]
    shift = rng.integers(-3, 4, size=2000) * np.spacing(np.abs(tree.threshold[node]).astype(np.float32)) / 2
    rows[np.arange(2000), tree.feature[node]] = tree.threshold[node] + shift
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_classification_tree_is_copied_exactly(seed):
    tree = DecisionTreeClassifier(random_state=seed).fit(*IRIS)
    stolen = extracted(tree, IRIS[0], seed=seed)
    assert stolen.exact, stolen.reason
    assert stolen.facts["rounds_to_float32"]
    assert stolen.thresholds <= tree.get_n_leaves() - 1
    oracle = divulge.oracle(tree, access="value")
    rng = np.random.default_rng(100 + seed)
    assert differences(stolen.model, oracle, near_thresholds(tree.tree_, IRIS[0], rng)) == 0
    low, high = IRIS[0].min(axis=0), IRIS[0].max(axis=0)
    assert differences(stolen.model, oracle, rng.uniform(low, high, (5000, 4))) <= 1
    assert stolen.queries + stolen.verification.total == stolen.ledger.total


@pytest.mark.slow
def test_a_regression_tree_and_a_wide_table_are_copied_exactly():
    for model, X in (
        (DecisionTreeRegressor(max_depth=5, random_state=0).fit(*DIABETES), DIABETES[0]),
        (DecisionTreeClassifier(max_depth=4, random_state=0).fit(*CANCER), CANCER[0]),
    ):
        stolen = extracted(model, X)
        assert stolen.exact, stolen.reason
        oracle = divulge.oracle(model, access="value")
        rng = np.random.default_rng(1)
        assert differences(stolen.model, oracle, near_thresholds(model.tree_, X, rng)) <= 2  # of 2,000
        assert differences(stolen.model, oracle, X) == 0


def test_whole_columns_are_asked_whole_numbers_only():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.integers(0, 6, 400), rng.integers(0, 2, 400), rng.normal(size=400)])
    tree = DecisionTreeRegressor(max_depth=6, random_state=0).fit(X, 3 * (X[:, 0] == 2) + X[:, 1] * (X[:, 2] > 0.3))
    asked = []

    def ask(rows):
        asked.append(rows)
        return tree.predict(rows)

    stolen = divulge.extraction.from_tree_values(divulge.oracle(ask, input_shape=(3,)), inputs=X)
    assert stolen.exact, stolen.reason
    rows = np.concatenate(asked)[2:]  # the first two find out the shape of the answers
    assert (rows[:, :2] == np.round(rows[:, :2])).all()
    assert rows[:, 0].min() >= 0
    assert rows[:, 0].max() <= 5
    assert np.abs(stolen.model(torch.from_numpy(X)).numpy()[:, 0] - tree.predict(X)).max() == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stumps", "pairs", "forest"])
def test_a_small_sum_of_trees_is_copied_exactly(kind):
    X, y = DIABETES[0][:, :5], DIABETES[1]
    model = {
        "stumps": GradientBoostingClassifier(max_depth=1, n_estimators=12, random_state=0).fit(X, y > 140),
        "pairs": GradientBoostingRegressor(max_depth=2, n_estimators=6, random_state=0).fit(X, y),
        "forest": RandomForestRegressor(3, max_depth=2, random_state=0).fit(X, y),
    }[kind]
    stolen = extracted(model, X)
    assert stolen.exact, stolen.reason
    oracle = divulge.oracle(model, access="value")
    rows = np.random.default_rng(5).uniform(X.min(axis=0), X.max(axis=0), (4000, 5))
    assert differences(stolen.model, oracle, rows) == 0
    assert differences(stolen.model, oracle, X) == 0


@pytest.mark.slow
def test_lightgbm_compares_in_float64():
    lightgbm = pytest.importorskip("lightgbm")
    model = lightgbm.LGBMRegressor(n_estimators=1, num_leaves=5, verbose=-1).fit(*DIABETES)
    stolen = extracted(model, DIABETES[0])
    assert stolen.exact, stolen.reason
    assert not stolen.facts["rounds_to_float32"]


def test_what_does_not_answer_in_steps_is_refused():
    smooth = divulge.extraction.from_tree_values(divulge.oracle(lambda X: np.tanh(X.sum(axis=1)), input_shape=(3,)))
    assert not smooth.exact
    assert "steps" in smooth.reason
    constant = divulge.extraction.from_tree_values(divulge.oracle(lambda X: np.ones(len(X)), input_shape=(3,)))
    assert not constant.exact
    assert "constant" in constant.reason


@pytest.mark.slow
def test_slanted_steps_are_never_called_exact():
    def slanted(X):
        return (X @ np.array([1.0, 0.7, -0.4]) > 0.2).astype(float) + (X[:, 0] > 1)

    stolen = divulge.extraction.from_tree_values(divulge.oracle(slanted, input_shape=(3,)), leaves=60, cells=2000)
    assert not stolen.exact
    assert stolen.reason


@pytest.mark.slow
def test_probabilities_of_zero_and_one_do_not_make_a_copy_exact():
    digits = np.random.default_rng(0).integers(0, 17, (400, 12)).astype(float)
    labels = (digits[:, 0] * 3 + digits[:, 1] * 5 + digits[:, 2] * digits[:, 3]).astype(int) % 7
    tree = DecisionTreeClassifier(random_state=0).fit(digits, labels)
    stolen = extracted(tree, digits, leaves=30, cells=3000)
    assert not stolen.exact


@pytest.mark.slow
def test_a_forest_that_is_no_small_tree_ends_with_a_reason():
    forest = RandomForestClassifier(10, random_state=0).fit(*CANCER)
    oracle = divulge.oracle(forest, access="value")
    stolen = divulge.extraction.from_tree_values(oracle, inputs=CANCER[0], leaves=100, cells=400)
    assert not stolen.exact
    assert "one tree needs more than 100 leaves" in stolen.reason
    assert oracle.ledger.value < 60_000  # no round of splits is begun that leads beyond the limit


def test_gains_of_thresholds_are_those_of_the_gini_index():
    rng = np.random.default_rng(0)
    column, kinds = rng.integers(6, size=40).astype(float), rng.integers(3, size=40)
    for threshold, gain in zip([-1.0, 0.0, 2.5, 9.0], _gains(column, [-1.0, 0.0, 2.5, 9.0], kinds), strict=True):
        parts = [kinds, kinds[column <= threshold], kinds[column > threshold]]
        sizes = [len(part) - np.square(np.bincount(part)).sum() / max(len(part), 1) for part in parts]
        whole, left, right = sizes
        assert gain == pytest.approx(whole - left - right)


def test_a_budget_that_ends_keeps_what_is_there():
    tree = DecisionTreeClassifier(random_state=0).fit(*IRIS)
    with pytest.raises(BudgetExhausted) as raised:
        divulge.extraction.from_tree_values(divulge.oracle(tree, budget=800), inputs=IRIS[0])
    assert not raised.value.partial.exact
    assert raised.value.partial.ledger.total <= 800


def test_one_row_is_not_data():
    tree = DecisionTreeClassifier(random_state=0).fit(*IRIS)
    with pytest.raises(InvalidInput, match="at least two"):
        extracted(tree, IRIS[0][:1])


def test_the_command_writes_a_copy_that_loads(tmp_path):
    import joblib

    tree = DecisionTreeClassifier(max_depth=3, random_state=0).fit(*IRIS)
    joblib.dump(tree, tmp_path / "tree.joblib")
    words = ["extract", str(tmp_path / "tree.joblib"), "--trust-pickle", "--access", "value", "--method", "trees",
             "--data", "iris", "--checks", "600", "--out", str(tmp_path / "copy"), "--json"]  # fmt: skip
    result = CliRunner().invoke(app, words)
    assert result.exit_code in (0, 3), result.output
    figures = json.loads(result.stdout)
    assert figures["exact"] is (result.exit_code == 0)
    assert models.load(tmp_path / "copy")(torch.zeros(2, 4, dtype=torch.float64)).shape == (2, 3)


@pytest.mark.slow
def test_the_probe_of_an_audit_copies_a_tree_exactly():
    tree = DecisionTreeClassifier(max_depth=4, random_state=0).fit(*IRIS)
    target = open_target(tree, IRIS, AuditOptions(access="value"))
    probe = next(probe for probe in exact_copy.PROBES if probe.name == "copy-from-values")
    assert probe.obstacle(target) == ""
    found = probe.run(target, 60.0)
    assert found.measures["exact"] is True
    assert found.measures["leaves_found"] >= tree.get_n_leaves() - 3
    assert "--method trees" in found.command


@pytest.mark.parametrize("inputs", [1, 4])
def test_answers_that_hardly_vary_are_not_told_from_rounding(inputs):
    """A smooth function about a constant has some hundred levels in float64: steps that are rounding's."""
    oracle = divulge.oracle(lambda X: 1 + 1e-12 * torch.sin(X.sum(dim=1, keepdim=True)), input_shape=[inputs])
    stolen = divulge.extraction.from_tree_values(oracle)
    assert not stolen.exact
    assert "rounding" in stolen.reason


def test_a_box_without_a_row_is_tested_like_the_others():
    """A step may leave all rows that were asked on one of its sides."""
    domain = Domain(np.zeros(2), np.ones(2), np.zeros(2, bool), single=False)
    oracle = divulge.oracle(lambda X: (X[:, :1] > 0.5).double(), input_shape=[2])
    asker = Asker(oracle, domain)
    X = np.random.default_rng(0).random((20, 2))
    partition = Partition(asker, X, asker.value(X), most=10, rng=np.random.default_rng(0))
    empty = Box(np.array([0.25, -np.inf]), np.array([0.5, np.inf]), X[:0], np.zeros((0, 1)))
    rows = partition._tests(empty)
    assert len(rows) > 0
    assert empty.holds(rows).all()

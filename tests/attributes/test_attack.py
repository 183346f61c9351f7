"""Attribute inference: what a model that recalls its records adds to imputation, and what one that does not adds."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression

import divulge
from divulge.attributes import imputation
from divulge.attributes.attack import advantage
from divulge.core.errors import DivulgeError


def people(n: int, seed: int) -> tuple[Any, Any]:
    """A category in column 0 that the label depends on, a quantity that follows it, and noise."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, 3, n)
    X = np.column_stack([kind, kind + rng.normal(0, 2, n), rng.normal(size=(n, 3))]).astype(float)
    return X, ((kind == 2) ^ (rng.random(n) < 0.2)).astype(int)


@pytest.fixture(scope="module", autouse=True)
def _small_forests() -> Iterator[None]:
    """What is promised here does not hang on the size of the imputer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(imputation, "TREES", 15)
        yield


@pytest.fixture(scope="module")
def recalled() -> Any:
    X, y = people(260, 0)
    return RandomForestClassifier(50, random_state=0).fit(X, y), X, y


@pytest.mark.slow
def test_a_forest_that_recalls_its_records_adds_to_imputation_and_only_for_members(recalled: Any) -> None:
    forest, X, y = recalled
    groups = np.where(X[:, 2] > 0, "a", "b")
    risk = divulge.attributes.attack(forest, X, y, column=0, non_members=people(260, 1), groups=groups)
    value, low, high = risk.advantage
    assert risk.success
    assert low > 0.05
    assert low < value < high
    assert value == pytest.approx(risk.accuracy - risk.baseline)
    assert risk.advantage > 0.1
    assert risk.baseline > risk.majority - 0.02
    assert risk.control is not None
    assert risk.control.low <= 0
    assert risk.queries == risk.ledger.value == 3 * 2 * 260
    assert set(risk.by_group) == {"a", "b"}
    right = risk.guesses == X[:, 0]
    assert right[risk.worst(30)].mean() > right.mean()


@pytest.mark.slow
def test_a_model_that_does_not_recall_adds_nothing() -> None:
    X, y = people(240, 10)
    model = LogisticRegression().fit(X, y)
    risk = divulge.attributes.attack(model, X, y, column=0)
    assert abs(float(risk.advantage)) < 0.06
    assert not risk.success
    assert "adds nothing certain" in risk.reason


@pytest.mark.slow
def test_a_model_of_other_people_adds_nothing() -> None:
    X, y = people(240, 3)
    stranger = RandomForestClassifier(50, random_state=0).fit(*people(240, 4))
    assert not divulge.attributes.attack(stranger, X, y, column=0).success


@pytest.fixture(scope="module")
def own(recalled: Any) -> Any:
    return divulge.attributes.attack(*recalled, column=0)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fredrikson", "csmia"])
def test_the_published_attacks_are_judged_by_the_same_baseline(recalled: Any, own: Any, method: Any) -> None:
    printed = divulge.attributes.attack(*recalled, column=0, method=method)
    assert printed.baseline == own.baseline
    assert printed.majority < printed.accuracy < own.accuracy + 0.05


@pytest.mark.slow
def test_labels_alone_and_regressions_and_quantities(recalled: Any) -> None:
    forest, X, y = recalled
    labels = divulge.attributes.attack(forest, X, y, column=0, access="label")
    assert labels.ledger.label == labels.queries == 3 * 260
    assert labels.accuracy > labels.majority
    data = divulge.datasets.load("diabetes")
    model = RandomForestRegressor(30, random_state=0).fit(*data.train)
    risk = divulge.attributes.attack(model, *data.train, column="bmi", names=data.columns, bins=4)
    assert risk.quantity
    assert len(risk.values) == 4
    assert risk.advantage > 0


@pytest.mark.slow
def test_one_hot_columns_are_one_attribute(recalled: Any) -> None:
    _, X, y = recalled
    hot = np.column_stack([X[:, 0] == value for value in range(3)] + [X[:, 1:]]).astype(float)
    forest = RandomForestClassifier(50, random_state=0).fit(hot, y)
    risk = divulge.attributes.attack(forest, hot, y, column=[0, 1, 2])
    assert risk.column == (0, 1, 2)
    assert len(risk.values) == 3
    assert risk.advantage.low > 0


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    rng, held = np.random.default_rng(0), []
    for _ in range(400):
        both = rng.random((80, 2)) < [0.6, 0.5]
        _, low, high = advantage(both[:, 0][None], both[:, 1][None])
        held.append(low <= 0.1 <= high)
    assert np.mean(held) >= 0.94
    paired = stats.ttest_rel(both[:, 0] + 0.0, both[:, 1] + 0.0).confidence_interval()
    assert high == pytest.approx(paired.high + 1 / 80, abs=5e-3)


def test_the_conditional_logit_is_a_logistic_regression_on_differences() -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(300, 2, 2))
    own = (rng.random(300) < 1 / (1 + np.exp(-(features[:, 1] - features[:, 0]) @ [1.0, -0.5]))).astype(int)
    found = imputation.weights(features, own)
    reference = LogisticRegression(C=0.5 / imputation.PENALTY, fit_intercept=False, tol=1e-8)
    expected = reference.fit(features[:, 1] - features[:, 0], own).coef_[0]
    assert found == pytest.approx(expected, abs=1e-3)


def test_a_number_with_an_interval_survives_a_process(own: Any) -> None:
    assert tuple(pickle.loads(pickle.dumps(own.advantage))) == tuple(own.advantage)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"column": 9}, "from 0 to 4"),
        ({"column": "age"}, "no names"),
        ({"column": "age", "names": ["a", "b", "c", "d", "e"]}, "no column 'age'"),
        ({"column": [0, 0]}, "different ones"),
        ({"column": []}, "names one column"),
        ({"column": 0, "method": "best"}, "method is one of"),
        ({"column": 0, "bins": 1}, "bins"),
        ({"column": 0, "groups": [1]}, "subgroup"),
        ({"column": 0, "non_members": 3}, "non_members"),
    ],
)
def test_options_that_do_not_fit(recalled: Any, change: Any, sentence: str) -> None:
    with pytest.raises(DivulgeError, match=sentence):
        divulge.attributes.attack(*recalled, **change)


def test_records_that_do_not_fit(recalled: Any) -> None:
    forest, X, y = recalled
    constant = X.copy()
    constant[:, 2] = 1.0
    for rows, labels, sentence in (
        (constant, y, "nothing to infer"), (X[:5], y[:5], "at least 30"), (X, y[:9], "labels of shape"),
        (X, y + 7, "was not fitted with the label"),
    ):  # fmt: skip
        with pytest.raises(DivulgeError, match=sentence):
            divulge.attributes.attack(forest, rows, labels, column=2)


@pytest.mark.slow
def test_weights_say_at_least_as_much_as_answers() -> None:
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.integers(0, 2, 80), rng.normal(size=(80, 6))]).astype(float)
    y = rng.integers(0, 2, 80)  # nothing to learn, so it memorises
    model = divulge.Recipe(widths=[7, 64, 2], epochs=300, learning_rate=0.5, seed=0).train(X, y)
    answers, weights = (
        divulge.attributes.attack(model, X, y, column=0, access=access)  # type: ignore[arg-type]
        for access in ("value", "weights")
    )
    assert weights.queries == answers.queries == 160
    assert weights.accuracy >= answers.accuracy - 0.05
    assert weights.success


@pytest.mark.slow
def test_all_columns_or_those_named_without_the_constant_ones(recalled: Any) -> None:
    _, X, y = recalled
    wide = np.column_stack([X[:, :2], np.ones(len(X))])
    model = RandomForestClassifier(10, random_state=0).fit(wide, y)
    names = ("kind", "size", "constant")
    found = divulge.attributes.attack_columns(model, wide, y, names=names, bins=2)
    assert list(found) == ["kind", "size"]
    assert found["kind"].advantage == divulge.attributes.attack(model, wide, y, column=0).advantage
    assert list(divulge.attributes.attack_columns(model, wide, y, columns=["size"], names=names, bins=2)) == ["size"]
    with pytest.raises(DivulgeError, match="No column varies"):
        divulge.attributes.attack_columns(model, np.ones((50, 3)), y[:50])


def test_draws_that_disagree_widen_the_interval() -> None:
    rng = np.random.default_rng(0)
    right = rng.random((3, 200)) < 0.6
    steady, shifted = np.zeros((3, 200), bool), right.copy()
    shifted[0], shifted[2] = True, False
    assert advantage(shifted, steady).high - float(advantage(shifted, steady)) > 2 * (
        advantage(right, steady).high - float(advantage(right, steady))
    )

"""Membership attacks on real models: what they find, what they do not, what they cost, and what they refuse."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.neighbors import KNeighborsClassifier

import divulge
from divulge import membership
from divulge.auditing.probes.membership import _title, outcome_of
from divulge.core.errors import DivulgeError, InvalidInput
from divulge.membership import calibration

Data = tuple[tuple[Any, Any], tuple[Any, Any]]


def halves(name: str, seed: int = 0) -> Data:
    data = divulge.datasets.load(name)
    X = torch.cat([data.train.X, data.test.X]).double().numpy()
    y = torch.cat([data.train.y, data.test.y]).numpy()
    order = np.random.default_rng(seed).permutation(len(X))
    first, second = order[: len(X) // 2], order[len(X) // 2 :]
    return (X[first], y[first]), (X[second], y[second])


@pytest.fixture(autouse=True)
def _small_forests(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is promised here does not hang on the size of the quantile regression."""
    monkeypatch.setattr(calibration, "TREES", 20)


@pytest.fixture(scope="module")
def cancer() -> Data:
    return halves("breast-cancer")


@pytest.fixture(scope="module")
def forest(cancer: Data) -> RandomForestClassifier:
    return RandomForestClassifier(60, random_state=0).fit(*cancer[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["loss", "confidence", "quantile", "combined", "rmia", "rmia-offline", "lira", "lira-offline"]
)
def test_every_method_finds_the_members_of_a_forest(cancer: Data, forest: Any, method: Any) -> None:
    risk = divulge.membership.attack(
        forest, *cancer, method=method, train=RandomForestClassifier(60), shadows=4, check_distribution=False
    )
    assert risk.auc > 0.55
    assert risk.success, risk.reason
    assert risk.method == method
    assert risk.scores.shape == (len(cancer[0][1]),)
    assert risk.ledger.value == risk.queries == len(cancer[0][1]) + len(cancer[1][1])


@pytest.mark.slow
def test_reference_models_make_the_attack_stronger_and_auto_uses_them(cancer: Data, forest: Any) -> None:
    alone = divulge.membership.attack(forest, *cancer)
    beside = divulge.membership.attack(forest, *cancer, train=forest)
    assert (alone.method, beside.method) == ("combined", "rmia")
    assert beside.auc > alone.auc + 0.05
    assert beside.epsilon > 0
    assert any("reference models" in note for note in alone.notes)


@pytest.mark.slow
def test_without_reference_models_auto_is_hardly_below_the_best_single_score() -> None:
    """Summed over models of different kinds: on each of them another score is the best."""
    behind = []
    for seed in range(2):
        inside, outside = halves("digits", seed)
        sides = (inside[0][:400], inside[1][:400]), (outside[0][:400], outside[1][:400])
        noise = np.random.default_rng(seed).integers(0, 3, 400)
        for y in (sides[0][1], np.where(noise == 0, (sides[0][1] + 1) % 10, sides[0][1])):  # true and wrong labels
            own = sides[0][0], y
            model = RandomForestClassifier(20, random_state=seed).fit(*own)
            found = {
                method: divulge.membership.attack(model, own, sides[1], method=method, check_distribution=False).auc  # type: ignore[arg-type]
                for method in ("loss", "confidence", "quantile", "auto")
            }
            behind.append(found["auto"] - max(found[method] for method in ("loss", "confidence", "quantile")))
    assert np.mean(behind) > -0.005


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_combination_finds_nothing_where_there_is_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(900, 4)), rng.integers(0, 2, 900)
    model = RandomForestClassifier(20, random_state=0).fit(X[:300], y[:300])  # neither side was in it
    risk = divulge.membership.attack(model, (X[300:600], y[300:600]), (X[600:], y[600:]), check_distribution=False)
    assert risk.method == "combined"
    assert not risk.success
    assert risk.epsilon < 0.7


@pytest.mark.slow
def test_a_seed_fixes_everything(cancer: Data, forest: Any) -> None:
    first, second = (
        divulge.membership.attack(forest, *cancer, train=forest, shadows=2, seed=5).as_dict() for _ in range(2)
    )
    assert first | {"seconds": 0} == second | {"seconds": 0}


@pytest.mark.slow
def test_the_result_has_rates_controls_classes_and_the_most_exposed(cancer: Data, forest: Any, tmp_path: Path) -> None:
    groups = tuple(np.where(X[:, 0] > np.median(X[:, 0]), "large", "small") for X, _ in cancer)
    risk = divulge.membership.attack(forest, *cancer, method="loss", groups=groups)
    rate, low, high = risk.tpr(0.1)
    assert 0 <= low <= rate <= high <= 1
    assert risk.control[1] < 0.5 < risk.control[2]
    assert risk.distribution[1] < 0.55
    assert set(risk.by_class) == {"0", "1"}
    assert set(risk.by_group) == {"large", "small"}
    worst = risk.worst(5)
    assert risk.scores[worst].tolist() == sorted(risk.scores.tolist(), reverse=True)[:5]
    assert risk.false_positive_rates()[worst].max() <= risk.false_positive_rates().mean()
    assert set(risk.kinds) == {"outlier", "rare", "mislabelled", "duplicate"}
    risk.save(tmp_path)
    assert np.load(tmp_path / "arrays.npz")["scores"].tolist() == risk.scores.tolist()
    assert risk.picture(tmp_path / "roc.png").stat().st_size > 1000


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_a_model_of_other_records_gives_nobody_away(cancer: Data, seed: int) -> None:
    (X, y), (U, v) = halves("breast-cancer", seed)
    stranger = RandomForestClassifier(40, random_state=seed).fit(U[:140], v[:140])
    risk = divulge.membership.attack(
        stranger, (X, y), (U[140:], v[140:]), train=stranger, shadows=2, seed=seed, check_distribution=False
    )
    assert risk.auc_interval[0] < 0.52
    assert risk.epsilon < 0.7


@pytest.mark.slow
def test_exact_recall_is_found_with_labels_alone() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(400, 6)), rng.integers(0, 2, 400)
    model = KNeighborsClassifier(1).fit(X[:200], y[:200])  # noise labels: members are right, others are guesses
    risk = divulge.membership.attack(model, (X[:200], y[:200]), (X[200:], y[200:]), access="label")
    assert risk.method == "label"
    assert risk.auc > 0.7
    assert risk.ledger.label == risk.queries == 400 * 25


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["exact answers", "rounded probabilities"])
def test_records_that_the_model_never_saw_are_not_told_apart_where_answers_are_all_alike(kind: str) -> None:
    draw = np.random.default_rng(0)
    X = draw.normal(size=(360, 6))
    w = np.linspace(-1.0, 1.5, 6)

    def exact(Z: Any) -> Any:
        return np.round(np.asarray(Z) @ w, 1)

    def rounded(Z: Any) -> Any:
        p = np.round(1 / (1 + np.exp(-8 * (np.asarray(Z) @ w))), 3)
        return np.column_stack([1 - p, p])

    model = exact if kind == "exact answers" else rounded
    y = exact(X) if kind == "exact answers" else rounded(X).argmax(axis=1)
    for first in (np.arange(180), np.argsort(np.abs(X @ w))[::2]):  # in any order, and with other answers
        rest = np.setdiff1d(np.arange(360), first)
        risk = divulge.membership.attack(model, (X[first], y[first]), (X[rest], y[rest]))
        assert not risk.success
        assert risk.auc == pytest.approx(0.5, abs=0.1)


def test_a_regression_gives_its_members_away_by_its_errors() -> None:
    inside, outside = halves("diabetes")
    model = RandomForestRegressor(40, random_state=0).fit(*inside)
    for method in ("loss", "rmia", "lira"):
        risk = divulge.membership.attack(
            model, inside, outside, train=RandomForestRegressor(20), shadows=2, method=method,  # type: ignore[arg-type]
            check_distribution=False,
        )  # fmt: skip
        assert risk.auc > 0.75
        assert risk.facts["task"] == "regression"
        assert risk.by_class == {}


@pytest.mark.slow
def test_networks_recipes_functions_and_weights() -> None:
    inside, outside = halves("digits")
    few = (inside[0][:250], inside[1][:250]), (outside[0][:250], outside[1][:250])
    recipe = divulge.Recipe(widths=[64, 64, 10], epochs=60, batch_size=50, learning_rate=0.2, seed=3)
    network = recipe.train(*few[0])

    def train(X: Any, y: Any, seed: int) -> object:
        return divulge.Recipe(widths=[64, 64, 10], epochs=60, batch_size=50, learning_rate=0.2, seed=seed).train(X, y)

    options: dict[str, Any] = {"shadows": 4, "check_distribution": False}
    by_recipe = divulge.membership.attack(network, *few, train=recipe, **options)
    by_function = divulge.membership.attack(network, *few, train=train, **options)
    assert by_recipe.scores == pytest.approx(by_function.scores, abs=2e-3)  # trained at once, and one by one
    assert by_recipe.auc > 0.6
    gradients = divulge.membership.attack(network, *few, method="gradient", access="weights", check_distribution=False)
    assert gradients.queries == 0
    assert gradients.auc > 0.5


@pytest.mark.slow
def test_a_copy_tells_of_members_what_the_answers_carried(cancer: Data, forest: Any) -> None:
    options: dict[str, Any] = {"train": forest, "shadows": 2}
    same = divulge.membership.on_copy(forest, forest, *cancer, **options)
    assert same.difference.value == 0
    assert (same.shared, same.correlation) == (1.0, pytest.approx(1.0))
    assert same.copy.auc == same.endpoint.auc
    stranger = RandomForestClassifier(30, random_state=1).fit(*cancer[1])  # it has seen the others instead
    turned = divulge.membership.on_copy(forest, stranger, *cancer, method="loss")
    assert turned.difference.high < 0
    assert not turned.success
    assert "difference" in turned.as_dict()
    assert turned.queries == len(cancer[0][1]) + len(cancer[1][1])  # the copy is asked for nothing


def test_a_killed_run_goes_on_from_the_models_that_it_kept(cancer: Data, forest: Any, tmp_path: Path) -> None:
    trained = []

    def train(X: Any, y: Any, seed: int) -> object:
        if len(trained) == 2:
            raise KeyboardInterrupt
        trained.append(seed)
        return RandomForestClassifier(10, random_state=seed % 1000).fit(X, y)

    options: dict[str, Any] = {"train": train, "shadows": 3, "folder": tmp_path, "check_distribution": False}
    with pytest.raises(KeyboardInterrupt):
        divulge.membership.attack(forest, *cancer, **options)
    trained.clear()
    divulge.membership.attack(forest, *cancer, **options)
    assert len(trained) == 1
    with pytest.raises(InvalidInput, match="another run"):
        divulge.membership.attack(forest, *cancer, **options, seed=1)


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_records_of_both_sides_are_refused_and_a_coincidence_is_left_out(cancer: Data, forest: Any) -> None:
    (X, y), (U, v) = cancer
    with pytest.raises(InvalidInput, match="50 of the 335 non-members are members too"):
        divulge.membership.attack(forest, (X, y), (np.concatenate([U, X[:50]]), np.concatenate([v, y[:50]])))
    twice = np.concatenate([U, X[:1]]), np.concatenate([v, y[:1]])
    risk = divulge.membership.attack(forest, (X, y), twice, check_distribution=False)
    assert len(risk.non_member_scores) == len(U)
    assert "1 non-members equal a member" in risk.notes[0]


@pytest.mark.slow
def test_another_distribution_is_named_and_is_not_called_a_success() -> None:
    rng = np.random.default_rng(0)
    X, U = rng.normal(0, 1, (300, 4)), rng.normal(1, 1, (300, 4))
    y, v = (X[:, 0] > 0).astype(int), (U[:, 0] > 0).astype(int)
    model = RandomForestClassifier(30, max_depth=3, random_state=0).fit(X, y)
    risk = divulge.membership.attack(model, (X, y), (U, v))
    assert risk.distribution[1] > 0.6
    assert any("differ in distribution" in note for note in risk.notes)
    assert not risk.success


@pytest.mark.slow
def test_too_few_records_for_the_rate_asked(cancer: Data, forest: Any) -> None:
    risk = divulge.membership.attack(forest, *cancer, check_distribution=False)
    with pytest.raises(InvalidInput, match=r"285 non-members cannot show a false positive rate of 0\.001"):
        risk.tpr(0.001)
    assert risk.as_dict()["tpr_at_fpr"]["0.001"] is None
    assert any("too few" in note for note in risk.notes)
    with pytest.raises(InvalidInput, match="at least 10"):
        divulge.membership.attack(forest, (cancer[0][0][:3], cancer[0][1][:3]), cancer[1])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda X, y: (X, y + 0.5), "of another kind"),
        (lambda X, y: (X, y.astype(str)), "of another kind"),
        (lambda X, y: (X, y + 5), "was not fitted with the label"),
        (lambda X, y: (X[:, :5], y), "have 5 columns; 30 are expected"),
        (lambda X, y: (X, y[:9]), "rows and labels of shape"),
        (lambda X, y: X, "come as"),
    ],
)
def test_non_members_of_another_kind(cancer: Data, forest: Any, change: Any, sentence: str) -> None:
    with pytest.raises(DivulgeError, match=sentence):
        divulge.membership.attack(forest, cancer[0], change(*cancer[1]))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"method": "rmia"}, "train="),
        ({"method": "best"}, "method is one of"),
        ({"method": "lira", "access": "label", "train": 3}, "labels only"),
        ({"train": 3}, "a Recipe, an estimator"),
        ({"shadows": 0}, "shadows is a whole number"),
        ({"method": "gradient"}, "weights"),
        ({"groups": ([1], [2])}, "subgroup"),
        ({"delta": 2}, "delta"),
        ({"train": lambda X, y: None}, "train\\(X, y, seed\\)"),
    ],
)
def test_options_that_do_not_fit(cancer: Data, forest: Any, options: Any, sentence: str) -> None:
    with pytest.raises(DivulgeError, match=sentence):
        divulge.membership.attack(forest, *cancer, **options)


class TestOneExposedClass:
    """A model that remembers its positives only: told apart in that class, drowned among the others."""

    @pytest.fixture(scope="class")
    def risk(self):
        rng = np.random.default_rng(3)
        X, U = rng.standard_normal((2, 1000, 4))
        y, v = ((np.arange(1000) % 20 == 0).astype(int) for _ in range(2))
        remembered = {row.tobytes() for row in X[y == 1]}

        def answer(rows):
            sure = np.array([row.tobytes() in remembered for row in np.asarray(rows, dtype=np.float64)])
            return np.where(sure, 4.0, rng.standard_normal(len(rows)))

        return membership.attack(answer, (X, y), (U, v), method="loss", seed=0)

    def test_members_as_a_whole_are_hardly_told_apart_and_the_class_is_named(self, risk):
        assert risk.auc < 0.6
        assert risk.exposed_class == "1"
        assert risk.by_class["1"]["auc_at_least"] > 0.8
        assert risk.success

    def test_the_audit_says_so(self, risk):
        assert outcome_of(risk) == "succeeded"
        whole = dataclasses.replace(risk, auc_interval=(0.48, 0.55))
        assert "of class 1" in _title(SimpleNamespace(estimator=None), "succeeded", whole)
        assert "in that class" in _title(SimpleNamespace(estimator=None), "succeeded", whole)


@pytest.mark.parametrize("seed", range(20))
def test_no_class_is_called_exposed_where_nothing_was_learned(seed):
    rng = np.random.default_rng([seed, 9])
    X, U = rng.standard_normal((2, 600, 4))
    y, v = rng.integers(0, 6, (2, 600))
    answer = lambda rows: rows @ np.ones((4, 6)) * np.arange(6)  # noqa: E731
    risk = membership.attack(answer, (X, y), (U, v), method="loss", seed=seed)
    assert risk.exposed_class is None


def test_a_class_of_few_records_is_not_judged_alone():
    rng = np.random.default_rng(0)
    X, U = rng.standard_normal((2, 100, 3))
    y = np.r_[np.ones(10, dtype=int), np.zeros(90, dtype=int)]
    risk = membership.attack(lambda rows: rows @ np.ones(3), (X, y), (U, y), method="loss", seed=0)
    assert risk.by_class["1"]["auc_at_least"] is None

"""The price of protection: points that mean what they say, limits, and recommendations that keep them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import divulge
from divulge.auditing.sentences import price as sentences
from divulge.core.errors import InvalidInput, UnsupportedModel
from divulge.core.roc import Estimate
from divulge.protection import Limits, membership_bound, price
from divulge.protection.price_curve import PricePoint
from divulge.protection.price_study import PriceStudy, _Risk, _within
from divulge.protection.private_training import Sides, training_of


def _point(epsilon: float, found: float, high: float, rebuilt: float | None = 0.0) -> PricePoint:
    return PricePoint(
        epsilon, 1.0, 0.9, 0.9, 0.95, 0.0, Estimate(found, 0.0, high), 0.5, 0.1, None, Estimate(0.1, 0.0, 0.2), 0.2,
        None if rebuilt is None else Estimate(rebuilt, 0.0, rebuilt), None, None,
    )  # fmt: skip


def test_limits_are_read_and_refused() -> None:
    assert Limits.parse("0.05@0.01", None) == Limits((0.05, 0.01))
    for wrong in ("0.05", "a@b", "0.05@", "0.01@0.05", "2@0.1"):
        with pytest.raises(InvalidInput):
            Limits.parse(wrong, None)
    with pytest.raises(InvalidInput):
        Limits.parse(None, 1.5)


def test_the_largest_epsilon_within_the_limits_is_recommended_and_doubt_is_said() -> None:
    limits = Limits((0.05, 0.01), 0.05)
    assert _within(_point(1.0, 0.04, 0.05), limits) == (True, True, [])
    assert _within(_point(1.0, 0.04, 0.09), limits) == (True, False, [])
    assert _within(_point(1.0, 0.06, 0.09), limits)[0] is False
    assert _within(_point(1.0, 0.04, 0.05, rebuilt=0.5), limits)[0] is False
    assert _within(_point(1.0, 0.04, 0.05, rebuilt=None), limits)[2] == ["No reconstruction attack ran."]


class _Scores:
    auc = 0.5

    def __init__(self, inside: list[float], outside: list[float]) -> None:
        self.scores, self.non_member_scores = np.array(inside), np.array(outside)


def test_the_right_one_among_ten_is_found_in_a_tenth_by_chance_and_always_by_a_clear_score() -> None:
    draw = np.random.default_rng(0)
    blind = _Risk(_Scores(list(draw.normal(size=4000)), list(draw.normal(size=4000)))).candidates()
    assert blind.value == pytest.approx(0.1, abs=0.01)
    assert _Risk(_Scores([2.0] * 30, [1.0] * 30)).candidates().value == 1.0
    assert _Risk(_Scores([1.0] * 30, [1.0] * 30)).candidates().value == pytest.approx(0.1)  # ties are a coin


@pytest.mark.slow
def test_a_pipeline_gives_every_record_up_without_noise_and_none_with_it() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    X = X[:, :8]
    order = np.random.default_rng(0).permutation(len(X))
    X, y = X[order], y[order]
    curve = price(
        make_pipeline(StandardScaler(), LogisticRegression(tol=1e-10, max_iter=1000)), (X[:200], y[:200]),
        (X[200:], y[200:]), epsilons=[1.0, 32.0], limits=Limits((0.05, 0.01), 0.2), kappa=0.02, runs=1, targets=8,
        shadows=0,
    )  # fmt: skip
    low, high, plain = curve.points
    assert (plain.rebuilt.value, low.rebuilt.value, high.rebuilt.value) == (1.0, 0.0, 0.0)  # type: ignore[union-attr]
    assert low.balanced_accuracy < plain.balanced_accuracy
    assert 0.5 < high.auc <= 1
    assert low.membership_bound < 0.05 < high.membership_bound < plain.membership_bound == 1.0
    proven = curve.recommendation
    mu = 1 / proven.proven_noise  # type: ignore[operator]
    assert membership_bound(0.01, gaussian=mu) == pytest.approx(0.05, rel=1e-6)
    assert 1.0 < proven.proven < 32.0  # type: ignore[operator]
    assert proven.covers == ("membership", "reconstruction")
    assert curve.plot()[:4] == b"\x89PNG"
    assert curve.as_dict()["points"][-1]["epsilon"] is None


@pytest.mark.slow
@pytest.mark.parametrize("batch", [None, 60], ids=["full batches", "mini-batches"])
def test_a_recipe_is_measured_with_both_kinds_of_batches(batch: int | None) -> None:
    pytest.importorskip("opacus")
    X, y = load_digits(return_X_y=True, n_class=3)
    X, recipe = X / 16, divulge.Recipe(widths=[64, 3], epochs=15, learning_rate=0.5, batch_size=batch)
    curve = price(
        recipe, (X[:240], y[:240]), (X[240:], y[240:]), epsilons=[8.0], limits=Limits((0.05, 0.01)), runs=1, targets=5,
        shadows=0, units="data", hidden_columns=0,
    )  # fmt: skip
    assert curve.points[0].balanced_accuracy > 0.5
    assert curve.points[0].rebuilt is not None
    assert (curve.points[-1].rebuilt_error < 0.5) == (batch is None)  # type: ignore[operator]  # samples hide a record
    assert not curve.notes
    assert ("full batches" in curve.recipe) == (batch is None)
    assert curve.points[0].membership_bound < 1
    assert curve.recommendation.proven is not None


def test_a_function_of_the_user_is_bounded_by_epsilon_and_delta_alone() -> None:
    draw = np.random.default_rng(0)
    X, y = draw.normal(size=(80, 3)), draw.integers(0, 2, 80)

    def train(rows: object, labels: object, epsilon: float, seed: int) -> LogisticRegression:
        return LogisticRegression().fit(np.asarray(rows), np.asarray(labels))

    curve = price(
        train,
        (X[:40], y[:40]),
        (X[40:], y[40:]),
        epsilons=[2.0],
        limits=Limits((0.2, 0.1)),
        runs=1,
        shadows=0,
        hidden_columns=0,
    )
    assert curve.points[0].membership_bound == pytest.approx(membership_bound(0.1, epsilon=2.0, delta=1 / 400))
    assert math.isinf(curve.points[-1].epsilon)
    assert curve.recommendation.proven < 2.0  # type: ignore[operator]
    assert curve.recommendation.covers == ("membership",)


@pytest.mark.parametrize(
    ("limits", "kappa", "covers", "kept"),
    [
        (Limits((0.05, 0.01), 0.05), 0.01, ("membership", "reconstruction"), "the accepted limits hold"),
        (Limits((0.05, 0.01), 0.05), 0.11, ("membership",),
         "the accepted limit on membership, not that on reconstructions, holds"),
        (Limits(None, 0.05), 0.01, ("reconstruction",), "the accepted limit holds"),
        (Limits(None, 0.05), 0.11, (), None),
    ],
)  # fmt: skip
def test_a_limit_that_no_theorem_keeps_is_not_said_to_hold(
    limits: Limits, kappa: float, covers: tuple[str, ...], kept: str | None
) -> None:
    rows, labels = torch.zeros(40, 2), torch.arange(40) % 2
    sides = Sides(rows, labels, rows, labels)
    training = training_of(LogisticRegression(), sides, delta=1e-3)
    curve = PriceStudy(training, sides, limits, kappa, 1, 0, 0, 0).curve([])
    assert curve.recommendation.covers == covers
    if kept is None:
        assert sentences.title(curve) == "No epsilon keeps the accepted limits by a theorem"
        assert "may be 11.0%" in curve.recommendation.untested[0]
    else:
        assert sentences.title(curve).startswith(f"By theorems {kept} up to epsilon ")


def test_what_cannot_be_measured_is_refused_in_one_sentence() -> None:
    X, y = np.zeros((40, 2)), np.arange(40) % 2
    with pytest.raises(UnsupportedModel, match="RandomForest"):
        price(RandomForestClassifier(), (X, y), (X, y))
    with pytest.raises(InvalidInput, match="at least 30"):
        price(LogisticRegression(), (X[:5], y[:5]), (X, y))
    with pytest.raises(InvalidInput, match="classes"):
        price(LogisticRegression(), (X, y + 0.5), (X, y))
    assert PriceStudy.__doc__

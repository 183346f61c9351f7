"""Guards at the endpoint: attacks behind them, their price, and the rows that are safe to answer."""

from __future__ import annotations

import pytest
import torch

from divulge import datasets
from divulge.errors import InvalidInput
from divulge.extraction.curves import LearningCurve, Point
from divulge.oracles import oracle
from divulge.protection.endpoint import Left, Scene, learning_curve, left_by, price_of, query_budget
from divulge.training import Recipe


@pytest.fixture(scope="module")
def scene() -> Scene:
    digits = datasets.load("digits")
    recipe = Recipe(widths=[64, 16, 10], optimiser="adam", learning_rate=3e-3, epochs=60, batch_size=100, seed=4)
    model = recipe.train(*digits.train).double()
    return Scene(
        lambda access: oracle(model, access=access), digits.train.X[:300].double(), digits.test.X.double(),
        rows=model[0].weight.detach(), learned_from=60, steps=200, seed=4,
    )  # fmt: skip


def test_without_a_guard_the_copy_is_exact_and_the_span_whole(scene: Scene) -> None:
    for attack in ("exact copy from gradients", "exact copy from values"):
        left = left_by("", attack, scene)
        assert left.exact
        assert left.score == 1.0
        assert left.queries > 100
    assert left_by("", "span from gradients", scene).score == 1.0
    assert price_of("", scene).decisions_changed == 0


def test_rounding_stops_the_exact_copy_but_not_the_learned_one(scene: Scene) -> None:
    assert not left_by("round:2", "exact copy from values", scene, budget=20_000).exact
    plain, rounded = (left_by(name, "learned copy from values", scene) for name in ("", "round:2"))
    assert rounded.score >= plain.score - 0.05
    price = price_of("round:2", scene)
    assert price.decisions_changed < 0.01
    assert 0 < price.answer_error < 0.01


def test_behind_labels_only_the_label_client_learns(scene: Scene) -> None:
    refused = left_by("label", "exact copy from values", scene)
    assert refused.note.startswith("refused")
    assert (refused.score, refused.queries) == (0.0, 0)
    left = left_by("label", "learned copy from labels", scene)
    assert left.score > 0.6
    assert left.queries >= 60
    assert price_of("label", scene).answer_error is None


def test_a_budget_ends_the_attack_and_smoothing_costs_its_owner(scene: Scene) -> None:
    left = left_by("", "exact copy from values", scene, budget=50)
    assert "budget" in left.note
    assert left.queries <= 50
    assert price_of("smoothgrad:0.3:7", scene, access="gradient").computed >= 7


def test_noise_beyond_the_answers_spread_changes_decisions(scene: Scene) -> None:
    spread = float(scene.make("value").value(scene.judges).std())
    price = price_of(f"noise:{3 * spread}", scene)
    assert price.decisions_changed > 0.3
    assert price.answer_error == pytest.approx(3, rel=0.1)


def test_span_recovery_needs_a_truth_to_be_judged_by(scene: Scene) -> None:
    blind = Scene(scene.make, scene.pool, scene.judges)
    with pytest.raises(InvalidInput, match="true span"):
        left_by("", "span from gradients", blind)


def test_the_query_budget_is_set_by_whichever_attack_is_there_first(scene: Scene) -> None:
    points = [Point("values", q, 0, a, None, 0.0) for q, a in ((10, 0.5), (100, 0.9), (1000, 0.99))]
    curve = LearningCurve(tuple(points), 100)
    exact = [Left("", "exact copy from values", 1.0, True, 2500), Left("", "exact copy from gradients", 0.2, False, 9)]
    assert query_budget(0.9, exact=exact, curve=curve).rows == 99
    reached = query_budget(0.995, exact=exact, curve=curve)
    assert (reached.rows, reached.attack) == (2499, "exact copy from values")
    cheaper = Left("", "exact copy from values", 1.0, True, 2400)
    assert query_budget(0.995, exact=[cheaper, *exact]).rows == 2399
    assert query_budget(0.995, curve=curve).rows is None
    between = query_budget(0.945, curve=curve).rows
    assert between == pytest.approx(100 * 10 ** (0.045 / 0.09), abs=1)
    with pytest.raises(InvalidInput, match="share of equal decisions"):
        query_budget(1.5)


def test_a_learning_curve_behind_a_guard_rises(scene: Scene) -> None:
    curve = learning_curve("round:3", scene, (15, 120), attacks=["learned copy from values"])
    assert curve.mean("values", 120)[0] > curve.mean("values", 15)[0]
    assert torch.tensor([point.seconds for point in curve.points]).min() > 0

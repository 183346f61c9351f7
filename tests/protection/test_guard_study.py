"""Guards at the endpoint: attacks behind them, their price, and the rows that are safe to answer."""

from __future__ import annotations

import pytest
import torch

from divulge import datasets, extraction
from divulge.core.errors import InvalidInput
from divulge.extraction.students.learning_curve import LearningCurve, Point
from divulge.oracles import oracle
from divulge.protection.guard_study import (
    AttackOutcome,
    StudySetup,
    guard_cost,
    learning_curve,
    query_budget,
    run_attack,
)
from divulge.training import Recipe


@pytest.fixture(scope="module")
def study() -> StudySetup:
    digits = datasets.load("digits")
    recipe = Recipe(widths=[64, 16, 10], optimiser="adam", learning_rate=3e-3, epochs=60, batch_size=100, seed=4)
    model = recipe.train(*digits.train).double()
    return StudySetup(
        lambda access: oracle(model, access=access), digits.train.X[:300].double(), digits.test.X.double(),
        rows=model[0].weight.detach(), learned_from=60, steps=200, seed=4,
    )  # fmt: skip


@pytest.mark.slow
def test_without_a_guard_the_copy_is_exact_and_the_span_whole(study: StudySetup) -> None:
    for attack in ("exact copy from gradients", "exact copy from values"):
        left = run_attack("", attack, study)
        assert left.exact
        assert left.score == 1.0
        alone = getattr(extraction, attack.replace("exact copy ", "").replace(" ", "_"))(
            study.make("gradient"), inputs=study.pool, seed=study.seed
        )
        assert (left.queries, left.verification) == (alone.queries, alone.verification.total)
        assert left.verification > 1000  # rows that no client who copies would ask
    assert run_attack("", "span from gradients", study).score == 1.0
    assert guard_cost("", study).decisions_changed == 0


@pytest.mark.slow
def test_rounding_stops_the_exact_copy_but_not_the_learned_one(study: StudySetup) -> None:
    assert not run_attack("round:2", "exact copy from values", study, budget=20_000).exact
    plain, rounded = (run_attack(name, "learned copy from values", study) for name in ("", "round:2"))
    assert rounded.score >= plain.score - 0.05
    price = guard_cost("round:2", study)
    assert price.decisions_changed < 0.01
    assert 0 < price.answer_error < 0.01


@pytest.mark.slow
def test_behind_labels_only_the_label_client_learns(study: StudySetup) -> None:
    refused = run_attack("label", "exact copy from values", study)
    assert refused.note.startswith("refused")
    assert (refused.score, refused.queries) == (0.0, 0)
    left = run_attack("label", "learned copy from labels", study)
    assert left.score > 0.6
    assert left.queries >= 60
    assert guard_cost("label", study).answer_error is None


def test_a_budget_ends_the_attack_and_smoothing_costs_its_owner(study: StudySetup) -> None:
    left = run_attack("", "exact copy from values", study, budget=50)
    assert "budget" in left.note
    assert left.queries <= 50
    assert guard_cost("smoothgrad:0.3:7", study, access="gradient").computed >= 7


def test_noise_beyond_the_answers_spread_changes_decisions(study: StudySetup) -> None:
    spread = float(study.make("value").value(study.judges).std())
    price = guard_cost(f"noise:{3 * spread}", study)
    assert price.decisions_changed > 0.3
    assert price.answer_error == pytest.approx(3, rel=0.1)


def test_span_recovery_needs_a_truth_to_be_judged_by(study: StudySetup) -> None:
    blind = StudySetup(study.make, study.pool, study.judges)
    with pytest.raises(InvalidInput, match="true span"):
        run_attack("", "span from gradients", blind)


def test_the_query_budget_is_set_by_whichever_attack_is_there_first(study: StudySetup) -> None:
    points = [Point("values", q, 0, a, None, 0.0) for q, a in ((10, 0.5), (100, 0.9), (1000, 0.99))]
    curve = LearningCurve(tuple(points), 100)
    exact = [
        AttackOutcome("", "exact copy from values", 1.0, True, 2500),
        AttackOutcome("", "exact copy from gradients", 0.2, False, 9),
    ]
    assert query_budget(0.9, exact=exact, curve=curve).rows == 99
    reached = query_budget(0.995, exact=exact, curve=curve)
    assert (reached.rows, reached.attack) == (2499, "exact copy from values")
    cheaper = AttackOutcome("", "exact copy from values", 1.0, True, 2400)
    assert query_budget(0.995, exact=[cheaper, *exact]).rows == 2399
    assert query_budget(0.995, curve=curve).rows is None
    between = query_budget(0.945, curve=curve).rows
    assert between == pytest.approx(100 * 10 ** (0.045 / 0.09), abs=1)
    with pytest.raises(InvalidInput, match="share of equal decisions"):
        query_budget(1.5)


@pytest.mark.slow
def test_a_learning_curve_behind_a_guard_rises(study: StudySetup) -> None:
    curve = learning_curve("round:3", study, (15, 120), attacks=["learned copy from values"])
    assert curve.mean("values", 120)[0] > curve.mean("values", 15)[0]
    assert torch.tensor([point.seconds for point in curve.points]).min() > 0

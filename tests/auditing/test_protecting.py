"""The audit's last question: the noise that is enough, the guards and the safe number of rows, each with its price."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
import torch
from torch import nn

import divulge
from divulge import datasets
from divulge.auditing import registry
from divulge.auditing.probes import dp_training, guards
from divulge.protection.guard_study import AttackOutcome, GuardCost
from divulge.report import schema
from divulge.report.findings import Finding

DIGITS = datasets.load("digits")


@pytest.fixture
def audit(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(registry, "available_probes", lambda: [*dp_training.PROBES, *guards.PROBES])
    monkeypatch.setattr(guards, "COUNTS", (20, 60))
    monkeypatch.setattr(guards, "QUERIES", 40)
    monkeypatch.setattr(guards, "STEPS", 60)
    return divulge.audit


def found(report: Any, name: str) -> Finding:
    return next(finding for finding in report.findings if finding.name == name)


def small(**options: Any) -> divulge.Recipe:
    return divulge.Recipe(widths=[64, 8, 10], learning_rate=0.5, epochs=60, **options)


@pytest.mark.slow
def test_noise_comes_with_the_accuracy_it_leaves_and_guards_with_what_they_change(audit: Any) -> None:
    recipe = small(activation="relu", precision="float64")
    X, y = (part[:300] for part in DIGITS.train)
    report = audit(recipe.train(X, y), training_data=(X, y), unseen=tuple(DIGITS.test), recipe=recipe, time=90)
    noise = found(report, "protection-needed")
    assert next(row[0] for row in noise.tables[0].rows) == "tight"
    assert len(noise.tables[0].rows) == 5
    assert noise.measures["accuracy_on_unseen_records_if_private"] < noise.measures["accuracy_on_unseen_records"]
    assert "Measured price" in noise.meaning
    guards = found(report, "protection-at-the-endpoint")
    tried = {row[0] for row in guards.tables[0].rows}
    assert {"none", "round:2", "top:1", "label"} <= tried
    exact = guards.tables[0].rows[0]
    assert (exact[3], exact[4]) == ("exact copy from values", 1.0)
    cheapest = guards.measures["rows_of_the_cheapest_copy"]
    assert cheapest is None or 0 < cheapest <= exact[5]
    assert sum("honest decisions change" in told for told in (*guards.remedies, *guards.notes)) == len(tried) - 1
    jsonschema.validate(json.loads(report.json()), schema())


@pytest.mark.slow
def test_batches_set_the_schedule(audit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "available_probes", lambda: list(dp_training.PROBES))
    recipe = small(activation="tanh", batch_size=300)
    report = audit(recipe.initial_model(), training_data=DIGITS, recipe=recipe, time=30)
    noise = found(report, "protection-needed")
    assert noise.measures["sampling_rate"] == pytest.approx(1 / 5)
    assert noise.measures["training_steps"] == 60 * 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"access": "label"}, "no numbers"),
        ({"guard": "round:3"}, "round:3"),
        ({"training_data": None, "unseen": None}, "no data"),
    ],
)
def test_what_cannot_be_measured_says_why(audit: Any, options: dict[str, Any], reason: str) -> None:
    model = small().initial_model()
    given = {"training_data": (DIGITS.train.X[:40], DIGITS.train.y[:40]), **options}
    report = audit(model, time=20, **given)
    skipped = {skip.name: skip.reason for skip in report.skipped}
    assert reason in skipped["protection-at-the-endpoint"]


@pytest.mark.slow
def test_a_quantity_has_no_decisions_to_judge_by(audit: Any) -> None:
    X = torch.rand(30, 5)
    report = audit(nn.Linear(5, 1), training_data=(X, X.sum(dim=1)), time=20)
    assert "quantity" in next(skip.reason for skip in report.skipped)


@pytest.mark.slow
def test_the_table_ends_where_the_time_does(audit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from divulge.auditing.probes.probe import TimeUp
    from divulge.protection import guard_study

    real = guard_study.run_attack

    def slow(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "label":
            raise TimeUp("The seconds were not enough.")
        return real(name, *arguments, **options)

    monkeypatch.setattr(guard_study, "run_attack", slow)
    report = audit(small(activation="tanh").initial_model(), training_data=DIGITS, access="value", time=90)
    guards = found(report, "protection-at-the-endpoint")
    assert "ends there" in guards.notes[-1]
    assert "round:2" in {row[0] for row in guards.tables[0].rows}


def test_no_limit_is_recommended_before_the_learning_curve_is_there(
    audit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from divulge.auditing.probes.probe import TimeUp
    from divulge.protection import guard_study

    def slow(*arguments: Any, **options: Any) -> Any:
        raise TimeUp("The seconds were not enough.")

    monkeypatch.setattr(registry, "available_probes", lambda: list(guards.PROBES))
    monkeypatch.setattr(
        guard_study, "run_attack", lambda name, attack, setup: guard_study.AttackOutcome(name, attack, 0.99, True, 179)
    )
    monkeypatch.setattr(guard_study, "learning_curve", slow)
    report = audit(small().initial_model(), training_data=DIGITS, access="value", time=30)
    assert report.findings == []
    assert report.skipped[0].tried


def outcome(guard: str, attack: str, score: float, judged_on: int = 500) -> Any:
    return AttackOutcome(guard, attack, score, False, 100, judged_on=judged_on)


COST = GuardCost("", 0.0, 0.0, 1.0)
LEARNED = "learned copy from labels"


@pytest.mark.parametrize(
    ("behind", "said"),
    [
        ([outcome("round:2", LEARNED, 0.7)], "the best attack"),
        ([outcome("round:2", LEARNED, 0.895, judged_on=86)], "is not settled"),
        ([outcome("round:2", LEARNED, 0.7), outcome("round:2", "learned copy from values", 0.95)], "is not enough"),
    ],
)
def test_a_guard_holds_only_where_enough_rows_judged_every_attack(behind: list[Any], said: str) -> None:
    plain = [outcome("", "exact copy from values", 1.0)]
    stops, others = guards._verdicts({"": (COST, plain), "round:2": (COST, behind)})
    assert said in (stops + others)[0]
    assert bool(stops) == (said == "the best attack")


def test_labels_are_no_protection_until_the_exact_copy_from_labels_has_run() -> None:
    plain = [outcome("", guards.VALUES, 1.0)]
    without = {"": (COST, plain), "label": (COST, [outcome("label", LEARNED, 0.6)])}
    assert guards._verdicts(without)[0] == []
    assert guards._cheapest_guard(without) is None
    tried = {"": (COST, plain), "label": (COST, [outcome("label", LEARNED, 0.6), outcome("label", guards.LABELS, 0.5)])}
    assert len(guards._verdicts(tried)[0]) == 1
    assert guards._cheapest_guard(tried) == "label"

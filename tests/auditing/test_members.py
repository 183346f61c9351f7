"""Membership and hidden columns in an audit: what fits, what is found, and what the report says of it."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier

import divulge
from divulge.auditing import AuditOptions, registry
from divulge.auditing.opening import open_target
from divulge.auditing.probes import attributes, copy_membership, informed, membership
from divulge.core import progress
from divulge.report import schema


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "available_probes", lambda: [*membership.PROBES, *attributes.PROBES])


def people(seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    kind = rng.integers(1, 4, 300)
    X = np.column_stack([kind, rng.normal(size=(300, 3))]).astype(float)
    return X, 1 + ((kind == 3) ^ (rng.random(300) < 0.2)).astype(int)


@pytest.mark.slow
def test_a_forest_that_recalls_its_records_gives_away_members_and_a_column(both: None) -> None:
    model = RandomForestClassifier(50, random_state=0).fit(*people(0))  # labels 1 and 2
    report = divulge.audit(model, training_data=people(0), unseen=people(1), time=200, columns=["kind", "a", "b", "c"])
    found = {finding.name: finding for finding in report.findings}
    member, column = found["membership"], found["attribute-inference"]
    assert (member.outcome, member.severity) == ("succeeded", "high")
    assert member.measures["auc"] > 0.7
    assert member.ledger.value >= 600
    assert column.outcome in ("succeeded", "partly")
    assert column.tables[0].rows[0][0] == "kind"
    assert "tell who was in the training set" in " ".join(
        report.sentences if hasattr(report, "sentences") else [report.html()]
    )
    jsonschema.validate(json.loads(report.json()), schema())


def test_they_say_what_they_miss(both: None) -> None:
    model = RandomForestClassifier(10, random_state=0).fit(*people(0))
    skipped = {skip.name: skip.reason for skip in divulge.audit(model, time=10).skipped}
    assert "training data was not given" in skipped["membership"]
    assert "training data was not given" in skipped["attribute-inference"]
    skipped = {s.name: s.reason for s in divulge.audit(model, training_data=people(0), time=60).skipped}
    assert "with labels of the same classes, were not given" in skipped["membership"]


@pytest.mark.slow
def test_a_copy_is_asked_who_was_in_it_beside_the_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "available_probes", lambda: list(copy_membership.PROBES))
    model = RandomForestClassifier(50, random_state=0).fit(*people(0))
    report = divulge.audit(model, training_data=people(0), unseen=people(1), time=200)
    [found] = report.findings
    assert found.name == "membership-on-a-copy"
    assert found.measures["auc_at_the_endpoint"] > 0.7 > found.measures["auc_on_the_copy"]
    assert [row[0] for row in found.tables[0].rows] == ["endpoint", "learned copy"]
    assert (
        found.ledger.value >= 150 + 450
    )  # half of the unseen for the copy; members and the other half at the endpoint
    assert "learned copy" in report.html()
    few = tuple(part[:100] for part in people(1))
    [skipped] = divulge.audit(model, training_data=people(0), unseen=few, time=20).skipped
    assert "at least 200 unseen records" in skipped.reason


def test_the_most_exposed_records_come_first_to_the_insider(monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.linear_model import Ridge

    rng = np.random.default_rng(0)
    X, U = rng.normal(size=(2, 60, 4))
    y, v = (rows @ np.arange(4.0) + 0.1 * rng.normal(size=60) for rows in (X, U))
    monkeypatch.setattr(registry, "available_probes", lambda: list(informed.PROBES[:1]))
    model = Ridge(alpha=0.1).fit(X, y)
    [found] = divulge.audit(model, training_data=(X, y), unseen=(U, v), time=120).findings
    rows = [row[0] for row in found.tables[0].rows]
    assert rows[:3] == np.argsort((model.predict(X) - y) ** 2)[:3].tolist()  # fitted best
    assert len(set(rows)) == 5
    assert any(f"Records {rows[0]}, {rows[1]}, {rows[2]} came first" in note for note in found.notes)


@pytest.mark.slow
@pytest.mark.parametrize("private", [False, True])
def test_the_informed_adversary_or_canaries_stand_beside_the_attack(
    monkeypatch: pytest.MonkeyPatch, private: bool
) -> None:
    from divulge.training import Privacy

    monkeypatch.setattr(registry, "available_probes", lambda: list(membership.PROBES))
    X, y = divulge.datasets.load("digits").train
    privacy = Privacy(noise_multiplier=4.0, noise_seed=0) if private else None
    recipe = divulge.Recipe(widths=[64, 32, 10], epochs=5, learning_rate=0.5, privacy=privacy)
    model = recipe.train(X[:150], y[:150])
    report = divulge.audit(
        model, training_data=(X[:150], y[:150]), unseen=(X[150:300], y[150:300]), recipe=recipe, time=300
    )
    [found] = report.findings
    if private:
        assert found.measures["epsilon_by_canaries_at_least"] > 0
        assert any("canaries in one more training run" in note and "is claimed" in note for note in found.notes)
    else:
        assert found.measures["informed_adversary_is_certain_of"] == "3 of 3"
        assert any("It knows more than any other membership attack" in note for note in found.notes)


@pytest.mark.parametrize("names", [(1, 2), ("ill", "well")])
def test_classes_are_named_as_the_estimator_names_them(names: tuple[Any, Any]) -> None:
    sides = [(X, np.array(names)[y - 1]) for X, y in (people(0), people(1))]
    model = RandomForestClassifier(10, random_state=0).fit(*sides[0])
    target = open_target(model, sides[0], AuditOptions(unseen=sides[1]))
    finding = membership.PROBES[0].run(target, 20.0)
    table = next(table for table in finding.tables if table.caption == "Classes")
    assert {row[0] for row in table.rows} == {str(name) for name in names}


@pytest.mark.slow
def test_the_first_answer_survives_reference_models_that_the_time_is_too_short_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where it ends while one epoch on a few rows is timed."""
    generator = torch.Generator().manual_seed(0)
    X, unseen = (torch.randn(200, 6, generator=generator) for _ in range(2))
    recipe = divulge.Recipe(widths=[6, 8, 2], loss="cross-entropy", epochs=3, seed=0)
    y, unseen_y = ((rows[:, 0] > 0).long() for rows in (X, unseen))
    target = open_target(recipe.train(X, y), (X, y), AuditOptions(recipe=recipe, unseen=(unseen, unseen_y)))

    def endless(target: Any) -> float:
        while True:
            progress.report("training", 0, 1)

    for timed in (endless, lambda target: 1e9):
        monkeypatch.setattr(membership, "_reference_seconds", timed)
        finding = membership._run(target, 5.0)
        assert any("did not allow reference models" in note for note in finding.notes)

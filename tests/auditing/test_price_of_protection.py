"""The price of protection in an audit: measured when limits are given, with a recommendation that keeps them."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from divulge.auditing import AuditOptions
from divulge.auditing.opening import open_target
from divulge.auditing.probes import price_of_protection
from divulge.auditing.target import Target
from divulge.core.errors import InvalidInput


def _target(**options: object) -> Target:
    X, y = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    X, y = X[order, :4], y[order]
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X[:120], y[:120])
    chosen = AuditOptions(unseen=(X[120:260], y[120:260]), **options)  # type: ignore[arg-type]
    return open_target(model, (X[:120], y[:120]), chosen)


def test_it_is_measured_only_where_somebody_says_what_they_accept() -> None:
    probe = price_of_protection.PROBES[0]
    assert "--accept-membership-tpr" in probe.obstacle(_target())
    assert probe.obstacle(_target(accept_membership_tpr="0.05@0.01")) == ""
    with pytest.raises(InvalidInput, match="RATE@FALSE-POSITIVES"):
        AuditOptions(accept_membership_tpr="five percent")


@pytest.mark.slow
def test_the_finding_recommends_an_epsilon_with_its_price_and_what_attacks_got(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(price_of_protection, "EPSILONS", (float("inf"), 8.0))
    target = _target(accept_membership_tpr="0.1@0.05", accept_reconstruction=0.5)
    finding = price_of_protection.PROBES[0].run(target, 3600.0)
    epsilon = finding.measures["recommended_epsilon_by_theorems"]
    rows = {row[0]: row for row in finding.tables[0].rows}
    assert set(rows) == {epsilon, 8.0, "none"}
    assert rows["none"][8] == 1.0  # every record is rebuilt from the model as it is
    assert rows[epsilon][8] <= rows[epsilon][9] <= 0.5 + 1e-6  # no more than proven, and proven as accepted
    assert rows[epsilon][5] <= 0.1 + 1e-6  # the accepted share of members, by a theorem
    assert finding.is_advice
    assert finding.title.startswith("By theorems the accepted limits hold up to epsilon")
    assert "Measured price" in finding.remedies[0]
    assert finding.pictures[0].png[:4] == b"\x89PNG"
    assert any("scaler" in note for note in finding.notes)

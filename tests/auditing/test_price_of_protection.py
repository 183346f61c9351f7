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
from divulge.auditing.sentences import price as sentences
from divulge.auditing.target import Target
from divulge.core.errors import InvalidInput
from divulge.core.roc import Estimate
from divulge.protection.price_curve import Limits, PriceCurve, PricePoint, Recommendation


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


def _point(epsilon: float, found: float, proven: float) -> PricePoint:
    share = Estimate(found, max(0.0, found - 0.03), found + 0.05)
    return PricePoint(
        epsilon, 1.0, 0.9, 0.8, 0.99, 0.0, share, 0.5, proven, None, Estimate(0.1, 0.0, 0.2), 0.2, None, None, None
    )


def _curve(*points: PricePoint) -> PriceCurve:
    chosen = Recommendation(None, None, None, certain=False)
    return PriceCurve(points, Limits((0.05, 0.01)), chosen, 1e-5, 0.01, "a recipe")


def test_a_measured_share_above_the_proven_one_is_explained() -> None:
    assert sentences.by_chance(_curve(_point(1.0, 0.02, 0.03)), 169) == ()
    (said,) = sentences.by_chance(_curve(_point(0.5, 0.03, 0.016), _point(4.0, 0.03, 0.11)), 169)
    assert said.startswith("At epsilon 0.5 the measured share")
    assert "169 unseen records" in said
    assert "0% to 8.0%" in said


def test_the_words_for_the_plot_are_its_own_figures() -> None:
    said = sentences.alt(_curve(_point(0.5, 0.03, 0.016), _point(4.0, 0.07, 0.11)))
    assert said.startswith("At epsilon 0.5 and 4: balanced accuracy 80.0% and 80.0%")
    assert "members found 3.0% and 7.0%" in said
    assert "insider" not in said  # not measured

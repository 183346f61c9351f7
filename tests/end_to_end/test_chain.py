"""The chain over a live server: values only, then a copy, then training pictures."""

from __future__ import annotations

from pathlib import Path

import pytest

import divulge
from divulge import datasets, serving
from divulge.auditing import registry
from divulge.training import margin


@pytest.mark.slow
def test_a_prediction_endpoint_gives_up_training_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = [p for p in registry.available_probes() if p.name in ("copy-from-values", "chain-to-training-data")]
    monkeypatch.setattr(registry, "available_probes", lambda: chain)
    digits = datasets.load("digits").binary()
    matched = []
    for seed in range(2):
        X, y = digits.subset(10, seed=seed).train
        mean = X.double().mean(dim=0)
        start = margin.network([64, 48, 1], first_scale=3e-3, balanced=True, seed=seed)
        model = margin.to_margin(start, X.double() - mean, y).model
        with serving.running(model) as url:
            report = divulge.audit(
                url, training_data=(X.double() - mean, y), unseen=digits.test.X.double() - mean, mean=mean,
                shape=digits.shape, time=240, seed=seed, out=tmp_path / str(seed), journal=tmp_path / f"{seed}.db",
            )  # fmt: skip
        findings = {finding.name: finding for finding in report.findings}
        copied, chained = findings["copy-from-values"], findings.get("chain-to-training-data")
        assert copied.outcome == "succeeded", copied.certainty
        assert copied.measures["worst_difference"] < 1e-6 * copied.measures["output_spread"]
        assert chained is not None, [skip.reason for skip in report.skipped]
        assert chained.measures["control"] < 0.02
        assert chained.ledger.value > 0
        assert chained.ledger.gradient == 0
        matched.append(chained.measures["matched"])
    assert sum(matched) / len(matched) >= 3, matched

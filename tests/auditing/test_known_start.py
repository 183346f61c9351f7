"""The audit of whoever holds the model and the checkpoint that it was trained from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import divulge
from divulge.auditing import AuditOptions
from divulge.auditing.opening import open_target
from divulge.auditing.probes.known_start import PROBES
from divulge.core.errors import InvalidInput, UntrustedFile

RECIPE = divulge.Recipe(widths=[64, 300, 10], learning_rate=0.05, momentum=0.9, epochs=60, seed=1)
PROBE = PROBES[0]


@pytest.mark.slow
def test_the_difference_to_the_start_is_attacked_and_judged() -> None:
    X, y = divulge.datasets.load("digits").train
    X = X.float().flatten(1) / (16 if float(X.max()) > 1 else 1)
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(0))
    train, unseen = order[:8], order[500:700]
    model = RECIPE.train(X[train], y[train])
    options = AuditOptions(unseen=X[unseen], start=RECIPE, shape=(1, 8, 8))
    target = open_target(model, (X[train], y[train]), options)
    assert PROBE.obstacle(target) == ""
    finding = PROBE.run(target, 60.0)
    assert finding.severity in ("high", "medium")
    assert finding.measures["rank"] == 8
    assert finding.measures["matched"] >= 4
    assert "--start BASE" in finding.command
    assert "the weights and the start" in finding.meaning
    assert not any("told the number" in note for note in finding.notes)


def test_where_the_difference_shows_no_number_the_attack_is_told_it() -> None:
    X, y = divulge.datasets.load("digits").train
    X = X.float().flatten(1) / (16 if float(X.max()) > 1 else 1)
    recipe = divulge.Recipe(**{**RECIPE.as_dict(), "optimiser": "adam", "learning_rate": 1e-3, "epochs": 30})
    options = AuditOptions(unseen=X[500:700], start=recipe, shape=(1, 8, 8))
    target = open_target(recipe.train(X[:4], y[:4]), (X[:4], y[:4]), options)
    finding = PROBE.run(target, 60.0)
    assert any("told the number of records" in note and "Adam" in note for note in finding.notes)
    assert finding.measures["rank"] == 4
    assert "--n 4" in finding.command


@pytest.mark.parametrize("trusted", [True, False])
def test_a_pickled_start_is_opened_only_if_it_is_trusted(trusted: bool, tmp_path: Path) -> None:
    torch.save(RECIPE.initial_model(), tmp_path / "base.pt")
    X, y = torch.rand(8, 64), torch.arange(8)
    options = AuditOptions(start=tmp_path / "base.pt", trust_pickle=trusted)
    target = open_target(RECIPE.initial_model(), (X, y), options)
    with pytest.raises(InvalidInput if trusted else UntrustedFile, match="the same" if trusted else "trust"):
        PROBE.run(target, 60.0)


def test_without_a_start_the_probe_says_so() -> None:
    target = open_target(RECIPE.initial_model(), None, AuditOptions())
    assert "no start was given" in PROBE.obstacle(target)

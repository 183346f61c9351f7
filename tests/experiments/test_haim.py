"""The experiment on small targets of scikit-learn's digits: every part runs, and its counts mean what they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from experiments.papers import haim, haim_circle
from experiments.plan import Plan

from divulge.models.weight_matrices import read
from divulge.reconstruction import PaperSettings

SMALL = haim.Case("digits", 6, hidden=(60, 40))


@pytest.fixture(scope="module")
def there() -> haim.Target:
    return haim.target(SMALL, 0)


def test_a_target_has_half_of_each_class_and_is_trained_to_the_end(there: haim.Target) -> None:
    assert int(there.y.sum()) == 3
    assert torch.allclose(there.X.mean(dim=0), torch.zeros(64, dtype=torch.float64), atol=1e-7)
    with torch.no_grad():
        margins = (2 * there.y - 1) * there.model(there.X.float())[:, 0]
    assert float(torch.nn.functional.softplus(-margins).mean()) < 2e-6


def test_a_disguised_copy_answers_as_before(there: haim.Target) -> None:
    network = read(there.model)
    copy = haim.disguised(network, 1)
    assert torch.allclose(copy(there.X), network(there.X))
    assert not torch.allclose(copy.weights[0], network.weights[0])


def test_plain_descent_needs_many_times_the_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(haim, "FEWER", 4)
    told = haim.trainings(SMALL, 0, seconds=60)
    assert told["plain_epochs"] == 4 * told["epochs"]
    assert told["plain_loss"] > 1e-6
    assert 1 / told["plain_loss"] <= 1 + told["plain_epochs"] * 1e6 / told["plain_at_least"]  # no faster than the bound


def test_points_on_the_circle_are_counted_once() -> None:
    X = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    samples = torch.tensor([[1.0, 0.01], [1.0, 0.02], [5.0, 5.0]])
    assert haim_circle.hits(samples, X) == 1
    assert haim_circle.extra(samples, X) == 2


@pytest.mark.slow
def test_the_whole_experiment_writes_what_it_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("CASES", {SMALL: 1}), ("LARGE", {}), ("RACE", SMALL), ("COPIED", SMALL),
        ("TRAINING", {False: (SMALL, 1.0)}), ("SETS", 1), ("PRINTED", {"digits": PaperSettings(iterations=50)}),
    ):  # fmt: skip
        monkeypatch.setattr(haim, name, value)
    monkeypatch.setattr(haim_circle, "WIDTH", 200)
    monkeypatch.setattr(haim_circle, "LOSS", 0.3)
    monkeypatch.setattr(haim_circle, "PRINTED_SECONDS", 1.0)
    result = haim.run(Plan(tmp_path))
    assert json.loads((tmp_path / "haim.json").read_text())["cases"][0]["case"] == SMALL.name
    (row,) = result["cases"]
    assert row["blind"]["alike"] >= row["broken"]["alike"]
    assert all(copy["rebalanced"]["residual"] < copy["copy"]["residual"] for copy in result["copies"])
    assert haim.run(Plan(tmp_path)) == json.loads((tmp_path / "haim.json").read_text())  # nothing twice
    assert (tmp_path / "figure2.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "haim.md").read_text()
    assert "plain gradient descent" in text
    assert "broken weights" in text
    assert row["themselves"]["alike"] == SMALL.n

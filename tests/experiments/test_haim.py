"""The experiment on small targets of scikit-learn's digits: every part runs, and its counts mean what they say."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from experiments.papers import haim, haim_circle, haim_counts, haim_printed, haim_targets
from experiments.plan import Plan

from divulge.models.weight_matrices import read
from divulge.reconstruction import PaperSettings
from divulge.training import margin

SMALL = haim.Case("digits", 6, hidden=(60, 40))


@pytest.fixture(scope="module")
def there() -> haim_targets.Target:
    return haim.target(SMALL, 0)


def test_a_target_has_half_of_each_class_and_is_trained_to_the_end(there: haim_targets.Target) -> None:
    assert int(there.y.sum()) == 3
    assert torch.allclose(there.X.mean(dim=0), torch.zeros(64, dtype=torch.float64), atol=1e-7)
    with torch.no_grad():
        margins = (2 * there.y - 1) * there.model(there.X.float())[:, 0]
    assert float(torch.nn.functional.softplus(-margins).mean()) < 2e-6


def test_a_disguised_copy_answers_as_before(there: haim_targets.Target) -> None:
    network = read(there.model)
    disguise = haim.disguised(network, 1)
    assert torch.allclose(disguise(there.X), network(there.X))
    assert not torch.allclose(disguise.weights[0], network.weights[0])


def test_plain_descent_needs_many_times_the_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(haim, "FEWER", 4)
    told = haim.trainings(SMALL, 0, seconds=60)
    assert told["plain_epochs"] == 4 * told["epochs"]
    assert told["plain_loss"] > 1e-6
    assert 1 / told["plain_loss"] <= 1 + told["plain_epochs"] * 1e6 / told["plain_at_least"]  # no faster than the bound


@pytest.mark.parametrize("square", [False, True], ids=["logistic", "squared error"])
def test_descent_in_the_span_of_the_inputs_is_descent(there: haim_targets.Target, square: bool) -> None:
    case = replace(SMALL, epochs=15, batch=2, decay=0.5, square=square)
    start = margin.network([64, 60, 40, 1], seed=1, first_scale=0.1)
    plain = copy.deepcopy(start)
    signs, generator = (2 * there.y - 1).double(), torch.Generator().manual_seed(4)
    for _ in range(case.epochs):
        for rows in torch.split(torch.randperm(len(there.X), generator=generator), case.batch):
            out = plain(there.X[rows])[:, 0]
            loss = (out - signs[rows]).square() if square else torch.nn.functional.softplus(-signs[rows] * out)
            plain.zero_grad()
            loss.mean().backward()
            with torch.no_grad():
                for parameter in plain.parameters():
                    assert parameter.grad is not None
                    parameter -= haim_targets.BATCH_RATE * (parameter.grad + case.decay * parameter)
    found = haim_targets.descended(start, there.X, there.y, case, seed=4)
    for ours, theirs in zip(found.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(ours.double(), theirs, atol=1e-4 * float(theirs.detach().abs().max()))


def test_a_case_with_several_classes_has_an_output_for_each() -> None:
    case = replace(SMALL, n=20, classes=10)
    made = haim.target(case, 0)
    assert case.name == "digits, n = 20, 60-40, 10 classes"
    assert made.y.bincount().tolist() == [2] * 10
    assert made.model(made.X[:1].float()).shape == (1, 10)
    assert made.reached["train_loss"] < 2e-6
    assert made.reached["test_accuracy"] > 0.4


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
    for name, value in (
        ("CASE", SMALL), ("PICTURES", (SMALL,)), ("TRIALS", 3), ("SHORT", 20), ("STOPS", (10, 30)), ("STARTS", 8),
        ("STEPS", 5),
    ):  # fmt: skip
        monkeypatch.setattr(haim_printed, name, value)
    result = haim.run(Plan(tmp_path))
    assert json.loads((tmp_path / "haim.json").read_text())["cases"][0]["case"] == SMALL.name
    (row,) = result["cases"]
    assert row["blind"]["alike"] >= row["broken"]["alike"]
    assert all(row["rebalanced"]["residual"] < row["copy"]["residual"] for row in result["copies"])
    assert haim.run(Plan(tmp_path)) == json.loads((tmp_path / "haim.json").read_text())  # nothing twice
    assert (tmp_path / "figure2.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "haim.md").read_text()
    assert "plain gradient descent" in text
    assert "broken weights" in text
    assert row["themselves"]["alike"] == SMALL.n
    curve = result["search of appendix B.2"]["curve"]
    assert [row["iterations"] for row in curve] == [10, 30]
    assert result["search of appendix B.2"]["trials"] == 3
    assert "printed, 30 iterations" in text
    (baseline,) = result["baselines on pictures"]
    assert baseline["first-layer weights"]["samples"] == 2 * 60
    assert baseline["model inversion"]["samples"] == 8
    assert "| model inversion | digits" in text


def test_samples_are_right_where_they_are_the_best_of_a_training_picture(there: haim_targets.Target) -> None:
    """Twice the same pictures and noise: only one of each pair is the best, and none of the noise."""
    noise = torch.rand(5, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - there.mean
    told = haim_counts.scored(torch.cat([there.X, there.X, noise]), there, 0.0)
    assert told["samples"] == 2 * len(there.X) + 5
    assert told["right"] == told["above_threshold"] == told["alike"] == len(there.X)


def test_a_case_attacked_for_longer_is_measured_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def attacked(case: haim.Case, seed: int, out: Path) -> dict[str, object]:
        return {"case": case.name, "seed": seed, "seconds": case.seconds}

    monkeypatch.setattr(haim, "attacked", attacked)
    monkeypatch.setattr(haim, "LARGE", {})
    plan = Plan(tmp_path, only=(SMALL.name,), loud=False)
    for cases in ({replace(SMALL, seconds=1.0): 2}, {replace(SMALL, seconds=1.0): 2, replace(SMALL, seconds=2.0): 1}):
        monkeypatch.setattr(haim, "CASES", cases)
        rows = haim.run(plan)["cases"]
    assert [(row["seed"], row["seconds"]) for row in rows] == [(0, 1.0), (1, 1.0), (0, 2.0)]

"""The learning curve counts, averages and compares as it says, and the paper's figures are made from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from experiments.papers import milli, targets
from experiments.plan import Plan
from torch import nn

import divulge
from divulge.core.errors import BudgetExhausted, InvalidInput
from divulge.extraction.students.learning_curve import LearningCurve, Point, learning_curve


def curve() -> LearningCurve:
    """Gradients reach 90 % at 10 queries, values halfway (in the logarithm) between 100 and 10,000."""
    made = {("gradients", 10): 0.9, ("values", 10): 0.2, ("values", 100): 0.8, ("values", 10_000): 1.0}
    points = [
        Point(kind, q, seed, mean + shift, None, 1.0)
        for (kind, q), mean in made.items()
        for seed, shift in enumerate((-0.01, 0.01))
    ]
    return LearningCurve(tuple(points), 100)


def test_the_ratio_is_read_off_at_equal_agreement() -> None:
    assert curve().needed("gradients", 0.9 - 1e-9) == 10
    assert curve().needed("values", 0.9) == pytest.approx(1000)
    assert curve().ratio(0.9 - 1e-9) == pytest.approx(100, rel=1e-3)
    assert curve().needed("gradients", 0.99) is None
    assert curve().ratio(0.99) is None


def test_the_band_is_that_of_the_mean() -> None:
    mean, band = curve().mean("values", 100)
    assert mean == pytest.approx(0.8)
    assert band == pytest.approx(1.96 * 0.01)  # two repeats 0.02 apart: deviation 0.0141, over the root of two
    assert len(curve().table()) == 4


def test_what_was_not_measured_is_said() -> None:
    with pytest.raises(InvalidInput, match="no agreement of values at 7"):
        curve().mean("values", 7)
    with pytest.raises(InvalidInput, match="no accuracy"):
        curve().mean("values", 10, "accuracy")


@pytest.fixture(scope="module")
def regression() -> nn.Module:
    digits = divulge.datasets.load("digits")
    recipe = divulge.Recipe(
        widths=[64, 10], loss="cross-entropy", optimiser="adam", learning_rate=0.05, epochs=5, seed=0
    )
    return recipe.train(*digits.train)


@pytest.mark.slow
def test_gradients_need_fewer_queries_and_the_oracle_counts_them(regression: nn.Module, tmp_path: Path) -> None:
    digits = divulge.datasets.load("digits")
    oracle = divulge.oracle(regression, access="gradient")
    made = learning_curve(
        oracle, "softmax", digits.train.X, test=(digits.test.X, digits.test.y), queries=(20, 10), repeats=2, steps=100
    )
    assert oracle.ledger.gradient == oracle.ledger.value == 2 * (10 + 20)
    assert oracle.ledger.label == len(digits.test.X)
    assert made.mean("gradients", 10)[0] > 0.99
    assert made.mean("gradients", 10)[0] > made.mean("values", 20)[0]
    assert made.mean("gradients", 10, "accuracy")[0] > 0.8
    assert made.plot(tmp_path / "curve.png").stat().st_size > 1000
    json.dumps(made.as_dict())


@pytest.mark.slow
def test_without_true_labels_only_agreement_is_known(regression: nn.Module) -> None:
    digits = divulge.datasets.load("digits")
    oracle = divulge.oracle(regression, access="gradient")
    made = learning_curve(
        oracle, "softmax", digits.train.X, test=digits.test.X, queries=[10], kinds=["gradients"], repeats=1
    )
    assert made.points[0].accuracy is None


STUDENT = {"architecture": "mlp", "widths": [64, 16, 16, 10]}
"""Two hidden layers, so that it is fitted."""


@pytest.mark.slow
def test_repeats_on_workers_are_those_made_here(regression: nn.Module) -> None:
    digits = divulge.datasets.load("digits")
    curves = []
    for workers in (None, 2):
        oracle = divulge.oracle(regression, access="gradient")
        curves.append(
            learning_curve(
                oracle, STUDENT, digits.train.X, test=digits.test.X, queries=[12], kinds=["gradients"], repeats=2,
                steps=5, ensemble=2, unlabelled=digits.train.X[:50], workers=workers,
            )
        )  # fmt: skip
        assert oracle.ledger.gradient == 2 * 12  # asked here, whoever learns from it
    assert [(p.seed, p.agreement) for p in curves[0].points] == [(p.seed, p.agreement) for p in curves[1].points]


@pytest.mark.slow
def test_students_of_an_ensemble_are_fitted_on_a_dask_cluster(regression: nn.Module) -> None:
    distributed = pytest.importorskip("distributed")
    X = divulge.datasets.load("digits").train.X
    oracle = divulge.oracle(regression, access="gradient")
    options: dict[str, object] = {"queries": 12, "choose": "active", "steps": 6, "ensemble": 2, "unlabelled": X[:50]}
    here = divulge.extraction.by_training(oracle, STUDENT, X, **options)  # type: ignore[arg-type]
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=True, dashboard_address=None, worker_dashboard_address=None
    ) as cluster:
        there = divulge.extraction.by_training(  # type: ignore[arg-type]
            oracle, STUDENT, X, workers=cluster.scheduler_address, **options
        )
    assert there.queries == here.queries == 12
    torch.testing.assert_close(there.model(X), here.model(X))


def test_a_budget_that_ends_keeps_the_curve_so_far(regression: nn.Module) -> None:
    X = divulge.datasets.load("digits").train.X
    oracle = divulge.oracle(regression, access="gradient", budget=100 + 10 + 10 + 5)
    with pytest.raises(BudgetExhausted) as stopped:
        learning_curve(oracle, "softmax", X, test=X[:100], queries=[10, 20], kinds=["gradients"], repeats=2)
    assert [(point.queries, point.seed) for point in stopped.value.partial.points] == [(10, 0), (10, 1)]
    spent = divulge.oracle(regression, access="gradient", budget=100)
    with pytest.raises(BudgetExhausted):
        learning_curve(spent, "softmax", X, test=X[:100], queries=[10], kinds=["gradients"], repeats=1)


@pytest.mark.parametrize("wrong", [{"kinds": ["labels"]}, {"repeats": 0}, {"queries": []}, {"queries": [0]}])
def test_a_curve_of_nothing_is_refused(regression: nn.Module, wrong: dict[str, object]) -> None:
    X = divulge.datasets.load("digits").test.X
    oracle = divulge.oracle(regression, access="gradient")
    with pytest.raises(InvalidInput, match="curve"):
        learning_curve(oracle, "softmax", X, test=X, **wrong)  # type: ignore[arg-type]
    assert oracle.ledger.total == 0


@pytest.mark.slow
def test_the_papers_figures_are_written_and_a_stopped_run_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DIVULGE_DATA", str(tmp_path / "data"))  # targets are kept beside it
    rows = [
        milli.Row("2", "2-layer, gradients", "digits/one-hidden", [20, 30], small=True),
        milli.Row("2", "2-layer, values", "digits/one-hidden", [20], options={"match": "values", "steps": 20}),
        milli.Row("3", "smoothed", "digits/softmax", [10], student="digits/one-hidden", smooth=1.0, small=True),
        milli.Row("-", "explained", "digits/softmax", [10], explain="saliency", options={"steps": 5}, small=True),
    ]
    monkeypatch.setattr(milli, "ROWS", {row.name: row for row in rows})
    out = tmp_path / "out"
    assert milli.run(Plan(out, loud=False))["points"] == 4
    lines = (out / "points.jsonl").read_text()
    assert milli.run(Plan(out, loud=False))["points"] == 4
    assert (out / "points.jsonl").read_text() == lines  # nothing was measured twice
    results = {(point["row"], point["queries"]): point for point in json.loads((out / "results.json").read_text())}
    assert results["2-layer, gradients", 30]["solved"]
    assert results["2-layer, gradients", 30]["agreement"] > 0.97
    assert "| 2 | 2-layer, gradients | 30 |" in (out / "table.md").read_text()
    assert (out / "figure-2-digits-one-hidden.png").exists()
    milli.add(out, {**results["2-layer, gradients", 30], "agreement": 0.5})  # measured again: the last counts
    assert [point["agreement"] for point in milli.read(out) if point["queries"] == 30] == [0.5]


def test_every_row_of_the_figures_names_a_target_that_exists() -> None:
    assert {row.target for row in milli.ROWS.values()} <= set(targets.TARGETS)
    assert sum(row.figure == "3" for row in milli.ROWS.values()) >= 4
    with pytest.raises(InvalidInput, match="no target"):
        targets.target("mnist/nothing")


@pytest.mark.slow
def test_a_target_is_trained_once_and_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("DIVULGE_DATA", str(tmp_path / "data"))
    first = targets.target("digits/softmax")
    monkeypatch.setattr(targets, "_trained", None)  # a second training would fail
    second = targets.target("digits/softmax")
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    targets.main(["digits/softmax"])
    assert "digits/softmax: 9" in capsys.readouterr().out


@pytest.mark.slow
def test_a_training_that_was_stopped_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def stop(stage: str, done: int, total: int) -> None:
        if done > 300:
            raise KeyboardInterrupt

    whole = targets._trained(targets.TARGETS["digits/softmax"], divulge.datasets.load("digits"), tmp_path / "whole.pt")
    monkeypatch.setenv("DIVULGE_DATA", str(tmp_path / "data"))
    with monkeypatch.context() as stopped:
        stopped.setattr(targets, "report", stop)
        with pytest.raises(KeyboardInterrupt):
            targets.target("digits/softmax")
    kept = tmp_path / "targets" / "digits-softmax" / "unfinished.pt"
    assert torch.load(kept, weights_only=True)["steps"] == 200
    again = targets.target("digits/softmax")
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), whole.parameters(), strict=True))
    assert not kept.exists()

"""The learning curve counts, averages and compares as it says, and the paper's figures are made from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch import nn

import divulge
from divulge.errors import InvalidInput
from divulge.extraction.curves import LearningCurve, Point, learning_curve
from divulge.reproduce import milli


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


def test_without_true_labels_only_agreement_is_known(regression: nn.Module) -> None:
    digits = divulge.datasets.load("digits")
    oracle = divulge.oracle(regression, access="gradient")
    made = learning_curve(
        oracle, "softmax", digits.train.X, test=digits.test.X, queries=[10], kinds=["gradients"], repeats=1
    )
    assert made.points[0].accuracy is None


@pytest.mark.parametrize("wrong", [{"kinds": ["labels"]}, {"repeats": 0}, {"queries": []}, {"queries": [0]}])
def test_a_curve_of_nothing_is_refused(regression: nn.Module, wrong: dict[str, object]) -> None:
    X = divulge.datasets.load("digits").test.X
    oracle = divulge.oracle(regression, access="gradient")
    with pytest.raises(InvalidInput, match="curve"):
        learning_curve(oracle, "softmax", X, test=X, **wrong)  # type: ignore[arg-type]
    assert oracle.ledger.total == 0


def test_the_papers_figures_are_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = [panel.name for panel in milli.experiments(full=True)]
    assert len(names) == len(set(names))
    assert sum(name.startswith("figure 3") for name in names) == 4
    panels = [
        milli.Experiment("figure 2: softmax", "digits", "softmax", "softmax"),
        milli.Experiment("smoothed, Gaussian", "digits", "softmax", "softmax", inputs="gaussian", smooth=1.0),
    ]
    monkeypatch.setattr(milli, "experiments", lambda *, full: panels)
    monkeypatch.setattr(milli, "KINDS", ("gradients", "values"))
    told = milli.run(tmp_path, full=False, seed=0)
    assert told["panels"] == [panel.name for panel in panels]
    results = json.loads((tmp_path / "results.json").read_text())
    assert len(results["figure 2: softmax"]["points"]) == 2 * 3 * 2
    assert "| figure 2: softmax | gradients | 10 |" in (tmp_path / "table.md").read_text()
    assert len(list(tmp_path.glob("*.png"))) == 2

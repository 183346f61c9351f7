"""``divulge extract --method training``: a copy for each number of queries, and every way to say no."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import divulge
from divulge.cli import app

runner = CliRunner()
SOFTMAX = ["--method", "training", "--student", "softmax"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A softmax regression on digits: its copy is solved, so that the command is quick."""
    digits = divulge.datasets.load("digits")
    recipe = divulge.Recipe(
        widths=[64, 10], loss="cross-entropy", optimiser="adam", learning_rate=0.05, epochs=10, seed=0
    )
    return str(divulge.models.save(recipe.train(*digits.train), tmp_path_factory.mktemp("target")))


def test_a_curve_and_the_last_copy(folder: str, tmp_path: Path) -> None:
    out = tmp_path / "copy"
    done = runner.invoke(
        app, ["extract", folder, *SOFTMAX, "--queries", "20,2", "--data", "digits", "--out", str(out), "--json"]
    )
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert [point["queries"] for point in said["points"]] == [2, 20]
    assert said["points"][-1]["accuracy"] > 0.9
    assert json.loads((out / "extraction.json").read_text())["points"] == said["points"]
    X = divulge.datasets.load("digits").test.X
    same = divulge.oracle(str(out)).value(X).double() - divulge.oracle(folder).value(X).double()
    assert float(same.abs().max()) < 1e-3


def test_the_text_says_what_each_number_of_queries_bought(folder: str) -> None:
    done = runner.invoke(app, ["extract", folder, *SOFTMAX, "--queries", "2", "--data", "digits"])
    assert done.exit_code == 0
    assert "2 queries:" in done.stdout
    assert "test labels right" in done.stdout
    blind = runner.invoke(app, ["extract", folder, *SOFTMAX, "--queries", "2"])
    assert "no data to judge it by" in blind.stdout


def test_a_budget_that_ends_exits_4_and_keeps_the_copy(folder: str, tmp_path: Path) -> None:
    out = tmp_path / "copy"
    done = runner.invoke(app, ["extract", folder, *SOFTMAX, "--queries", "2,8", "--budget", "5", "--out", str(out)])
    assert done.exit_code == 4
    assert (out / "model.safetensors").exists()
    assert json.loads((out / "extraction.json").read_text())["points"][-1]["queries"] == 3


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--method", "training"], "--student"),
        ([*SOFTMAX, "--queries", "ten"], "--queries takes numbers"),
        ([*SOFTMAX, "--queries", "0"], "at least 1"),
        ([*SOFTMAX, "--queries", "3", "--data", "nothing"], "no data set"),
        ([*SOFTMAX, "--queries", "3", "--choose", "best"], "choose is one of"),
        (["--method", "training", "--student", "nothing", "--queries", "10"], "no architecture"),
        ([*SOFTMAX, "--queries", "3", "--access", "value"], "fewer than"),
    ],
)
def test_bad_input_exits_2_with_one_sentence(folder: str, arguments: list[str], sentence: str) -> None:
    done = runner.invoke(app, ["extract", folder, *arguments])
    assert done.exit_code == 2
    assert sentence in done.stderr

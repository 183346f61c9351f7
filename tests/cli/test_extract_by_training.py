"""``divulge extract --method training``: a copy for each number of queries, and every way to say no."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import divulge
from divulge import serving
from divulge.cli import app
from divulge.oracles.remote.journal import KEY

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


@pytest.mark.slow
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


def test_a_budget_that_is_spent_before_the_next_number_keeps_the_copy_before_it(folder: str, tmp_path: Path) -> None:
    out = tmp_path / "copy"
    done = runner.invoke(app, ["extract", folder, *SOFTMAX, "--queries", "2,8", "--budget", "2", "--out", str(out)])
    assert done.exit_code == 4
    assert [point["queries"] for point in json.loads((out / "extraction.json").read_text())["points"]] == [2]


@pytest.mark.slow
def test_copies_are_learned_on_workers(folder: str) -> None:
    arguments = [*SOFTMAX, "--queries", "2,20", "--data", "digits", "--json"]
    here, there = (runner.invoke(app, ["extract", folder, *arguments, *more]) for more in ([], ["--workers", "2"]))
    assert there.exit_code == 0, there.output
    said = [[point["accuracy"] for point in json.loads(done.stdout)["points"]] for done in (here, there)]
    assert said[0] == said[1]
    wrong = runner.invoke(app, ["extract", folder, *arguments, "--workers", "many"])
    assert wrong.exit_code == 2
    assert "--workers takes a number" in wrong.stderr


@pytest.mark.slow
def test_an_ensemble_that_learned_again_from_unlabelled_pictures_is_saved_and_opened(
    folder: str, tmp_path: Path
) -> None:
    """Pictures come from the user's own folder, without labels: agreement is asked for, accuracy is not known."""
    pictures, out = tmp_path / "pictures", tmp_path / "copy"
    pictures.mkdir()
    X = divulge.datasets.load("digits").train.X[:60].reshape(-1, 8, 8)
    for number, picture in enumerate(X):
        Image.fromarray((picture * 255).round().to(torch.uint8).numpy()).save(pictures / f"{number:03}.png")
    student = ["--method", "training-paper", "--student", "2-layer", "--ensemble", "2", "--unlabelled", str(pictures)]
    arguments = [
        *student,
        "--queries",
        "12,20",
        "--data",
        str(pictures),
        "--checks",
        "10",
        "--steps",
        "30",
        "--out",
        str(out),
        "--json",
    ]
    done = runner.invoke(app, ["extract", folder, *arguments])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert said["method"] == "training (paper)"
    assert "accuracy" not in said["points"][0]
    assert 0 <= said["points"][0]["agreement"] <= 1
    assert (out / "curve.png").exists()
    answer = divulge.oracle(str(out)).value(divulge.datasets.load("digits").test.X)
    assert answer.shape == (359, 10)
    assert json.loads((out / "model.json").read_text())["architecture"] == "ensemble"


@pytest.mark.slow
def test_a_guard_stands_before_the_target(folder: str) -> None:
    arguments = [*SOFTMAX, "--queries", "12", "--data", "digits", "--guard", "saliency", "--steps", "30", "--json"]
    done = runner.invoke(app, ["extract", folder, *arguments])
    assert done.exit_code == 0, done.output
    assert any("absolute" in note for note in json.loads(done.stdout)["notes"])


@pytest.mark.slow
def test_a_killed_run_goes_on_from_its_journal_and_asks_nothing_it_has_twice(tmp_path: Path) -> None:
    model = divulge.models.build({"architecture": "mlp", "widths": [8, 12, 12, 3]}, seed=4)
    served, journal = divulge.oracle(model, access="gradient"), tmp_path / "answers.db"

    def recorded() -> int:
        with sqlite3.connect(journal) as db:
            tables = db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'responses'").fetchone()[0]
            rows = db.execute("SELECT keys FROM responses").fetchall() if tables else []
        return sum(len(keys) // KEY for (keys,) in rows)

    with serving.running(served, gradients=True) as url:
        student = ["--method", "training", "--student", "softmax", "--journal", str(journal), "--json"]
        command = ["extract", url, *student, "--queries", "10,30", "--steps", "300"]
        first = subprocess.Popen([sys.executable, "-c", "from divulge.cli import main; main()", *command])
        deadline = time.monotonic() + 90
        while not journal.exists() or recorded() < 10:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        first.kill()
        first.wait()
        kept = recorded()
        assert 10 <= kept <= served.ledger.gradient <= 30
        again = runner.invoke(app, command)
        assert again.exit_code == 0, again.output
        assert served.ledger.gradient in (30, 30 + (30 - kept))  # nothing but what was on its way when it died
    assert [point["queries"] for point in json.loads(again.stdout)["points"]][-1] == 30


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
        ([*SOFTMAX, "--queries", "3", "--ensemble", "0"], "ensemble"),
        ([*SOFTMAX, "--queries", "3", "--unlabelled", "nothing"], "no data set"),
        ([*SOFTMAX, "--queries", "3", "--guard", "wall"], "guard"),
    ],
)
def test_bad_input_exits_2_with_one_sentence(folder: str, arguments: list[str], sentence: str) -> None:
    done = runner.invoke(app, ["extract", folder, *arguments])
    assert done.exit_code == 2
    assert sentence in done.stderr

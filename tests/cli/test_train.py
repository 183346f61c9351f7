"""divulge train writes a model that its own recipe and rows repeat bit for bit; divulge data shows what is there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from divulge import Recipe, datasets, models
from divulge.cli import app
from divulge.training import evaluate


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.output


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ["--widths", "64,16,10", "--activation", "elu"],
        ["--model", "homogeneous", "--option", "width=20", "--binary", "--rows", 20, "--per-class", "--centred",
         "--initial-scale", 0.001, "--batch-size", 0, "--precision", "float64"],
        ["--model", "two-conv", "--option", "filters=[4,4]", "--optimiser", "adam", "--positive", "0,8"],
        ["--data", "diabetes", "--learning-rate", 1e-6],
    ],
)  # fmt: skip
def test_what_is_written_repeats_the_training(tmp_path: Path, options: list[object]) -> None:
    told = run("train", *options, "--epochs", 3, "--seed", 7, "--out", tmp_path / "m")
    assert "recipe.json and data.json" in told
    released = models.load(tmp_path / "m")
    recipe = Recipe.load(tmp_path / "m")
    assert recipe.seed == 7
    assert same(recipe.train(*datasets.training_rows(tmp_path / "m")), released)


@pytest.mark.slow
def test_one_json_object_with_figures_that_are_true(tmp_path: Path) -> None:
    out = json.loads(run("train", "--epochs", 8, "--json", "--out", tmp_path))
    data = datasets.load("digits")
    scored = evaluate(models.load(tmp_path), *data.test)
    assert out["test"] == {
        "accuracy": scored.accuracy, "loss": pytest.approx(scored.loss), "rows": 359,
        "balanced_accuracy": pytest.approx(scored.balanced_accuracy), "auc": pytest.approx(scored.auc),
    }  # fmt: skip
    assert out["test"]["accuracy"] > 0.9
    assert out["recipe"] == Recipe.load(tmp_path).as_dict()
    assert out["seconds"] > 0


def test_an_own_table_and_an_own_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = "\n".join(f"{i},{i % 7},{'yes' if i % 7 > 3 else 'no'}" for i in range(40))
    Path("own.csv").write_text(f"a,b,answer\n{rows}\n")
    Path("net.py").write_text("from torch import nn\ndef make(n=2):\n    return nn.Sequential(nn.Linear(n, 1))\n")
    told = run("train", "--data", "own.csv", "--target", "answer", "--model", "net.py:make", "--epochs", 30)
    assert "held out: accuracy" in told
    assert Path("trained/model.safetensors").exists()  # the folder when none is named
    assert same(models.load("trained", trust_code=True), Recipe.load("trained", trust_code=True).train(
        *datasets.training_rows("trained")))  # fmt: skip


def test_quiet_says_nothing_and_list_names_everything(tmp_path: Path) -> None:
    assert run("train", "--data", "iris", "--epochs", 1, "--quiet", "--out", tmp_path) == ""
    listed = run("train", "--list")
    assert all(name in listed for name in (*models.names(), *datasets.names()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--model", "alexnet"], "There is no architecture 'alexnet'"),
        (["--model", "softmax", "--widths", "64,10"], "Give --model or --widths, not both"),
        (["--widths", "64,ten"], "--widths takes whole numbers"),
        (["--widths", "64,16,10", "--option", "depth=3"], "has no option depth"),
        (["--widths", "63,10"], "takes inputs of shape (63,)"),
        (["--widths", "64,3"], "Labels go from 0 to 2"),
        (["--option", "width"], "--option takes NAME=VALUE"),
        (["--model", "softmax", "--bias", "none"], "does not fit"),
        (["--data", "nothing.csv"], "There is no file or folder"),
        (["--data", "mnist", "--data-dir", "/nonexistent"], "divulge data mnist --download"),
        (["--rows", "5000"], "there are 1438"),
        (["--learning-rate", "-1"], "learning_rate is a number above 0"),
        (["--loss", "hinge"], "loss is one of"),
        (["--data", "diabetes", "--binary"], "a quantity, not a class"),
    ],
)
def test_bad_input_gets_one_sentence_and_exit_code_two(tmp_path: Path, options: list[str], told: str) -> None:
    output = run("train", *options, "--out", tmp_path / "m", code=2)
    assert told in output
    assert output.startswith("divulge: ")
    assert output.count("\n") == 1
    assert not (tmp_path / "m").exists()


def test_diverging_training_exits_three(tmp_path: Path) -> None:
    options = ("--data", "diabetes", "--learning-rate", 1e9, "--out", tmp_path / "m")
    assert "loss became" in run("train", *options, code=3)


@pytest.mark.slow
def test_data_shows_what_is_on_disk(tmp_path: Path) -> None:
    told = json.loads(run("data", "--data-dir", tmp_path, "--json"))
    assert told["digits"]["train"] == 1438
    assert told["mnist"]["present"] is False
    assert "divulge data mnist --download" in told["mnist"]["summary"]
    assert "1438 training and 359 test rows" in run("data", "digits")
    assert "is not on disk" in run("data", "mnist", "--data-dir", tmp_path, code=2)
    failed = run("data", "mnist", "--download", "--mirror", "http://127.0.0.1:9", "--data-dir", tmp_path, code=3)
    assert "could not be fetched" in failed

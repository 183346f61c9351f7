"""divulge membership as a user types it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from typer.testing import CliRunner

from divulge import datasets
from divulge.cli import app

runner = CliRunner()


def run(*arguments: str) -> Any:
    return runner.invoke(app, list(arguments))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("membership")
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(400, 5)), rng.integers(0, 2, 400)
    joblib.dump(RandomForestClassifier(30, random_state=0).fit(X[:200], y[:200]), folder / "forest.joblib")
    np.savez(folder / "members.npz", X=X[:200], y=y[:200])
    np.savez(folder / "others.npz", X=X[200:], y=y[200:])
    return folder


@pytest.mark.slow
def test_members_of_a_forest_are_found_and_written(folder: Path, tmp_path: Path) -> None:
    given = [str(folder / "forest.joblib"), "--trust-pickle", "--members", str(folder / "members.npz")]
    given += ["--non-members", str(folder / "others.npz")]
    done = run("membership", *given, "--clone", "--shadows", "2", "--json", "--out", str(tmp_path))
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["method"] == "rmia"
    assert told["auc"] > 0.9
    assert told["queries"]["value"] == 400
    assert (tmp_path / "roc.png").exists()
    assert json.loads((tmp_path / "result.json").read_text())["auc"] == told["auc"]
    text = run("membership", *given).stdout
    assert "Most exposed members: rows" in text
    assert "epsilon is at least" in text


@pytest.mark.slow
def test_a_trained_model_brings_its_data_and_its_recipe(tmp_path: Path) -> None:
    made = run("train", "--data", "digits", "--widths", "64,32,10", "--rows", "300", "--epochs", "60", "--out",
               str(tmp_path / "model"), "--quiet")  # fmt: skip
    assert made.exit_code == 0, made.stderr
    done = run("membership", str(tmp_path / "model"), "--shadows", "2", "--json")
    assert done.exit_code in (0, 3), done.stderr
    assert json.loads(done.stdout)["method"] == "rmia"


@pytest.mark.slow
def test_bad_input_and_failure_have_their_exit_codes(folder: Path) -> None:
    forest, members = str(folder / "forest.joblib"), str(folder / "members.npz")
    assert run("membership", forest, "--trust-pickle").exit_code == 2
    same = run("membership", forest, "--trust-pickle", "--members", members, "--non-members", members)
    assert same.exit_code == 2
    assert "members too" in same.stderr
    budget = run("membership", forest, "--trust-pickle", "--members", members, "--non-members",
                 str(folder / "others.npz"), "--budget", "10")  # fmt: skip
    assert budget.exit_code == 4


@pytest.mark.slow
def test_subgroups_a_copy_and_canaries_stand_beside_the_attack(folder: Path, tmp_path: Path) -> None:
    forest = str(folder / "forest.joblib")
    given = [forest, "--trust-pickle", "--members", str(folder / "members.npz"), "--non-members"]
    given += [str(folder / "others.npz"), "--method", "loss"]
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 5))
    np.savez(folder / "grouped.npz", X=np.column_stack([X[:200], np.arange(200) % 2]), y=np.arange(200) // 100)
    np.savez(folder / "grouped_others.npz", X=np.column_stack([X[200:], np.arange(200) % 2]), y=np.arange(200) // 100)
    done = run("membership", *given, "--clone", "--copy", forest, "--canaries", "80", "--json", "--out", str(tmp_path))
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["on_copy"]["difference"][0] == 0
    assert told["on_copy"]["shared_among_most_exposed"] == 1
    assert told["epsilon_audit"]["canaries"] == 80
    assert told["epsilon_audit"]["claimed"] is None
    assert json.loads((tmp_path / "membership.json").read_text())["on_copy"] == told["on_copy"]
    text = run("membership", *given, "--clone", "--copy", forest, "--canaries", "80").stdout
    assert "By canaries, epsilon is at least" in text
    assert "On the copy: AUC" in text
    without = run("membership", *given, "--canaries", "80")
    assert without.exit_code == 2
    assert "--recipe or --clone" in without.stderr
    members = np.load(folder / "grouped.npz")
    joblib.dump(RandomForestClassifier(10, random_state=0).fit(members["X"], members["y"]), folder / "grouped.joblib")
    grouped = run("membership", str(folder / "grouped.joblib"), "--trust-pickle", "--members",
                  str(folder / "grouped.npz"), "--non-members", str(folder / "grouped_others.npz"), "--group", "5",
                  "--json")  # fmt: skip
    assert set(json.loads(grouped.stdout)["by_group"]) == {"0.0", "1.0"}
    assert run("membership", *given, "--group", "17").exit_code == 2


@pytest.mark.slow
def test_canaries_in_a_private_model_are_printed_beside_its_claim(tmp_path: Path) -> None:
    made = run("train", "--data", "digits", "--widths", "64,32,10", "--rows", "200", "--epochs", "5",
               "--noise-multiplier", "2", "--out", str(tmp_path / "model"), "--quiet")  # fmt: skip
    assert made.exit_code == 0, made.stderr
    done = run("membership", str(tmp_path / "model"), "--method", "loss", "--canaries", "1000", "--json")
    audit = json.loads(done.stdout)["epsilon_audit"]
    assert audit["method"] == "steps"
    assert 0 <= audit["epsilon"] < audit["claimed"]
    assert audit["contradicts"] is False


def test_a_file_that_lacks_a_class_has_the_others_by_the_members_numbers(tmp_path: Path) -> None:
    X, y = (part.numpy() for part in datasets.load("iris").train)
    model = LogisticRegression(max_iter=1000).fit(X[::2], y[::2])
    joblib.dump(model, tmp_path / "model.joblib")
    np.savez(tmp_path / "members.npz", X=X[::2], y=y[::2])
    X, y = X[1::2][y[1::2] != 0] + 1e-3, y[1::2][y[1::2] != 0]  # some plants were measured alike
    np.savez(tmp_path / "others.npz", X=X, y=y)
    done = run(
        "membership", str(tmp_path / "model.joblib"), "--trust-pickle", "--members", str(tmp_path / "members.npz"),
        "--non-members", str(tmp_path / "others.npz"), "--method", "loss", "--json",
    )  # fmt: skip
    assert done.exit_code in (0, 3), done.output
    assert (model.predict(X) == y).mean() > 0.8  # labels by other numbers would set the two apart
    assert json.loads(done.stdout)["auc"] < 0.8

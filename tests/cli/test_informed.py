"""divulge informed as a user types it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from typer.testing import CliRunner

from divulge import datasets
from divulge.cli import app

runner = CliRunner()


def run(*arguments: str) -> Any:
    return runner.invoke(app, list(arguments))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    made = run(
        "train", "--data", "iris", "--widths", "4,6,3", "--activation", "tanh", "--rows", "12", "--epochs", "20",
        "--batch-size", "0", "--precision", "float64", "--out", str(folder), "--quiet",
    )  # fmt: skip
    assert made.exit_code == 0, made.stderr
    return folder


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a table with a column of text, and the table."""
    draw, folder = np.random.default_rng(0), tmp_path_factory.mktemp("pipeline")
    table = pd.DataFrame({"age": draw.integers(18, 90, 120), "job": draw.choice(["cook", "nurse", "pilot"], 120)})
    ill = np.where(table.age / 30 + (table.job == "cook") + draw.normal(size=120) > 2, "yes", "no")
    columns = make_column_transformer((StandardScaler(), ["age"]), (OneHotEncoder(), ["job"]))
    joblib.dump(make_pipeline(columns, LogisticRegression(tol=1e-8)).fit(table, ill), folder / "model.joblib")
    table.assign(ill=ill).to_csv(folder / "patients.csv", index=False)
    return folder


def test_a_row_of_mixed_columns_comes_back_column_by_column(pipeline: Path, tmp_path: Path) -> None:
    known = ["--trust-pickle", "--known", str(pipeline / "patients.csv"), "--target", "ill"]
    model = str(pipeline / "model.joblib")
    done = run("informed", model, *known, "--leave-out", "5", "--json", "--out", str(tmp_path))
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["row"]["job"] == told["left_out"]["job"]
    assert told["row"]["age"] == pytest.approx(told["left_out"]["age"])
    assert (tmp_path / "record.csv").read_text().splitlines()[0] == "column,rebuilt,left out"
    shown = run("informed", model, *known, "--leave-out", "5")
    assert f"job     {told['row']['job']}" in shown.stdout
    assert run("informed", model, *known, "--leave-out", "120").exit_code == 2
    assert "--known" in run("informed", model, "--trust-pickle", "--leave-out", "1").stderr
    assert "by glm, not by direct" in run("informed", model, *known, "--attack", "direct").stderr


def test_missing_values_and_columns_not_rebuilt_are_told_apart(tmp_path: Path) -> None:
    """Of a search, too; and the file has every digit."""
    draw = np.random.default_rng(0)
    table = pd.DataFrame({"age": draw.normal(50, 10, 90), "job": draw.choice(["cook", "pilot"], 90), "unread": "x"})
    table = table.assign(job=table.job.where(table.index % 7 > 0, None))
    ill = np.where(table.age + draw.normal(size=90) > 50, "yes", "no")
    columns = make_column_transformer((StandardScaler(), ["age"]), (OneHotEncoder(), ["job"]))
    pipeline = make_pipeline(columns, LogisticRegression(tol=1e-8))
    search = GridSearchCV(pipeline, {"logisticregression__C": [1.0]}, cv=2).fit(table, ill)
    joblib.dump(search, tmp_path / "model.joblib")
    table.assign(ill=ill).to_csv(tmp_path / "patients.csv", index=False)
    known = ["--trust-pickle", "--known", str(tmp_path / "patients.csv"), "--target", "ill", "--leave-out", "0"]
    done = run("informed", str(tmp_path / "model.joblib"), *known, "--json", "--out", str(tmp_path))
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["not_rebuilt"] == ["unread"]
    _, age, job, unread = (line.split(",") for line in (tmp_path / "record.csv").read_text().splitlines())
    assert float(age[1]) == pytest.approx(table.age[0], rel=1e-9)
    assert (job[1:], unread[1:]) == (["missing", "missing"], ["-", "x"])


@pytest.mark.slow
def test_a_record_left_out_comes_back_through_training_itself(trained: Path, tmp_path: Path) -> None:
    done = run("informed", str(trained), "--leave-out", "3", "--json", "--out", str(tmp_path))
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    X, y = datasets.training_rows(trained, None)
    others, own = torch.cat([X[:3], X[4:]]).double(), torch.cat([y[:3], y[4:]]) == y[3]
    assert told["error"] < 1e-6
    assert told["nearest"] == pytest.approx(float((others - X[3]).square().mean(dim=1).min()))
    assert told["class_mean"] == pytest.approx(float((others[own].mean(dim=0) - X[3]).square().mean()))
    assert (tmp_path / "record.npz").exists()
    assert json.loads((tmp_path / "record.json").read_text()) == told
    header, *lines = (tmp_path / "record.csv").read_text().splitlines()
    assert header == "column,rebuilt,nearest known,left out"
    assert [line.split(",")[0] for line in lines] == [
        "sepal length (cm)", "sepal width (cm)", "petal length (cm)", "petal width (cm)",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_rebuilt_picture_is_shown_beside_the_nearest_one_that_is_known(tmp_path: Path) -> None:
    import numpy as np
    from skimage.io import imread

    made = run("train", "--widths", "64,8,10", "--activation", "tanh", "--rows", "20", "--centred", "--epochs", "10",
               "--batch-size", "0", "--precision", "float64", "--out", str(tmp_path / "model"), "--quiet")  # fmt: skip
    assert made.exit_code == 0, made.stderr
    done = run("informed", str(tmp_path / "model"), "--leave-out", "3", "--out", str(tmp_path / "out"))
    assert done.exit_code == 0, done.stderr
    assert "without any attack, the nearest known record is at" in done.stdout
    drawn = imread(tmp_path / "out" / "record.png")[..., 0]
    assert np.unique(drawn).size > 10  # grey values, not an empty frame


def test_a_row_of_a_named_set_can_be_left_out_of_what_is_known(tmp_path: Path) -> None:
    import joblib
    from sklearn.linear_model import Ridge

    X, y = datasets.load("diabetes").train
    joblib.dump(Ridge().fit(X.double().numpy(), y.double().numpy()), tmp_path / "ridge.joblib")
    told = run("informed", str(tmp_path / "ridge.joblib"), "--trust-pickle", "--known", "diabetes", "--leave-out", "7",
               "--json")  # fmt: skip
    assert json.loads(told.stdout)["error"] < 1e-12


def test_classes_that_are_not_counted_from_zero_are_those_of_the_estimator(tmp_path: Path) -> None:
    X, y = datasets.load("iris").train
    X, y = X.double().numpy()[y > 0], y.numpy()[y > 0] + 1
    np.savez(tmp_path / "iris.npz", X=X, y=y)
    joblib.dump(LogisticRegression(tol=1e-10, max_iter=10_000).fit(X, y), tmp_path / "model.joblib")
    told = run("informed", str(tmp_path / "model.joblib"), "--trust-pickle", "--known", str(tmp_path / "iris.npz"),
               "--leave-out", "7", "--json")  # fmt: skip
    found = json.loads(told.stdout)
    assert found["error"] < 1e-4
    assert found["y"] == y[7]


@pytest.mark.slow
def test_a_table_is_known_in_its_own_units_and_rows(tmp_path: Path) -> None:
    import joblib
    from sklearn.datasets import load_diabetes
    from sklearn.linear_model import Ridge

    table = load_diabetes(as_frame=True, scaled=False).frame
    table.to_csv(tmp_path / "people.csv", index=False)
    joblib.dump(Ridge(alpha=0.1).fit(table.drop(columns="target"), table["target"]), tmp_path / "ridge.joblib")
    told = run("informed", str(tmp_path / "ridge.joblib"), "--trust-pickle", "--known", str(tmp_path / "people.csv"),
               "--leave-out", "441", "--json")  # fmt: skip
    assert json.loads(told.stdout)["error"] < 1e-12
    assert told.stderr == ""


def test_a_file_of_the_known_records_is_read_whole(trained: Path, tmp_path: Path) -> None:
    import numpy as np

    X, y = datasets.training_rows(trained, None)
    np.savez(tmp_path / "all.npz", X=X.numpy(), y=y.numpy())
    told = run("informed", str(trained), "--known", str(tmp_path / "all.npz"), "--runs", "4")
    assert "already contains the target" in told.stderr


@pytest.mark.slow
def test_logits_are_enough(trained: Path) -> None:
    done = run("informed", str(trained), "--leave-out", "3", "--access", "logits", "--probes", "11", "--json")
    assert done.exit_code in (0, 3), done.stderr
    assert json.loads(done.stdout)["error"] < 0.05


@pytest.mark.slow
def test_ridge_learns_from_shadow_models_which_are_kept(trained: Path, tmp_path: Path) -> None:
    words = ["informed", str(trained), "--leave-out", "3", "--attack", "ridge", "--shadows", "iris", "--json",
             "--shadow-models", "60", "--workers", "2", "--out", str(tmp_path)]  # fmt: skip
    done = run(*words)
    assert done.exit_code in (0, 3), done.stderr
    told = json.loads(done.stdout)
    assert told["error"] < 0.2
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "shadows").rglob("*.*")}
    assert kept
    again = json.loads(run(*words).stdout)
    assert again["x"] == told["x"]
    assert kept == {path: path.stat().st_mtime_ns for path in (tmp_path / "shadows").rglob("*.*")}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "--known"),
        (["--leave-out", "99"], "12 training rows"),
        (["--leave-out", "1", "--attack", "magic"], "magic"),
        (["--leave-out", "1", "--access", "labels"], "labels"),
        (["--leave-out", "1", "--attack", "ridge"], "--shadows"),
        (["--known", "nowhere.csv"], "nowhere.csv"),
    ],
)
def test_bad_options_get_one_sentence(trained: Path, arguments: list[str], sentence: str) -> None:
    done = run("informed", str(trained), *arguments)
    assert done.exit_code == 2
    assert sentence in done.stderr

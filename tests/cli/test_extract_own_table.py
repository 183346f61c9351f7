"""``divulge extract --data TABLE``: exact attacks and students ask around the user's rows, in the model's own units."""

from __future__ import annotations

import json
from pathlib import Path

import joblib
import numpy as np
import pytest
from sklearn.datasets import load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from typer.testing import CliRunner

from divulge.cli import app

runner = CliRunner()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A perceptron and a linear model fitted to wine in raw units, and the table they were fitted to."""
    folder = tmp_path_factory.mktemp("wine")
    X, y = load_wine(return_X_y=True)
    joblib.dump(MLPClassifier((16,), max_iter=400, random_state=300).fit(X[::2], y[::2]), folder / "perceptron.joblib")
    joblib.dump(LogisticRegression(solver="newton-cholesky").fit(X[::2], y[::2]), folder / "linear.joblib")
    names = [*(f"c{i}" for i in range(X.shape[1])), "kind"]
    np.savetxt(folder / "rows.csv", np.c_[X, y], delimiter=",", header=",".join(names), comments="")
    return folder


def extract(folder: Path, model: str, *arguments: str):
    table = ["--data", str(folder / "rows.csv"), "--target", "kind"]
    return runner.invoke(app, ["extract", str(folder / model), "--trust-pickle", *table, *arguments, "--json"])


@pytest.mark.parametrize(("access", "claim"), [("label", "equivalent"), ("value", "exact"), ("gradient", "exact")])
def test_a_model_of_raw_units_is_copied_around_its_own_rows(folder, access, claim):
    result = extract(folder, "perceptron.joblib", "--access", access)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)[claim]


def test_a_student_is_fitted_to_rows_in_the_models_own_units(folder):
    options = ["--access", "value", "--method", "training", "--student", "softmax", "--queries", "60"]
    result = extract(folder, "linear.joblib", *options, "--checks", "20")
    assert result.exit_code == 0, result.output
    agreement = json.loads(result.stdout)
    assert min(value for key, value in _numbers(agreement) if "agreement" in key) > 0.8


def test_printed_attacks_take_no_rows(folder):
    result = extract(folder, "perceptron.joblib", "--access", "value", "--method", "paper")
    assert result.exit_code == 2
    assert "takes no --data" in result.output


def _numbers(value, name=""):
    """Every number in a nested object, with the name it stands under."""
    if isinstance(value, dict):
        return [pair for key, item in value.items() for pair in _numbers(item, key)]
    if isinstance(value, list):
        return [pair for item in value for pair in _numbers(item, name)]
    return [(name, value)] if isinstance(value, float) else []

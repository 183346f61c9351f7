"""divulge attributes as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import joblib
import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from typer.testing import CliRunner

from divulge.cli import app


@pytest.mark.slow
def test_columns_are_inferred_written_and_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.integers(0, 2, 200), rng.normal(size=(200, 2))]).astype(float)
    y = ((X[:, 0] > 0) ^ (rng.random(200) < 0.25)).astype(int)
    joblib.dump(RandomForestClassifier(30, random_state=0).fit(X, y), tmp_path / "forest.joblib")
    np.savez(tmp_path / "train.npz", X=X, y=y)
    given = [str(tmp_path / "forest.joblib"), "--trust-pickle", "--data", str(tmp_path / "train.npz")]
    done = CliRunner().invoke(app, ["attributes", *given, "--column", "0", "--json", "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)["columns"]["0"]
    assert told["advantage"][0] > 0
    assert told["queries"]["value"] == 400
    assert (tmp_path / "out" / "attributes.json").exists()
    assert (tmp_path / "out" / "column_0" / "arrays.npz").exists()
    assert CliRunner().invoke(app, ["attributes", *given, "--column", "7"]).exit_code == 2
    assert "the model adds" in CliRunner().invoke(app, ["attributes", *given, "--column", "0"]).stdout

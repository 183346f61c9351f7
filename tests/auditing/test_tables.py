"""A DataFrame of mixed columns goes straight into an audit of a pipeline, from Python and from the command line."""

from __future__ import annotations

import json

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier
from typer.testing import CliRunner

import divulge
from divulge.auditing.opening import open_target
from divulge.auditing.options import AuditOptions
from divulge.cli import app
from divulge.core.errors import InvalidInput


def people(n: int, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {"age": draw.integers(18, 80, n), "pay": draw.normal(50, 10, n), "job": draw.choice(["cook", "nurse"], n)}
    )
    y = np.where((frame["age"] > 50) ^ (frame["job"] == "cook"), "yes", "no")
    frame.loc[::9, "pay"] = np.nan
    return frame, y


@pytest.fixture(scope="module")
def pipeline():
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    columns = make_column_transformer((numbers, ["age", "pay"]), (OneHotEncoder(), ["job"]))
    return make_pipeline(columns, DecisionTreeClassifier(random_state=0)).fit(*people(120, 0))


def test_the_target_answers_as_the_pipeline_does_on_its_own_rows(pipeline):
    (X, y), (U, v) = people(120, 0), people(80, 1)
    target = open_target(pipeline, (X, y), AuditOptions(unseen=(U, v)))
    assert (target.access, target.input_dim, target.columns) == ("value", 3, ("age", "pay", "job"))
    decisions = target.oracle("label").label(target.unseen).numpy()
    assert pipeline.classes_[decisions].tolist() == pipeline.predict(U).tolist()
    assert pipeline.classes_[target.labels.numpy()].tolist() == y.tolist()


def test_an_audit_in_python_has_no_fault_of_its_own(pipeline):
    report = divulge.audit(pipeline, people(120, 0), unseen=people(80, 1), time=2)
    assert report.findings[0].question == "contents"
    assert not [skip for skip in report.skipped if "fault of its own" in skip.reason]


@pytest.mark.slow
def test_the_command_line_reads_the_tables_as_they_are(pipeline, tmp_path):
    joblib.dump(pipeline, tmp_path / "model.joblib")
    for name, (frame, y) in {"train": people(120, 0), "unseen": people(80, 1)}.items():
        frame.assign(risk=y).to_csv(tmp_path / f"{name}.csv", index=False)
    done = CliRunner().invoke(
        app,
        ["audit", str(tmp_path / "model.joblib"), "--trust-pickle", "--data", str(tmp_path / "train.csv"), "--target",
         "risk", "--unseen", str(tmp_path / "unseen.csv"), "--time", "2s", "--out", str(tmp_path / "out"), "--json"],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)["target"]
    assert (facts["inputs"], facts["training_records"]) == (3, 120)
    assert "warning" not in facts  # the pipeline predicts its own training data


def test_what_does_not_fit_is_one_sentence(pipeline):
    frame, y = people(120, 0)
    with pytest.raises(InvalidInput, match="differ in the column 'pay'"):
        divulge.audit(pipeline, (frame, y), unseen=frame.drop(columns="pay"), time=1)
    with pytest.raises(InvalidInput, match="a label that the model was not fitted with"):
        divulge.audit(pipeline, (frame, np.full(len(y), "perhaps")), time=1)
    with pytest.raises(InvalidInput, match="no value at all"):
        divulge.audit(pipeline, (frame.assign(pay=np.nan), y), time=1)

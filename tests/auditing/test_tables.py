"""A DataFrame of mixed columns goes straight into an audit of a pipeline, from Python and from the command line."""

from __future__ import annotations

import json

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier
from typer.testing import CliRunner

import divulge
from divulge.auditing.opening import open_target
from divulge.auditing.options import AuditOptions
from divulge.auditing.probes import informed, price_of_protection
from divulge.cli import app
from divulge.core.errors import InvalidInput
from divulge.oracles.local.sklearn_estimator import refit


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
    with pytest.raises(InvalidInput, match="does not take the unseen data: Found unknown categories"):
        divulge.audit(pipeline, (frame, y), unseen=frame.assign(job="astronaut"), time=1)
    with pytest.raises(InvalidInput, match="no value at all"):
        divulge.audit(pipeline, (frame.assign(pay=np.nan), y), time=1)


@pytest.fixture(scope="module")
def logistic():
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    columns = make_column_transformer((numbers, ["age", "pay"]), (OneHotEncoder(), ["job"]))
    return make_pipeline(columns, LogisticRegression()).fit(*people(120, 0))


def test_rows_of_mixed_columns_come_back_to_an_insider(logistic):
    target = open_target(logistic, people(120, 0), AuditOptions(unseen=people(80, 1)))
    probe = next(probe for probe in informed.PROBES if probe.name == "informed-linear")
    assert probe.obstacle(target) == ""
    finding = probe.run(target, 60.0)
    assert finding.outcome == "succeeded"
    values = next(table for table in finding.tables if "its values" in table.caption)
    assert values.records  # shown only where records may be
    truth, rebuilt = ({row[0]: row[place] for row in values.rows} for place in (1, 2))
    assert rebuilt["job"] == truth["job"]
    assert rebuilt["age"] == pytest.approx(truth["age"])
    assert finding.measures["leaks_through"] == "StandardScaler"
    assert any("the numbers of a record come out of the StandardScaler" in remedy for remedy in finding.untested)


def test_columns_in_another_order_and_columns_that_the_model_does_not_know(logistic):
    frame, y = people(120, 0)
    more = frame.assign(ward="north")
    target = open_target(logistic, (more, y), AuditOptions(table=more[["ward", "job", "pay", "age"]]))
    finding = informed.PROBES[0].run(target, 60.0)
    values = next(table for table in finding.tables if "its values" in table.caption)
    shown = {name: (truth, rebuilt) for name, truth, rebuilt in values.rows}
    assert shown["job"][0] == shown["job"][1]
    assert shown["age"][1] == pytest.approx(shown["age"][0])
    assert shown["ward"] == ("north", "not rebuilt")


def test_numbers_with_gaps_behind_an_imputer():
    frame, y = people(120, 0)
    model = make_pipeline(SimpleImputer(), StandardScaler(), LogisticRegression()).fit(frame[["age", "pay"]], y)
    target = open_target(model, (frame[["age", "pay"]], y), AuditOptions())
    finding = informed.PROBES[0].run(target, 60.0)
    assert finding.outcome == "succeeded"
    assert finding.measures["leaks_through"] == "StandardScaler"
    assert finding.measures["median_error_mse"] < 1e-12


def test_a_table_without_training_data_says_what_is_missing(logistic):
    target = open_target(logistic, None, AuditOptions(table=people(120, 0)[0]))
    assert "training data was not given" in informed.PROBES[0].obstacle(target)


def test_numbers_that_the_model_reads_as_categories():
    """They are asked with values that the encoder knows, and reference models see whole numbers again."""
    frame, y = people(120, 0)
    frame = frame.assign(grade=frame.age % 7 + 1)
    columns = make_column_transformer((StandardScaler(), ["age"]), (OneHotEncoder(), ["grade", "job"]))
    weights = {"yes": 2.0, "no": 1.0}  # by label, while an audit's labels are numbers
    model = make_pipeline(columns, LogisticRegression(class_weight=weights)).fit(frame, y)
    target = open_target(model, (frame, y), AuditOptions())
    assert target.oracle("label").label(target.inputs).shape == (120,)
    again = refit(clone(target.estimator), target.inputs.numpy(), target.labels.numpy())
    assert np.allclose(again.predict_proba(target.inputs.numpy()), model.predict_proba(frame))


@pytest.mark.slow
def test_private_training_keeps_the_insider_from_rows_of_mixed_columns(logistic, monkeypatch):
    monkeypatch.setattr(price_of_protection, "EPSILONS", (float("inf"), 1.0))
    options = AuditOptions(unseen=people(80, 1), accept_membership_tpr="0.1@0.05")
    target = open_target(logistic, people(120, 0), options)
    probe = price_of_protection.PROBES[0]
    assert probe.obstacle(target) == ""
    finding = probe.run(target, 3600.0)
    rates = {row[0]: row[8] for row in finding.tables[0].rows}
    assert rates["none"] > 0.8
    assert rates[1.0] < 0.5
    assert any("category" in note for note in finding.notes)


def test_reference_models_are_trained_on_the_table_s_view(logistic):
    target = open_target(logistic, people(120, 0), AuditOptions(unseen=people(80, 1)))
    again = clone(target.estimator).fit(target.inputs.numpy(), target.labels.numpy())
    assert np.allclose(again.predict_proba(target.unseen.numpy()), logistic.predict_proba(people(80, 1)[0]))

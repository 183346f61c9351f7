"""What the file itself contains is the first finding of an audit, and shows no record unless it is asked to."""

from __future__ import annotations

import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import divulge
from divulge.report.document import ranked

X, y = load_breast_cancer(return_X_y=True)
X, y = X[:200, :6], y[:200]
NAME = "file-contents"


@pytest.fixture(scope="module")
def neighbours():
    return make_pipeline(StandardScaler(), KNeighborsClassifier()).fit(X, y)


def test_rows_in_the_file_are_critical_and_come_first(neighbours):
    report = divulge.audit(neighbours, (X, y), time=2)
    first = ranked(report.findings)[0]
    assert (first.name, first.severity) == (NAME, "critical")
    assert first.title == '200 training records stand in the file, in model["kneighborsclassifier"]._fit_X'
    assert first.measures["equal_to_a_training_record"] == 200
    assert report.verdict[0] == "Whoever holds the weights can read training records in the file."


def test_records_are_shown_only_when_asked(neighbours):
    value = repr(float(X[0, 0]))
    hidden = divulge.audit(neighbours, (X, y), time=1).html()
    assert "One of the records" not in hidden
    shown = divulge.audit(neighbours, (X, y), time=1, show_records=True)
    table = next(table for table in shown.findings[0].tables if table.records)
    assert repr(round(table.rows[0][1], 6)) == value
    assert "One of the records" in shown.html()


@pytest.mark.parametrize("options", [{"access": "value"}, {"guard": "round:3"}])
def test_a_client_has_no_file(neighbours, options):
    report = divulge.audit(neighbours, (X, y), time=1, **options)
    assert NAME not in {finding.name for finding in report.findings}
    assert "does not include the file" in next(skip.reason for skip in report.skipped if skip.name == NAME)


def test_a_model_without_anything_of_its_data_has_no_finding():
    report = divulge.audit(LogisticRegression(max_iter=9000).fit(X, y), (X, y), time=2)
    assert next(skip.ending for skip in report.skipped if skip.name == NAME) == "does not fit"


def test_means_of_a_scaler_are_medium():
    report = divulge.audit(make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y), time=1)
    found = next(finding for finding in report.findings if finding.name == NAME)
    assert (found.outcome, found.severity) == ("partly", "medium")
    assert found.title == "The file holds 6 sums or means of columns"

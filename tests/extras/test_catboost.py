"""CatBoost: estimators and .cbm files, on numbers and on tables with categories."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris

catboost = pytest.importorskip("catboost", reason="runs in make test-extras: CatBoost is not installed")

import divulge  # noqa: E402
from divulge.auditing import registry  # noqa: E402
from divulge.auditing.probes import membership  # noqa: E402
from divulge.core.errors import AccessDenied, InvalidInput  # noqa: E402

QUIET = {"iterations": 20, "verbose": False, "allow_writing_files": False, "random_seed": 0, "thread_count": 1}


@pytest.mark.parametrize("load", [load_breast_cancer, load_iris], ids=["two classes", "three classes"])
@pytest.mark.parametrize("as_file", [False, True], ids=["estimator", "file"])
def test_a_classifier_answers_as_catboost_does(load, as_file, tmp_path):
    X, y = load(return_X_y=True)
    model = catboost.CatBoostClassifier(**QUIET).fit(X, y)
    model.save_model(str(tmp_path / "model.cbm"))
    source = tmp_path / "model.cbm" if as_file else model
    oracle = divulge.oracle(source)
    raw = model.predict(X, prediction_type="RawFormulaVal").reshape(len(X), -1)
    np.testing.assert_allclose(oracle.value(X), raw, rtol=1e-12)
    assert oracle.output_kind == "logits"
    np.testing.assert_allclose(
        divulge.oracle(source, output="probabilities").value(X), model.predict_proba(X), rtol=1e-9
    )
    assert oracle.label(X).tolist() == model.predict(X).ravel().tolist()


def test_a_regression_answers_quantities_and_trees_have_no_gradients():
    X, y = load_diabetes(return_X_y=True)
    model = catboost.CatBoostRegressor(**QUIET).fit(X, y)
    oracle = divulge.oracle(model)
    assert oracle.output_kind == "quantities"
    np.testing.assert_allclose(oracle.value(X)[:, 0], model.predict(X), rtol=1e-12)
    with pytest.raises(AccessDenied, match="piecewise constant"):
        divulge.oracle(model, access="gradient")
    with pytest.raises(InvalidInput, match="not fitted"):
        divulge.oracle(catboost.CatBoostRegressor())


def test_a_table_with_categories_goes_straight_in():
    draw = np.random.default_rng(0)
    frame = pd.DataFrame({"age": draw.integers(20, 60, 300), "job": draw.choice(["cook", "nurse", "pilot"], 300)})
    y = ((frame["age"] > 40) ^ (frame["job"] == "pilot")).to_numpy().astype(int)
    model = catboost.CatBoostClassifier(cat_features=["job"], **QUIET).fit(frame, y)
    oracle = divulge.oracle(model, table=frame)
    np.testing.assert_allclose(oracle.value(oracle.view.encode(frame)), model.predict_proba(frame), rtol=1e-12)
    assert torch.equal(oracle.label(oracle.view.encode(frame)), torch.tensor(model.predict(frame)))


def test_a_damaged_file_is_one_sentence(tmp_path):
    (tmp_path / "model.cbm").write_bytes(b"no model")
    with pytest.raises(InvalidInput, match="not a readable model of trees"):
        divulge.oracle(tmp_path / "model.cbm")


def test_the_file_tells_how_many_records_its_leaves_hold(tmp_path):
    model = catboost.CatBoostClassifier(**QUIET).fit(*load_breast_cancer(return_X_y=True))
    path = tmp_path / "model.cbm"
    model.save_model(str(path))
    for source in (model, str(path)):
        [held] = [one for one in divulge.contents.read(source).holdings if one.where == "leaf_weights"]
        assert (held.kind, held.count) == ("counts", len(model.get_leaf_weights()))


def test_members_are_scored_from_the_file_although_no_fresh_model_can_be_made_of_it(tmp_path, monkeypatch):
    X, y = load_breast_cancer(return_X_y=True)
    catboost.CatBoostClassifier(**QUIET).fit(X[:250], y[:250]).save_model(str(tmp_path / "model.cbm"))
    monkeypatch.setattr(registry, "available_probes", lambda: membership.PROBES)
    report = divulge.audit(tmp_path / "model.cbm", (X[:250], y[:250]), unseen=(X[250:], y[250:]), time=30)
    assert [finding.name for finding in report.findings] == ["membership"], report.skipped

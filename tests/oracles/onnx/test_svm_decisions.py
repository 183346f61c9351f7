"""The decisions of an SVM in ONNX are those of the estimator, although its scores do not say them."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.svm import SVC

import divulge


@pytest.mark.parametrize("load", [load_breast_cancer, load_iris], ids=["two classes", "three classes"])
def test_labels_are_those_of_the_estimator(load, tmp_path):
    from skl2onnx import to_onnx

    X, y = load(return_X_y=True)
    model = SVC().fit(X, y)
    (tmp_path / "m.onnx").write_bytes(to_onnx(model, X[:1].astype(np.float32)).SerializeToString())
    oracle = divulge.oracle(tmp_path / "m.onnx")
    assert (oracle.label(X).numpy() == model.predict(X.astype(np.float32))).all()
    assert oracle.ledger.label == len(X)

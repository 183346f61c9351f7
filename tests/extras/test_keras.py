"""Keras 3 models on the torch backend: dense ones with their weights, others through Keras."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras", reason="runs in make test-extras: Keras is not installed")

import divulge  # noqa: E402
from divulge.core.errors import AccessDenied, InvalidInput, UntrustedFile  # noqa: E402

X = np.random.default_rng(0).standard_normal((9, 6)).astype(np.float32)


@pytest.fixture
def dense():
    keras.utils.set_random_seed(0)
    return keras.Sequential([
        keras.Input((6,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dropout(0.5), keras.layers.Dense(3),
        keras.layers.Softmax(),
    ])  # fmt: skip


def test_a_saved_dense_model_shows_values_gradients_and_weights(dense, tmp_path):
    dense.save(tmp_path / "net.keras")
    oracle = divulge.oracle(tmp_path / "net.keras", access="weights")
    expected = dense.predict(X, verbose=0)
    np.testing.assert_allclose(oracle.value(X), expected, rtol=1e-5, atol=1e-6)
    assert oracle.output_kind == "probabilities"
    inputs = torch.tensor(X, requires_grad=True)
    torch.softmax(oracle.weights()[:-1](inputs), dim=1)[:, 0].sum().backward()
    np.testing.assert_allclose(oracle.gradient(X)[1][:, 0], inputs.grad, rtol=1e-4, atol=1e-6)


def test_a_functional_chain_is_read_too_and_a_branch_is_asked_through_keras(tmp_path):
    keras.utils.set_random_seed(0)
    entry = keras.Input((6,))
    first = keras.layers.Dense(5, activation="tanh")(entry)
    chain = keras.Model(entry, keras.layers.Dense(2)(first))
    assert divulge.oracle(chain, access="weights").output_dim == 2
    second = keras.layers.Dense(5)(entry)
    branch = keras.Model(entry, keras.layers.Dense(2)(keras.layers.Add()([first, second])))
    np.testing.assert_allclose(divulge.oracle(branch).value(X), branch.predict(X, verbose=0), rtol=1e-5, atol=1e-6)
    with pytest.raises(AccessDenied, match="Keras"):
        divulge.oracle(branch, access="gradient")


def test_a_convolutional_model_is_asked_for_values_and_labels(tmp_path):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([
        keras.Input((8, 8, 1)), keras.layers.Conv2D(3, 3, activation="relu"), keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(4),
    ])  # fmt: skip
    model.save(tmp_path / "net.keras")
    pictures = np.random.default_rng(0).random((5, 8, 8, 1)).astype(np.float32)
    oracle = divulge.oracle(tmp_path / "net.keras")
    np.testing.assert_allclose(oracle.value(pictures), model.predict(pictures, verbose=0), rtol=1e-4, atol=1e-5)
    assert oracle.label(pictures).tolist() == model.predict(pictures, verbose=0).argmax(1).tolist()


def test_an_audit_takes_the_file_and_an_attack_copies_it(dense, tmp_path):
    dense.save(tmp_path / "net.keras")
    report = divulge.audit(tmp_path / "net.keras", time=2)
    assert (report.target["access_granted"], report.target["parameters"]) == ("weights", 83)
    logits = keras.Sequential(dense.layers[:-1])
    logits.build((None, 6))
    stolen = divulge.extraction.from_gradients(divulge.oracle(logits, access="gradient", precision="double"), seed=0)
    assert (stolen.exact, stolen.width) == (True, 8)


def test_code_in_a_file_is_not_run_and_a_damaged_one_is_one_sentence(tmp_path):
    keras.Sequential([keras.Input((6,)), keras.layers.Lambda(lambda x: x * 2)]).save(tmp_path / "code.keras")
    with pytest.raises(UntrustedFile, match="trust_pickle=True"):
        divulge.oracle(tmp_path / "code.keras")
    (tmp_path / "bad.keras").write_bytes(b"no")
    with pytest.raises(InvalidInput, match="readable Keras model"):
        divulge.oracle(tmp_path / "bad.keras")

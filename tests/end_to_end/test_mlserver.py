"""A server that others wrote: a scikit-learn model behind MLServer is asked as it comes, with nothing announced.

MLServer needs an environment of its own. Where there is one with ``mlserver`` and ``mlserver-sklearn``, say so:

    DIVULGE_MLSERVER=/path/to/env/bin/mlserver pytest tests/end_to_end/test_mlserver.py
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import divulge
from divulge import datasets
from divulge.core import errors
from divulge.oracles.remote.http import HttpOracle
from divulge.training import margin

MLSERVER = os.environ.get("DIVULGE_MLSERVER", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not MLSERVER, reason="set DIVULGE_MLSERVER to the mlserver executable of an environment"),
]

FIT = """
import json, sys
import joblib
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

X, y = load_digits(return_X_y=True)
model = LogisticRegression(max_iter=200).fit(X / 16, y)
joblib.dump(model, "model.joblib")
json.dump({"weights": model.coef_.tolist(), "bias": model.intercept_.tolist()}, sys.stdout)
"""

NETWORK = """
import json, sys
import joblib, numpy as np
from sklearn.neural_network import MLPRegressor

A, b, w = (np.array(part) for part in json.load(sys.stdin))
model = MLPRegressor(hidden_layer_sizes=(len(b),), max_iter=1).fit(np.eye(A.shape[1]), np.ones(A.shape[1]))
model.coefs_, model.intercepts_ = [A.T, w.T], [b, np.zeros(1)]
joblib.dump(model, "model.joblib")
"""


def free_ports(n: int) -> list[int]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


@contextmanager
def mlserver(folder: Path, name: str) -> Iterator[str]:
    """The address of the scikit-learn model in ``folder / "model.joblib"``, served by MLServer."""
    settings = {"name": name, "implementation": "mlserver_sklearn.SKLearnModel"}
    (folder / "model-settings.json").write_text(json.dumps(settings | {"parameters": {"uri": "./model.joblib"}}))
    http, grpc, metrics = free_ports(3)
    ports = {"http_port": http, "grpc_port": grpc, "metrics_port": metrics}
    (folder / "settings.json").write_text(json.dumps({"host": "127.0.0.1", "parallel_workers": 0} | ports))
    with (folder / "log.txt").open("w") as log:
        server = subprocess.Popen([MLSERVER, "start", "."], cwd=folder, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{http}/v2/models/{name}"
    try:
        deadline = time.monotonic() + 90
        while True:
            try:
                httpx.get(f"{url}/ready", trust_env=False).raise_for_status()
                break
            except httpx.HTTPError:
                assert time.monotonic() < deadline, (folder / "log.txt").read_text()[-2000:]
                time.sleep(0.3)
        yield url
    finally:
        server.terminate()
        server.wait()


def made_by(script: str, folder: Path, given: str = "") -> bytes:
    """What a script prints in MLServer's own environment: a joblib file is read by the version that wrote it."""
    python = Path(MLSERVER).with_name("python")
    return subprocess.run(
        [python, "-c", script], cwd=folder, input=given.encode(), stdout=subprocess.PIPE, check=True
    ).stdout


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mlserver")
    told = json.loads(made_by(FIT, folder))
    with mlserver(folder, "digits") as url:
        yield url, {name: np.array(values) for name, values in told.items()}


def test_probabilities_are_those_of_the_model(served, tmp_path):
    url, model = served
    X = load_digits().data / 16
    expected = torch.softmax(torch.tensor(X @ model["weights"].T + model["bias"]), dim=1)
    options = {"input_shape": (64,), "output": "predict_proba", "label_output": "predict"}
    with HttpOracle(url, journal=tmp_path / "answers.db", **options) as oracle:
        assert (oracle.output_dim, oracle.dtype, oracle.ledger.value) == (10, torch.float64, 1)
        torch.testing.assert_close(oracle.value(X), expected, rtol=1e-9, atol=1e-12)
        assert torch.equal(oracle.label(X), expected.argmax(dim=1))
        assert oracle.ledger.snapshot().as_dict() == {
            "value": 1798, "gradient": 0, "label": 1797, "total": 3595, "requests": 5,
        }  # fmt: skip
    with HttpOracle(url, journal=tmp_path / "answers.db", **options) as oracle:
        oracle.value(X)
        assert (oracle.ledger.value, oracle.ledger.requests) == (1798, 0)


def test_labels_alone(served):
    url, _ = served
    with HttpOracle(url, access="label", input_shape=(64,), label_output="predict") as oracle:
        assert (oracle.label(load_digits().data / 16).numpy() == load_digits().target).mean() > 0.95


def test_what_mlserver_refuses_is_said(served):
    url, _ = served
    with pytest.raises(errors.ServerRefused, match="404"):
        HttpOracle(url + "-not", input_shape=(64,))
    with pytest.raises(errors.BadAnswer, match="label_output"):  # its predict output holds whole numbers
        HttpOracle(url, input_shape=(64,))


def test_training_digits_leave_through_mlserver(tmp_path):
    """The whole chain: values of a network behind MLServer, an exact copy of it, and digits it was trained on."""
    digits = datasets.load("digits").binary()
    X, y = digits.subset(10, seed=0).train
    mean = X.double().mean(dim=0)
    start = margin.network([64, 48, 1], first_scale=3e-3, balanced=True, seed=0)
    first, last = (layer for layer in margin.to_margin(start, X.double() - mean, y).model if hasattr(layer, "weight"))
    parts = [part.detach().tolist() for part in (first.weight, first.bias, last.weight)]
    made_by(NETWORK, tmp_path, json.dumps(parts))
    with mlserver(tmp_path, "network") as url:
        report = divulge.audit(
            url, training_data=(X.double() - mean, y), unseen=digits.test.X.double() - mean, mean=mean,
            shape=digits.shape, input_shape=(64,), time=120, out=tmp_path / "audit",
            journal=tmp_path / "answers.db",
        )  # fmt: skip
    findings = {finding.name: finding for finding in report.findings}
    copied = findings["copy-from-values"]
    assert copied.outcome == "succeeded", copied.certainty
    assert copied.measures["worst_difference"] < 1e-6 * copied.measures["output_spread"]
    chained = findings["chain-to-training-data"]
    assert chained.measures["matched"] >= 1
    assert chained.measures["control"] < 0.02

"""A server that others wrote: scikit-learn models behind ``mlflow models serve``, by tensor and by named columns.

MLflow needs an environment of its own. Where there is one with ``mlflow``, say so:

    DIVULGE_MLFLOW=/path/to/env/bin/mlflow pytest tests/end_to_end/test_mlflow.py
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from divulge.core import errors
from divulge.oracles.remote.http import HttpOracle

MLFLOW = os.environ.get("DIVULGE_MLFLOW", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not MLFLOW, reason="set DIVULGE_MLFLOW to the mlflow executable of an environment"),
]
COLUMNS = [f"pixel {number}" for number in range(64)]

FIT = f"""
import mlflow, numpy, pandas
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

X, y = load_digits(return_X_y=True)
model = LogisticRegression(max_iter=200).fit(X / 16, y)
told = mlflow.models.infer_signature(X / 16, model.predict_proba(X / 16))
pickled = dict(serialization_format="cloudpickle")
mlflow.sklearn.save_model(model, "tensor", signature=told, pyfunc_predict_fn="predict_proba", **pickled)
numpy.save("expected.npy", model.predict_proba(X / 16))
table = pandas.DataFrame(X / 16, columns={COLUMNS!r})
model = LogisticRegression(max_iter=200).fit(table, y)
told = mlflow.models.infer_signature(table, model.predict(table))
mlflow.sklearn.save_model(model, "columns", signature=told, **pickled)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mlflow")
    subprocess.run([Path(MLFLOW).with_name("python"), "-c", FIT], cwd=folder, check=True)
    return folder


@contextmanager
def served(folder, model):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    environment = os.environ | {"PATH": f"{Path(MLFLOW).parent}:{os.environ['PATH']}"}
    command = [MLFLOW, "models", "serve", "-m", model, "-p", str(port), "--env-manager", "local"]
    with (folder / "log.txt").open("w") as log:
        server = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + 90
        while True:
            try:
                httpx.get(f"http://127.0.0.1:{port}/ping", trust_env=False).raise_for_status()
                break
            except httpx.HTTPError:
                assert time.monotonic() < deadline, (folder / "log.txt").read_text()[-2000:]
                time.sleep(0.3)
        yield f"http://127.0.0.1:{port}/invocations"
    finally:
        os.killpg(server.pid, signal.SIGTERM)  # it starts the server proper as a child
        server.wait()


def test_probabilities_are_those_of_the_model(folder):
    with served(folder, "tensor") as url, HttpOracle(url, input_shape=(64,)) as oracle:
        values = oracle.value(load_digits().data / 16)
        assert (oracle.output_dim, oracle.ledger.value) == (10, 1798)
    torch.testing.assert_close(values, torch.tensor(np.load(folder / "expected.npy")), rtol=1e-9, atol=1e-12)


def test_a_model_of_named_columns_is_asked_by_name(folder):
    with served(folder, "columns") as url:
        with HttpOracle(url, columns=COLUMNS, access="label", label_output="label") as oracle:
            assert (oracle.label(load_digits().data / 16).numpy() == load_digits().target).mean() > 0.95
        with pytest.raises(errors.ServerRefused, match="400"):
            HttpOracle(url, input_shape=(64,))

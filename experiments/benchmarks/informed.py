"""The missing record of linear models on MNIST, in closed form: well-optimised models, models at scikit-learn's default
tolerance with the error that the attack predicts, and the Adversarial Robustness Toolbox's DatabaseReconstruction on
the same model. ``python -m experiments informed``; the last part needs ART's environment (see ``peers_art``).
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor, Ridge

from divulge import datasets, informed
from experiments.benchmarks.peers_art import environment
from experiments.plan import Plan

KNOWN, SEED = 1000, 0
EXACT = {"solver": "newton-cholesky", "tol": 1e-10, "max_iter": 1000}
WELL: dict[str, tuple[Any, int]] = {
    "linear": (LinearRegression(), 5),
    "ridge": (Ridge(1.0), 5),
    "logistic (odd, even)": (LogisticRegression(**EXACT), 5),
    "softmax, 14 x 14": (LogisticRegression(**EXACT), 3),
    "softmax": (LogisticRegression(solver="newton-cg", tol=1e-11, max_iter=1000), 3),
    "Poisson": (PoissonRegressor(alpha=1e-2, **EXACT), 5),
}
DEFAULT: dict[str, tuple[Any, int]] = {
    "logistic (odd, even)": (LogisticRegression(), 8),
    "softmax": (LogisticRegression(), 3),
    "Poisson": (PoissonRegressor(), 8),
}
CAP = 90.0
WORKER = """
import json, sys, time
import numpy as np
from sklearn.linear_model import LogisticRegression
from art.attacks.inference.reconstruction import DatabaseReconstruction
from art.estimators.classification.scikitlearn import ScikitlearnLogisticRegression


given = np.load(sys.argv[1])
X, y = given["X"], given["y"]
model = LogisticRegression(tol=1e-10, max_iter=20000).fit(X, y)
np.savez(sys.argv[2], coef=model.coef_, intercept=model.intercept_)
began = time.perf_counter()
x, label = DatabaseReconstruction(ScikitlearnLogisticRegression(model)).reconstruct(X[:-1], y[:-1])
seconds = time.perf_counter() - began
print(json.dumps({"seconds": seconds, "error": float(np.square(np.asarray(x).reshape(-1) - X[-1]).mean())}))
"""


def digits(count: int) -> tuple[Any, Any, Any, Any]:
    """Known digits and fresh targets."""
    data = datasets.load("mnist").train
    order = torch.randperm(len(data.X), generator=torch.Generator().manual_seed(SEED))
    X, y = data.X[order].double().numpy(), data.y[order].numpy()
    return X[2000 : 2000 + KNOWN], y[2000 : 2000 + KNOWN], X[:count], y[:count]


def smaller(rows: Any, side: int) -> Any:
    """Digits averaged to ``side`` x ``side`` pixels."""
    return rows.reshape(-1, side, 28 // side, side, 28 // side).mean(axis=(2, 4)).reshape(len(rows), -1)


def attack(name: str, estimator: Any, count: int) -> list[dict[str, Any]]:
    known, labels, targets, own = digits(count)
    if "14 x 14" in name:
        known, targets = smaller(known, 14), smaller(targets, 14)
    rows = []
    for x, y in zip(targets, own, strict=True):
        values = np.append(labels, y)
        values = values % 2 if "odd" in name else values + (0.1 if name == "Poisson" else 0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted = estimator.fit(np.vstack([known, x]), values)
            record = informed.glm(fitted, known, values[:-1])
        rows.append(
            {"error": record.error(x), "predicted": record.predicted_error, "seconds": record.seconds,
             "trusted": record.trusted, "guess": record.facts["guessing_the_mean"]}
        )  # fmt: skip
    return rows


def compare(side: int) -> dict[str, Any]:
    """ART and ours on one logistic model of digits averaged to ``side`` x ``side``."""
    known, labels, targets, own = digits(1)
    rows = np.vstack([known[:200], targets])
    rows = smaller(rows, side)
    y = np.append(labels[:200], own) % 2
    with tempfile.TemporaryDirectory() as folder:
        given, model = Path(folder) / "data.npz", Path(folder) / "model.npz"
        np.savez(given, X=rows, y=y)
        try:
            done = subprocess.run(
                [environment(), "-c", WORKER, given, model], capture_output=True, text=True, timeout=CAP, check=False
            )
            art = (
                {"failure": done.stderr.strip().splitlines()[-1][:100]}
                if done.returncode
                else json.loads(done.stdout.strip().splitlines()[-1])
            )
        except subprocess.TimeoutExpired:
            art = {"failure": f"did not end in {CAP:.0f} s", "seconds": CAP}
        fitted = np.load(model)
    released = informed.LinearModel("logistic", fitted["coef"][0], float(fitted["intercept"][0]), penalty=1.0)
    began = time.perf_counter()
    record = informed.glm(released, rows[:-1], y[:-1])
    seconds = time.perf_counter() - began
    return {"features": side**2, "art": art, "ours": {"seconds": seconds, "error": record.error(rows[-1])}}


def run(plan: Plan) -> dict[str, Any]:
    """Every model trained well and by default, then ART on the same model."""
    parts: dict[str, Callable[[], Any]] = {
        f"{name}, {part}": partial(_summary, name, estimator, plan.seeds or count)
        for part, cases in (("well", WELL), ("default", DEFAULT))
        for name, (estimator, count) in cases.items()
    }
    parts |= {f"ART, {side * side} features": partial(compare, side) for side in (4, 28)}
    return plan.measure("informed", parts)


def _summary(name: str, estimator: Any, count: int) -> dict[str, Any]:
    rows = attack(name, estimator, count)
    ratios = np.array([row["predicted"] / max(row["error"], 1e-300) for row in rows])
    return {
        "records": len(rows), "largest_error": max(row["error"] for row in rows),
        "predicted_over_actual": [float(ratios.min()), float(ratios.max())],
        "within_3x": int(((ratios > 1 / 3) & (ratios < 3)).sum()),
        "seconds": float(np.median([row["seconds"] for row in rows])), "rows": rows,
    }  # fmt: skip

"""Ours beside the Adversarial Robustness Toolbox: the same networks, the same machine, values only, in one run.

ART is installed into an environment of its own under the cache folder, and each of its runs has a time cap, because it
does not always end. ``python -m experiments peers_art``; needs a package index.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
import venv
from functools import partial
from pathlib import Path
from typing import Any

import torch

import divulge
from divulge.core.errors import MissingPackage
from divulge.extraction import from_gradients, from_values
from divulge.models import ReluNetwork
from experiments.plan import Plan

CAP = 60
SHAPES = ((20, 8), (50, 16))
NETWORKS = 4
OUTPUTS = 10
PACKAGES = [
    "adversarial-robustness-toolbox==1.20.1",
    "numpy<2",
    "scipy",
    "scikit-learn",
    "six",
    "tqdm",
    "packaging",
    "setuptools",
]

WORKER = """
import json, signal, sys, time
import numpy as np
from art.attacks.extraction import FunctionallyEquivalentExtraction
from art.estimators.classification.blackbox import BlackBoxClassifierNeuralNetwork


weights = np.load(sys.argv[1])
A, b, W = weights["A"], weights["b"], weights["W"]
asked = 0

def answer(x):
    global asked
    asked += len(x)
    return np.maximum(np.asarray(x, dtype=np.float64) @ A.T + b, 0) @ W.T

d, h, k = A.shape[1], len(A), len(W)
target = BlackBoxClassifierNeuralNetwork(answer, (d,), k, channels_first=False)
rng = np.random.default_rng(0)
np.random.seed(0)

def late(*_):
    raise TimeoutError(f"did not end in {sys.argv[2]} s")

signal.signal(signal.SIGALRM, late)
signal.alarm(int(sys.argv[2]))
began = time.perf_counter()
try:
    copy = FunctionallyEquivalentExtraction(target, num_neurons=h).extract(rng.normal(size=(100, d)))
    signal.alarm(0)
except Exception as error:
    found = {"failure": f"{type(error).__name__}: {error}"[:120], "queries": asked}
else:
    X = rng.normal(size=(2000, d))
    truth = np.maximum(X @ A.T + b, 0) @ W.T
    found = {"queries": asked, "error": float(np.abs(copy.predict(X) - truth).max() / truth.std(axis=0).max())}
print(json.dumps(found | {"seconds": time.perf_counter() - began}))
"""


def network(inputs: int, width: int, seed: int) -> ReluNetwork:
    g = torch.Generator().manual_seed(seed)
    return ReluNetwork(
        torch.randn(width, inputs, generator=g, dtype=torch.float64) / inputs**0.5,
        0.5 * torch.randn(width, generator=g, dtype=torch.float64),
        torch.randn(OUTPUTS, width, generator=g, dtype=torch.float64) / width**0.5,
    )


def environment(name: str = "art", *more: str) -> Path:
    """The interpreter of ART's own environment, with ``more`` packages beside it, built on first use."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "divulge" / "peers" / name
    python = cache / "bin" / "python"
    if not (cache / ".ready").exists():
        venv.create(cache, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES, *more], check=True)
        (cache / ".ready").touch()
    return python


def art(python: Path, model: ReluNetwork) -> dict[str, object]:
    import numpy as np

    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "weights.npz"
        np.savez(weights, **{name: getattr(model, name).detach().numpy() for name in ("A", "b", "W")})
        command = [str(python), "-c", WORKER, str(weights), str(CAP)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failure": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:100]}
    answer: dict[str, object] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def ours(model: ReluNetwork, access: str, seed: int) -> dict[str, object]:
    oracle = divulge.oracle(model, access="gradient")
    began = time.perf_counter()
    stolen = from_values(oracle, seed=seed) if access == "values" else from_gradients(oracle, seed=seed)
    seconds = time.perf_counter() - began
    g = torch.Generator().manual_seed(77)
    X = torch.randn(2000, oracle.input_dim, generator=g, dtype=torch.float64)
    with torch.no_grad():
        truth = model(X)
        off = float((truth - stolen.model(X)).abs().max() / truth.std(dim=0).max())
    return {"queries": stolen.queries, "seconds": seconds, "error": off}


def run(plan: Plan) -> dict[str, Any]:
    """ART and both of our attacks on the same networks."""
    try:
        python = environment()
    except subprocess.CalledProcessError as error:
        raise MissingPackage("ART could not be installed; this comparison needs a package index.") from error
    return plan.measure("peers_art", {
        f"{inputs}-{width}-{OUTPUTS}, seed {seed}": partial(beside, python, inputs, width, seed)
        for inputs, width in SHAPES
        for seed in plan.seeds_of(NETWORKS)
    })  # fmt: skip


def beside(python: Path, inputs: int, width: int, seed: int) -> dict[str, Any]:
    """One network by ART, from values and from gradients."""
    model = network(inputs, width, seed)
    return {
        "art": art(python, model), "values": ours(model, "values", seed), "gradients": ours(model, "gradients", seed)
    }  # fmt: skip

"""Audits at the scale of real models: whether they keep their time and memory, and what they could and could not do.

Each audit runs in a process of its own with a limit of 4 GiB beyond what the model and the data take. Untrained weights
and drawn data are enough to see time and memory. ``python -m experiments scale``; ``DIVULGE_SCALE_SECONDS`` sets the
time of an audit, 60 by default.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import subprocess
import sys
import time
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

import divulge
from experiments.plan import Plan

SECONDS = float(os.environ.get("DIVULGE_SCALE_SECONDS", "60"))
GIB = 1 << 30


def resnet18() -> tuple[Any, Any, dict[str, Any]]:
    """ResNet-18 on 32 x 32 pictures: 11 million weights."""
    model = divulge.models.build("resnet18", shape=(3, 32, 32), outputs=10).eval()
    pictures = torch.rand(2000, 3072, generator=torch.Generator().manual_seed(0))
    return model, (pictures, torch.arange(2000) % 10), {"shape": (3, 32, 32)}


def mlp() -> tuple[Any, Any, dict[str, Any]]:
    """A multi-layer perceptron of 50 million weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sizes = [512, 4800, 4800, 4800, 10]
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(sizes):
            layers += [nn.Linear(before, after), nn.ReLU()]
        model = nn.Sequential(*layers[:-1])
    rows = torch.randn(2000, 512, generator=torch.Generator().manual_seed(0))
    return model, (rows, torch.arange(2000) % 10), {}


def table() -> tuple[Any, Any, dict[str, Any]]:
    """A logistic regression on a table of 1,000,000 rows and 50 columns."""
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    X = rng.standard_normal((1_000_000, 50))
    y = (X[:, :5].sum(axis=1) + rng.standard_normal(len(X)) > 0).astype(int)
    return LogisticRegression().fit(X[:20_000], y[:20_000]), (X, y), {}


def wide() -> tuple[Any, Any, dict[str, Any]]:
    """A convolutional network on pictures of 224 x 224 in colour: 150,528 inputs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 16, 7, stride=4), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=4), nn.ReLU(),
            nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 10),
        )  # fmt: skip
    pictures = torch.rand(200, 150_528, generator=torch.Generator().manual_seed(0))
    return model, (pictures, torch.arange(200) % 10), {"shape": (3, 224, 224), "input_shape": (3, 224, 224)}


SUBJECTS = {"resnet18": resnet18, "mlp50m": mlp, "table1m": table, "inputs150k": wide}


def worker(name: str, seconds: float) -> dict[str, Any]:
    """One audit in this process; what is imported when it is first used is no part of its time."""
    import matplotlib.pyplot  # noqa: F401
    import torch._dynamo  # noqa: F401

    audit = divulge.audit
    model, data, options = SUBJECTS[name]()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    began = time.perf_counter()
    report = audit(model, data, time=seconds, **options)
    return {
        "seconds": time.perf_counter() - began,
        "allowed_seconds": seconds,
        "gibibytes": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before) / GIB,
        "findings": {one.name: one.outcome for one in report.findings},
        "skipped": {one.name: f"{one.ending}: {one.reason}" for one in report.skipped},
    }


def measured(name: str) -> dict[str, Any]:
    """One audit in a process of its own."""
    code = (
        f"import json; from experiments.benchmarks.scale import worker; print(json.dumps(worker({name!r}, {SECONDS})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failure": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def run(plan: Plan) -> dict[str, Any]:
    """Every subject."""
    return plan.measure("scale", {name: partial(measured, name) for name in SUBJECTS})

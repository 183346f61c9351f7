"""Membership beside other tools: the same targets, records and reference models, in one run.

CIFAR-10 networks: Privacy Meter's RMIA, LeakPro's LiRA and ART's black-box attack score the answers of the reference
models that ours uses. Tables: SACRO-ML's LiRA (which trains as many reference models of its own) and ART. Training: the
group program beside Privacy Meter's loop, in processor seconds.

    export PEERS_PYTHON=.../bin/python PRIVACY_METER=.../ml_privacy_meter LEAKPRO=.../LeakPro
    python -m experiments peers_membership

``PEERS_PYTHON`` is an interpreter with torch, adversarial-robustness-toolbox 1.20.1, sacroml 2.0.1, pydantic and
optuna; the other two are checkouts. A tool that is not there is left out and named.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import divulge
from divulge.core.errors import InvalidInput
from divulge.core.roc import area, rate_at
from divulge.membership.reference_models import halves
from divulge.training.batched.subsets import supported, train_on_parts
from experiments.plan import Plan

SEEDS = 3
MEMBERS, POPULATION, SHADOWS, TABLE_SHADOWS, TIMED = 5_000, 2_000, 4, 16, 16
WORKER = Path(__file__).parents[1] / "peers" / "membership_scores.py"
RECIPES = {
    "MLP": {"widths": [3072, 64, 10], "epochs": 20, "batch_size": 64, "learning_rate": 0.02, "momentum": 0.9},
    "CNN": {"architecture": {"architecture": "two-conv", "shape": [3, 32, 32], "filters": [8, 16], "dense": 64,
                             "outputs": 10}, "epochs": 12, "batch_size": 64, "learning_rate": 2e-3,
            "optimiser": "adam"},
}  # fmt: skip
METHODS = ("rmia", "rmia-offline", "lira", "lira-offline")


def peers(folder: Path, *tools: str) -> dict[str, Any]:
    """The scores of other tools, and why those failed that did."""
    python = os.environ.get("PEERS_PYTHON")
    if not python:
        raise InvalidInput("Name with PEERS_PYTHON an interpreter that has the other tools; the page says which.")
    given = dict(os.environ, OMP_NUM_THREADS="1")
    done = subprocess.run([python, str(WORKER), str(folder), *tools], capture_output=True, text=True, check=False,
                          env=given)  # fmt: skip
    if done.returncode:
        return {"scores": {}, "failed": {"all": done.stderr.strip().splitlines()[-1][:200]}}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def judged(scores: Any, members: int) -> dict[str, Any]:
    """AUC, and the rate of members found at a false positive rate of 1 %, with their intervals."""
    values = np.nan_to_num(np.asarray(scores, dtype=float), posinf=1e12, neginf=-1e12)
    inside, outside = values[:members], values[members:]
    return {"auc": list(area(inside, outside)), "at_one_percent": list(rate_at(inside, outside, 0.01))}


def networks(kind: str, seed: int) -> dict[str, Any]:
    """One target and four reference models on CIFAR-10, by ours and by the others."""
    data = divulge.datasets.load("cifar10").train
    order = np.random.default_rng([seed, 77]).permutation(len(data.X))[: 2 * MEMBERS + POPULATION]
    X, y = data.X[order].flatten(1).float(), data.y[order]
    X = X.reshape(-1, 3, 32, 32) if "architecture" in RECIPES[kind] else X
    pool, rest = slice(0, 2 * MEMBERS), slice(2 * MEMBERS, None)
    recipe = divulge.Recipe(**RECIPES[kind], seed=seed)  # type: ignore[arg-type]
    target = recipe.train(X[:MEMBERS], y[:MEMBERS])
    inside = halves(SHADOWS, 2 * MEMBERS, seed)
    models = references(recipe, X[pool], y[pool], inside, seed)
    given = iter(models)
    sides = (X[:MEMBERS], y[:MEMBERS]), (X[MEMBERS : 2 * MEMBERS], y[MEMBERS : 2 * MEMBERS])
    rows: dict[str, Any] = {"accuracy": accuracy(target, sides)}
    for method in (*METHODS, "auto"):
        given = iter(models)
        train = None if method == "auto" else lambda X, y, seed, given=given: next(given)
        risk = divulge.membership.attack(target, *sides, train=train, shadows=SHADOWS, method=method, seed=seed,
                                         check_distribution=False)  # fmt: skip
        scores = np.concatenate([risk.scores, risk.non_member_scores])
        rows[f"divulge {method}" + (" without reference models" if method == "auto" else "")] = judged(scores, MEMBERS)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        np.savez(
            Path(folder) / "signals.npz", y=y[pool].numpy(), members=MEMBERS, inside=inside,
            target=target(X[pool]).numpy(), references=np.stack([model(X[pool]).numpy() for model in models]),
            population_y=y[rest].numpy(), population_target=target(X[rest]).numpy(),
            population_references=np.stack([model(X[rest]).numpy() for model in models]),
        )  # fmt: skip
        found = peers(Path(folder), "privacy_meter", "art", "leakpro")
    rows |= {tool: judged(scores, MEMBERS) for tool, scores in found["scores"].items()}
    return rows | ({"failed": found["failed"]} if found["failed"] else {})


def references(recipe: Any, X: Any, y: Any, inside: Any, seed: int) -> list[Any]:
    parts = [torch.as_tensor(np.flatnonzero(own)) for own in inside]
    seeds = [1_000 * (seed + 1) + place for place in range(len(parts))]
    if supported(recipe):
        return list(train_on_parts(recipe, X, y, parts, seeds))
    return [replace(recipe, seed=own).train(X[part], y[part]) for part, own in zip(parts, seeds, strict=True)]


def accuracy(model: Any, sides: Any) -> list[float]:
    """On members and on others."""
    with torch.no_grad():
        return [float((model(X).argmax(1) == y).float().mean()) for X, y in sides]


def table(kind: str, seed: int) -> dict[str, Any]:
    """A model of the breast-cancer table, by ours and by the others."""
    from experiments.benchmarks.membership import halves as sides_of

    (X, y), (U, v) = sides_of("breast-cancer", seed)
    model = estimator(kind, seed).fit(X, y)
    rows: dict[str, Any] = {}
    for method in (*METHODS, "auto"):
        train = None if method == "auto" else model
        risk = divulge.membership.attack(model, (X, y), (U, v), train=train, shadows=TABLE_SHADOWS, method=method,
                                         seed=seed, check_distribution=False)  # fmt: skip
        scores = np.concatenate([risk.scores, risk.non_member_scores])
        rows[f"divulge {method}" + (" without reference models" if method == "auto" else "")] = judged(scores, len(X))
    inside = halves(TABLE_SHADOWS, len(X) + len(U), seed)
    pool, labels = np.concatenate([X, U]), np.concatenate([y, v]).astype(int)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        answers = [logits(estimator(kind, 100 + place).fit(pool[own], labels[own]), pool)
                   for place, own in enumerate(inside)]  # fmt: skip
        np.savez(folder / "signals.npz", y=labels, members=len(X), inside=inside, target=logits(model, pool),
                 references=np.stack(answers))  # fmt: skip
        np.savez(folder / "table.npz", X=X, y=y.astype(int), U=U, v=v.astype(int), shadows=TABLE_SHADOWS)
        (folder / "model.pkl").write_bytes(pickle.dumps(estimator(kind, seed).fit(X, y.astype(int))))
        found = peers(folder, "sacro", "art")
    rows |= {tool: judged(scores, len(X)) for tool, scores in found["scores"].items()}
    return rows | ({"failed": found["failed"]} if found["failed"] else {})


def logits(model: Any, rows: Any) -> Any:
    return np.log(np.clip(model.predict_proba(rows), 1e-12, 1.0))


def estimator(kind: str, seed: int) -> Any:
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if kind == "forest":
        return RandomForestClassifier(100, random_state=seed)
    if kind == "logistic":
        return make_pipeline(StandardScaler(), LogisticRegression(C=100.0, max_iter=2000))
    import xgboost

    return xgboost.XGBClassifier(n_estimators=60, random_state=seed, n_jobs=1)


def timed(widths: list[int]) -> dict[str, Any]:
    """Processor seconds of 16 reference models by the group program, and of Privacy Meter's loop (two, scaled)."""
    data = divulge.datasets.load("cifar10").train
    X, y = data.X[: 2 * MEMBERS].flatten(1).float()[:, : widths[0]].contiguous(), data.y[: 2 * MEMBERS]
    inside = halves(TIMED, len(X), 0)
    parts = [torch.as_tensor(np.flatnonzero(own)) for own in inside]
    recipe = divulge.Recipe(widths=widths, epochs=3, batch_size=64, learning_rate=0.05, momentum=0.9)
    began = time.process_time()
    train_on_parts(recipe, X, y, parts, list(range(TIMED)))
    ours = time.process_time() - began
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "training.npz", X=X.numpy(), y=y.numpy(), epochs=3, batch=64, widths=np.array(widths),
                 parts=np.stack([part.numpy() for part in parts[:2]]))  # fmt: skip
        found = peers(Path(folder), "training")
    if found["failed"]:
        return {"ours": ours, "failed": found["failed"]}
    theirs = TIMED * found["scores"]["seconds a model"][0]
    return {"ours": ours, "Privacy Meter": theirs, "ratio": theirs / ours}


def run(plan: Plan) -> dict[str, Any]:
    """Networks, tables and training times."""
    parts: dict[str, Callable[[], Any]] = {
        f"{kind}, seed {seed}": partial(table, kind, seed)
        for seed in plan.seeds_of(SEEDS)
        for kind in ("forest", "logistic", "xgboost")
    }
    parts |= {
        f"{kind}, seed {seed}": partial(networks, kind, seed) for kind in RECIPES for seed in plan.seeds_of(SEEDS)
    }
    parts |= {f"training {'-'.join(map(str, widths))}": partial(timed, widths)
              for widths in ([3072, 64, 10], [192, 64, 10], [64, 32, 10])}  # fmt: skip
    return plan.measure("peers_membership", parts)

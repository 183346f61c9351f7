"""Membership inference on a forest and a network by every method, and the memory that a million records take.

python -m experiments membership [--seeds N]
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

import divulge
from experiments.plan import Plan

SEEDS = 3
METHODS = ("loss", "confidence", "quantile", "combined", "rmia", "rmia-offline", "lira", "lira-offline")


def halves(name: str, seed: int) -> tuple[Any, Any]:
    """A data set in two random halves: members and non-members."""
    data = divulge.datasets.load(name)
    X = torch.cat([data.train.X, data.test.X]).double().numpy()
    y = torch.cat([data.train.y, data.test.y]).numpy()
    order = np.random.default_rng(seed).permutation(len(X))
    first, second = order[: len(X) // 2], order[len(X) // 2 :]
    return (X[first], y[first]), (X[second], y[second])


def targets(seed: int) -> list[tuple[str, Any, Any, tuple[Any, Any]]]:
    """A name, a trained model, how models like it are trained, and both halves."""
    from sklearn.ensemble import RandomForestClassifier

    cancer, digits = halves("breast-cancer", seed), halves("digits", seed)
    forest = RandomForestClassifier(100, random_state=seed).fit(*cancer[0])
    recipe = divulge.Recipe(widths=[64, 64, 10], epochs=200, batch_size=64, learning_rate=0.1, seed=seed)
    return [("forest", forest, forest, cancer), ("network", recipe.train(*digits[0]), recipe, digits)]


def measured(target: str, method: str, seed: int) -> dict[str, Any]:
    """One attack: AUC, and the rate of members found at a false positive rate of 1 %, with their intervals."""
    _, model, train, sides = next(one for one in targets(seed) if one[0] == target)
    risk = divulge.membership.attack(model, *sides, train=train, method=method, seed=seed, check_distribution=False)
    return {
        "auc": risk.auc, "auc_interval": risk.auc_interval, "at_one_percent": risk.tpr(0.01), "seconds": risk.seconds,
    }  # fmt: skip


def million(method: str) -> dict[str, float]:
    """A million records against a linear model: time, and the most memory that the process held."""
    rng, started = np.random.default_rng(0), time.perf_counter()
    X = rng.normal(size=(1_000_000, 20))
    y = (X @ rng.normal(size=20) > 0).astype(int)
    divulge.membership.attack(torch.nn.Linear(20, 1), (X[:500_000], y[:500_000]), (X[500_000:], y[500_000:]),
                              method=method)  # fmt: skip
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"seconds": time.perf_counter() - started, "gigabytes": memory}


def run(plan: Plan) -> dict[str, Any]:
    """Every target, method and seed, and a million records."""
    parts: dict[str, Callable[[], Any]] = {
        f"{target}, {method}, seed {seed}": partial(measured, target, method, seed)
        for seed in plan.seeds_of(SEEDS)
        for target in ("forest", "network")
        for method in METHODS
    }
    parts |= {f"a million records, {method}": partial(million, method) for method in ("confidence", "combined")}
    return plan.measure("membership", parts)

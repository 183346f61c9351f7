"""Lower limits on epsilon by canaries beside the claimed epsilon, for digits trained privately at epsilon 1, 4 and 8.

Full batches and Poisson samples; an adversary who sees every noisy sum, the trained weights, or the answers. Noise
comes from the operating system, so that two runs differ. ``python -m experiments epsilon_audit [--seeds N]``
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import divulge
from divulge.training import Privacy
from divulge.training.private.accounting import noise_for
from divulge.training.private.trainer import schedule
from experiments.plan import Plan

RUNS, ROWS, DELTA = 20, 600, 1e-5
EPSILONS = (1.0, 4.0, 8.0)
BATCHES = {"full batches": None, "batches of 100": 100}


def limits(epsilon: float, batch_size: int | None, sees: str, runs: range) -> dict[str, Any]:
    """The limit of each run: all of them below the claim, and how far they reach."""
    X, y = divulge.datasets.load("digits").train
    recipe = divulge.Recipe(widths=[64, 64, 10], epochs=30, batch_size=batch_size, learning_rate=0.5)
    steps, rate = schedule(recipe, ROWS)
    noise = noise_for(epsilon, delta=DELTA, steps=steps, sampling_rate=rate)
    recipe = replace(recipe, privacy=Privacy(noise_multiplier=noise, delta=DELTA))
    found = [
        divulge.membership.epsilon_audit(recipe, X[:ROWS], y[:ROWS], sees=sees, claimed=epsilon, seed=run).epsilon  # type: ignore[arg-type]
        for run in runs
    ]
    return {
        "runs": len(found), "below the claim": sum(one < epsilon for one in found), "smallest": min(found),
        "mean": sum(found) / len(found), "largest": max(found), "smallest over claim": min(found) / epsilon,
        "all": found,
    }  # fmt: skip


def run(plan: Plan) -> dict[str, Any]:
    """Every epsilon, kind of batch and adversary."""
    return plan.measure("epsilon_audit", {
        f"epsilon {epsilon:g}, {name}, {sees}": partial(limits, epsilon, size, sees, plan.seeds_of(RUNS))
        for name, size in BATCHES.items()
        for sees in ("steps", "weights", "values")
        for epsilon in EPSILONS
        if size is None or sees == "steps"
    })  # fmt: skip

"""Training pictures out of the difference of two checkpoints: networks, extractors, and what stops it.

python -m experiments known_start --seed 400
python -m experiments known_start --seed 400 --only "MNIST, 100"   # one part
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch

from divulge import reconstruction
from divulge.core.errors import DivulgeError
from divulge.reconstruction.matching import correlation
from experiments.known_start.networks import SETTINGS, accuracy, epsilon, trained
from experiments.known_start.tables import TABLES, table_attacked
from experiments.plan import Plan

PRINTED = 1_500
"""Iterations of the printed scheme, a minute or two; the paper takes 100,000."""
HIGH = 0.9


def printed(name: str, seed: int) -> dict[str, Any]:
    """The same network by the scheme of Haim et al. 2022 as printed, which does not take the start; n is told."""
    setting = SETTINGS[name]
    _, model, (X, _, unseen, _), _ = trained(setting, seed)
    found = reconstruction.from_weights(
        model, method="paper", n=setting.n, settings=reconstruction.PaperSettings(iterations=PRINTED), seed=seed
    )
    judged = found.match(X, unseen=unseen, mean=torch.zeros(X.shape[1]))
    assert judged.control is not None
    return {
        "what": name, "seed": seed, "n": setting.n, "found": judged.found(HIGH), "iterations": PRINTED,
        "unseen_above_0.9": int((judged.control.correlation > HIGH).sum()), "seconds": found.seconds,
    }  # fmt: skip


def attacked(name: str, seed: int) -> dict[str, Any]:
    """One network: how many pictures came back, and how many certificates are right."""
    setting = SETTINGS[name]
    start, model, (X, y, unseen, others), training = trained(setting, seed)
    row: dict[str, Any] = {
        "what": name, "seed": seed, "n": setting.n, "fits": accuracy(model, X, y, setting),
        "accuracy": accuracy(model, unseen, others, setting), "training_seconds": training, **epsilon(setting),
    }  # fmt: skip
    began = time.process_time()
    low = -1.0 if setting.data == "cifar10" and setting.centred else 0.0
    shape = (3, 32, 32) if setting.data == "cifar10" else (1, 28, 28)
    try:
        found = reconstruction.from_weights(
            model, start=start, seed=seed, n=setting.n if setting.told else None, value_range=(low, 1.0), shape=shape,
            seconds=setting.seconds,
        )  # fmt: skip
    except DivulgeError as error:
        return {**row, "refused": str(error)}
    processor = time.process_time() - began
    judged = found.match(X, unseen=unseen, mean=torch.zeros(X.shape[1]))
    likeness = correlation(found.samples, X).max(dim=1).values
    assert found.certified is not None
    assert judged.ssim is not None
    assert judged.control is not None
    unlikely = torch.quantile(judged.control.correlation, 0.99)
    error = (judged.rebuilt - judged.truth).square().mean(dim=1).sqrt() / (1.0 - low)
    return {
        **row, "rank": found.rank, "found": judged.found(HIGH), "ssim_above_0.9": int((judged.ssim > HIGH).sum()),
        "above_99_of_100_unseen": int((judged.correlation > unlikely).sum()), "threshold": float(unlikely),
        "certified": int(found.certified.sum()), "certified_right": int((likeness[found.certified] > HIGH).sum()),
        "unseen_above_0.9": int((judged.control.correlation > HIGH).sum()), "median_rms": float(error.median()),
        "best": float(judged.correlation.max()), "best_unseen": float(judged.control.correlation.max()),
        "labels_right": int((found.labels == y[correlation(found.samples, X).argmax(dim=1)]).sum()),
        "seconds": found.seconds, "processor_seconds": processor,
    }  # fmt: skip


def run(plan: Plan) -> dict[str, Any]:
    """Every setting on fresh networks."""
    tables = {
        name: partial(lambda named, seeds: [table_attacked(named, s) for s in seeds], name, plan.seeds_of(of.networks))
        for name, of in TABLES.items()
    }
    paper = {"as printed, CIFAR-10, 50": lambda: [printed("CIFAR-10, 50", s) for s in plan.seeds_of(1)]}
    pictures = {
        name: partial(lambda named, seeds: [attacked(named, s) for s in seeds], name, plan.seeds_of(of.networks))
        for name, of in SETTINGS.items()
    }
    return plan.measure("known_start", {**tables, **paper, **pictures})

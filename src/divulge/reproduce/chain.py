"""From a prediction endpoint to training pictures: extraction, orientation, re-balancing, reconstruction.

A 784-128-1 ReLU network is trained on 20 MNIST digits (odd against even, training mean subtracted) to a KKT point
and served over real HTTP. The client may ask for values only. It extracts the network exactly (Milli et al. 2019),
brings the copy to the scaling that gradient flow leaves, and reads training digits out of it (Haim et al. 2022), which
is shown beside the same from the true weights. The client is told the training mean; ``blind`` says what it gets
without (from the true weights). Digits that the network never saw are the control.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import divulge
from divulge import datasets, reconstruction
from divulge.errors import DivulgeError
from divulge.progress import report
from divulge.reconstruction import balance, margin

WIDTH, DIGITS, ALIKE = 128, 20, 0.9
UNSEEN = 200
RESTARTS = 3  # batches of restarts
EXTRA_EPOCHS = 2000  # past a loss of 1e-6: closer to the KKT point


def run(out: Path, *, full: bool = False, seed: int = 0) -> dict[str, Any]:
    """Several fresh sets of digits, one row each; ``full`` takes 20 sets instead of 5."""
    sets = 20 if full else 5
    rows = []
    for number in range(sets):
        report("chain", number, sets)
        rows.append(one_set(seed + number, picture=out / f"set-{seed + number}.png"))
    result = {
        "rows": rows,
        "mean_from_copy": sum(row["from_copy"] for row in rows) / sets,
        "mean_from_weights": sum(row["from_weights"] for row in rows) / sets,
        "unseen_above": sum(row["unseen_above"] for row in rows),
    }
    (out / "chain.json").write_text(json.dumps(result, indent=2))
    (out / "chain.md").write_text(table(result))
    return result


def one_set(seed: int, *, picture: Path | None = None) -> dict[str, Any]:
    """The whole chain on the digits that ``seed`` chooses."""
    from divulge import serving

    started = time.perf_counter()
    data = datasets.load("mnist").binary().subset(DIGITS, seed=seed)
    X, y = data.train.X.double(), data.train.y
    mean = X.mean(dim=0)
    start = margin.network([784, WIDTH, 1], first_scale=2e-3, balanced=True, seed=seed)
    model = margin.to_margin(start, X - mean, y, extra_epochs=EXTRA_EPOCHS).model
    trained = time.perf_counter()
    row: dict[str, Any] = {"seed": seed, "train_seconds": trained - started}
    with serving.running(model) as url:
        oracle = divulge.oracle(url, access="value")
        copy = divulge.extraction.from_values(oracle, seed=seed)
        row |= {"queries": copy.queries, "requests": oracle.ledger.requests, "exact": copy.exact, "width": copy.width}
        row["worst_error"] = copy.check(oracle, 1000) / copy.scale
    extracted = time.perf_counter()
    unseen = _unseen(seed) - mean
    try:
        found = reconstruction.from_weights(balance.from_extraction(copy), mean=mean, seed=seed, batches=RESTARTS)
        row |= _judged(found, X - mean, unseen, mean, picture)
    except DivulgeError as error:
        row |= {"from_copy": 0, "samples": 0, "unseen_above": 0, "why": str(error)}
    done = time.perf_counter()
    row |= {"extract_seconds": extracted - trained, "rebuild_seconds": done - extracted, "seconds": done - started}
    beside = reconstruction.from_weights(model, mean=mean, seed=seed, batches=RESTARTS)
    row["from_weights"] = _judged(beside, X - mean, unseen, mean)["from_copy"]
    blind = reconstruction.from_weights(model, seed=seed, batches=RESTARTS)
    row["blind"] = _judged(blind, X - mean, unseen, mean)["from_copy"]
    return row


def _unseen(seed: int) -> Tensor:
    X = datasets.load("mnist").test.X
    chosen = torch.randperm(len(X), generator=torch.Generator().manual_seed(seed))[:UNSEEN]
    return X[chosen].double()


def _judged(found: Any, X: Tensor, unseen: Tensor, mean: Tensor, picture: Path | None = None) -> dict[str, Any]:
    match = found.match(X, unseen, mean=mean, threshold=ALIKE)
    if picture is not None and len(found.samples):
        match.picture(picture)
    above = 0 if match.control is None else int((match.control.correlation > ALIKE).sum())
    return {"from_copy": match.found(), "samples": len(found.samples), "unseen_above": above}


def table(result: dict[str, Any]) -> str:
    """The rows as Markdown."""
    lines = [
        "| set | value queries | requests | copy's worst error / spread | rebuilt from the copy | from the weights "
        "| mean unknown | unseen above 0.9 | seconds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['seed']} | {r['queries']:,} | {r['requests']} | {r['worst_error']:.1e} | {r['from_copy']}/{DIGITS} "
        f"| {r['from_weights']} | {r['blind']} | {r['unseen_above']}/{UNSEEN} | {r['seconds']:.0f} |"
        for r in result["rows"]
    ]
    return "\n".join(lines) + "\n"

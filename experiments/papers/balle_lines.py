"""Balle et al. 2022, Tables II, III and IV and figure 16: the MNIST lines over three fixed sets and three starts.

Each line is attacked by inverting training (``divulge.informed.direct``), without shadow models. Every pair of a fixed
set and an initialisation is a cell with targets of its own; dear lines have three cells, the others nine. The mean
error of a line comes with a 95 % bootstrap interval: cells are drawn with replacement, and targets within them. Cells
are kept on disk as they come.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from divulge import informed

if TYPE_CHECKING:
    from experiments.papers.balle import Lab
    from experiments.papers.balle_factors import Factor

SETS, STARTS = 3, 3
_FIRST_SET, _FIRST_START = 40, 70  # seeds of fixed sets and of initial weights, after the run's own
_DRAWS = 4000


def lines(lab: Lab, factors: list[Factor]) -> dict[str, Callable[[], dict[str, Any]]]:
    """A part for each line."""
    return {f"three sets, three starts: {factor.name}": partial(line, lab, factor) for factor in factors}


def line(lab: Lab, factor: Factor) -> dict[str, Any]:
    """One line in all cells."""
    name = "".join(letter if letter.isalnum() else "-" for letter in factor.name)
    path = lab.out / f"line-{name}.json"
    cells: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    pairs = zip(range(SETS), range(STARTS), strict=True) if factor.diagonal else product(range(SETS), range(STARTS))
    for place, start in pairs:
        key = f"set {place}, start {start}"
        if key not in cells:
            cells[key] = cell(lab, factor, place, start)
            path.write_text(json.dumps(cells, indent=2) + "\n")
    return {"paper": factor.paper, "fixed": factor.fixed, **summary(list(cells.values()))}


def cell(lab: Lab, factor: Factor, place: int, start: int) -> dict[str, Any]:
    """The targets of one fixed set under one initialisation."""
    own = replace(lab, seed=lab.seed + _FIRST_SET + place)
    count = lab.count or factor.each
    fixed, (X, y) = own.fixed(factor.fixed), own.rows(start * count, count)
    recipe = own.recipe(**factor.change, seed=lab.seed + _FIRST_START + start)
    models = own.released(recipe, fixed, (X, y))
    began = time.process_time()
    records = informed.direct(recipe, models, *fixed, runs=factor.runs)
    return {**measured(records, X, y, fixed[0]), "processor_seconds": time.process_time() - began}


def measured(records: list[informed.Record], X: Tensor, y: Tensor, known: Tensor) -> dict[str, Any]:
    """Errors, labels and trust of each target."""
    flat = known.flatten(1).double()
    return {
        "error": [record.error(x.flatten()) for record, x in zip(records, X, strict=True)],
        "predicted": [record.predicted_error for record in records],
        "trusted": [bool(record.trusted) for record in records],
        "label": [record.y == label for record, label in zip(records, y.tolist(), strict=True)],
        "nearest": torch.cdist(X.flatten(1).double(), flat).square().amin(dim=1).div(flat.shape[1]).tolist(),
        "runs": [record.training_runs for record in records],
    }


def summary(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """The mean over all targets with its interval, and what else the line says."""
    joined = {key: np.concatenate([one[key] for one in cells]) for key in cells[0] if key != "processor_seconds"}
    errors, trusted, near = joined["error"], joined["trusted"].astype(bool), joined["nearest"]
    low, high = interval([np.array(one["error"]) for one in cells])
    return {
        "attacked": len(errors), "cells": len(cells), "mean": float(errors.mean()), "low": low, "high": high,
        "median": float(np.median(errors)), "largest": float(errors.max()), "nearest": float(near.mean()),
        "labels_right": int(joined["label"].sum()), "closer_than_nearest": int((errors < near).sum()),
        "trusted": int(trusted.sum()), "trusted_and_wrong": int((trusted & (errors >= near)).sum()),
        "cell_means": [float(np.mean(one["error"])) for one in cells], "runs": float(joined["runs"].max()),
        "processor_seconds_a_target": sum(one["processor_seconds"] for one in cells) / len(errors),
    }  # fmt: skip


def interval(cells: list[np.ndarray[Any, np.dtype[np.float64]]]) -> tuple[float, float]:
    """A 95 % bootstrap interval for the mean error: cells are drawn, and targets within them."""
    rng = np.random.default_rng(0)
    means = []
    for _ in range(_DRAWS):
        drawn = [cells[place] for place in rng.integers(len(cells), size=len(cells))]
        means.append(np.concatenate([rng.choice(one, size=len(one)) for one in drawn]).mean())
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)

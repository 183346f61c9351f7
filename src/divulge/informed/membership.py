"""The informed membership test (Balle 2022, Algorithm 2): which of two candidates was the unknown row?

With deterministic training the answer is certain: train with each and compare. The test is interesting where training
is random in what the adversary does not know (initial weights, noise), and then its success over many draws bounds the
privacy parameter from below: (epsilon, delta)-DP would force TPR <= e^epsilon FPR + delta.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import beta
from torch import Tensor, nn

from divulge.errors import InvalidInput
from divulge.informed import checks
from divulge.informed.seen import flat_weights
from divulge.informed.shadows import with_row
from divulge.progress import report
from divulge.training import Recipe


@dataclass(frozen=True)
class Membership:
    """The outcome of the test on one released model."""

    guess: int
    """0 or 1: the candidate that the model was trained on."""
    distances: tuple[float, float]
    """How far the released weights are from training with each."""
    certain: bool
    """Whether one candidate reproduces the weights to rounding and the other does not."""
    seconds: float


@dataclass(frozen=True)
class Curve:
    """How well scores tell members (high) from others (low)."""

    fpr: NDArray[np.float64]
    tpr: NDArray[np.float64]
    auc: float
    tpr_at: dict[float, float]
    """The true positive rate at false positive rates of 0.001, 0.01 and 0.1."""
    epsilon: float
    """A lower bound on the privacy parameter, at the stated confidence."""
    delta: float
    confidence: float


def membership(
    recipe: Recipe,
    released: nn.Module | Tensor,
    known_X: Any,
    known_y: Any,
    candidates: Any,
    labels: Any,
    *,
    position: int | None = None,
) -> Membership:
    """Which of two candidate rows (with their labels) ``released`` was trained on besides the known rows."""
    started = time.perf_counter()
    X, y = checks.known(recipe, known_X, known_y)
    rows, targets = checks.known(recipe, candidates, labels)
    if len(rows) != 2:
        raise InvalidInput(f"The test takes two candidate rows; got {len(rows)}.")
    theta = released.reshape(-1).to(torch.float64) if isinstance(released, Tensor) else flat_weights(released)
    place = len(X) if position is None else position
    distances = []
    for turn in range(2):
        report("training with each candidate", turn, 2)
        own = flat_weights(recipe.train(*with_row(X, y, rows[turn], targets[turn], place)))
        checks.same_size(theta, own)
        distances.append(float((theta - own).norm()))
    rounding = 1e4 * torch.finfo(recipe.dtype).eps * float(theta.norm())
    guess = int(distances[1] < distances[0])
    certain = distances[guess] <= rounding < distances[1 - guess]
    return Membership(guess, (distances[0], distances[1]), certain, time.perf_counter() - started)


def membership_scores(
    recipe: Recipe, known_X: Any, known_y: Any, row: Any, label: Any, *, draws: int = 50, fresh_start: bool = True
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Minus the loss on the row, over models trained with it and over models trained without it (Balle 2022, figure
    11): each draw has a new seed (new initial weights and order) if ``fresh_start``, the recipe's own otherwise."""
    X, y = checks.known(recipe, known_X, known_y)
    z, target = checks.known(recipe, torch.as_tensor(row)[None], torch.as_tensor(label).reshape(1))
    scores: tuple[list[float], list[float]] = ([], [])
    for draw in range(draws):
        report("training with and without the row", draw, draws)
        own = replace(recipe, seed=recipe.seed + 1 + draw) if fresh_start else recipe
        for side, data in enumerate([with_row(X, y, z[0], target[0], len(X)), (X, y)]):
            model = own.train(*data)
            with torch.no_grad():
                scores[side].append(-float(own.loss_of(model(z), target)))
    return np.array(scores[0]), np.array(scores[1])


def roc(members: Any, others: Any, *, delta: float = 1e-5, confidence: float = 0.95) -> Curve:
    """The curve of a test's scores, and the privacy parameter it implies.

    For each threshold the rates' Clopper-Pearson bounds give (1 - FNR_upper - delta) / FPR_upper, and the same with
    the roles exchanged; epsilon is the log of the largest. The confidence is split over the thresholds tried.
    """
    inside, outside = np.sort(np.asarray(members, dtype=np.float64)), np.sort(np.asarray(others, dtype=np.float64))
    if len(inside) == 0 or len(outside) == 0 or not (np.isfinite(inside).all() and np.isfinite(outside).all()):
        raise InvalidInput("Both sides need at least one finite score.")
    thresholds = np.unique(np.concatenate([inside, outside]))
    above_in = len(inside) - np.searchsorted(inside, thresholds, side="left")
    above_out = len(outside) - np.searchsorted(outside, thresholds, side="left")
    tpr = np.concatenate([[1.0], above_in / len(inside), [0.0]])[::-1]
    fpr = np.concatenate([[1.0], above_out / len(outside), [0.0]])[::-1]
    auc = float(np.trapezoid(tpr, fpr))
    at = {level: float(tpr[fpr <= level].max()) for level in (0.001, 0.01, 0.1)}
    tried = np.unique(np.linspace(0, len(thresholds) - 1, min(20, len(thresholds))).astype(int))
    level = (1 - confidence) / (2 * 2 * len(tried))  # two rates, two directions, each threshold
    epsilon = max(_implied(above_in[i], len(inside), above_out[i], len(outside), level, delta) for i in tried)
    return Curve(fpr, tpr, auc, at, epsilon, delta, confidence)


def _implied(hits: int, n: int, alarms: int, m: int, level: float, delta: float) -> float:
    caught, clear = _lower(hits, n, level), _lower(m - alarms, m, level)
    false, missed = 1 - _lower(m - alarms, m, level), 1 - _lower(hits, n, level)
    best = 0.0
    for power, error in ((caught, false), (clear, missed)):
        if power > delta and error > 0:
            best = max(best, math.log((power - delta) / error))
    return best


def _lower(successes: int, trials: int, level: float) -> float:
    """The one-sided Clopper-Pearson lower bound of a rate."""
    return float(beta.ppf(level, successes, trials - successes + 1)) if successes else 0.0

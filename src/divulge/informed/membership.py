"""The informed membership test (Balle 2022, Algorithm 2): which of two candidates was the unknown row?

With deterministic training the answer is certain: train with each and compare. The test is interesting where training
is random in what the adversary does not know (initial weights, noise), and then its success over many draws bounds the
privacy parameter from below: (epsilon, delta)-DP would force TPR <= e^epsilon FPR + delta.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from divulge.core.errors import InvalidInput
from divulge.core.progress import report
from divulge.core.result import AttackResult
from divulge.core.roc import implied_epsilon
from divulge.informed import checks
from divulge.informed.released_view import flat_weights
from divulge.training import Recipe
from divulge.training.batched.shared_setup import with_row


@dataclass(frozen=True)
class Membership(AttackResult):
    """The outcome of the membership test on one released model.

    Attributes
    ----------
    guess : {0, 1}
        The candidate that the model was trained on.
    distances : (float, float)
        How far the released weights are from training with each candidate.
    certain : bool
        Whether one candidate reproduces the weights to rounding and the other does not.
    """

    guess: int
    distances: tuple[float, float]
    certain: bool

    @property
    def success(self) -> bool:
        """Whether the guess is certain."""
        return self.certain

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        own = {"guess": self.guess, "distances": list(self.distances), "certain": self.certain}
        return super().as_dict() | own


@dataclass(frozen=True)
class Curve:
    """How well scores tell members (high) from others (low).

    Attributes
    ----------
    fpr, tpr : ndarray
        False and true positive rates along the thresholds.
    auc : float
        The area under the curve.
    tpr_at : dict of float to float
        The true positive rate at false positive rates of 0.001, 0.01 and 0.1.
    epsilon : float
        A lower limit on the privacy parameter.
    delta : float
        The delta at which it holds.
    confidence : float
        The confidence with which it holds.
    """

    fpr: NDArray[np.float64]
    tpr: NDArray[np.float64]
    auc: float
    tpr_at: dict[float, float]
    epsilon: float
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
    """Which of two candidate rows a model was trained on besides the known rows (Balle 2022, Algorithm 2).

    Parameters
    ----------
    recipe : Recipe
        How the released model was trained.
    released : nn.Module or Tensor
        The model, or its weights in one vector.
    known_X : array [n, d]
        The training rows that the adversary knows: all but one.
    known_y : array [n]
        Their labels or targets.
    candidates : array [2, d]
        The two rows.
    labels : array [2]
        Their labels or targets.
    position : int, optional
        Where the unknown row stood in the training set; last by default.

    Returns
    -------
    Membership
        The guess, the distances behind it and whether it is certain.

    Raises
    ------
    InvalidInput
        There are not two candidates.
    WrongShape
        Rows, labels or weights do not fit the recipe.

    Examples
    --------
    >>> import divulge
    >>> data = divulge.datasets.load("iris")
    >>> X, y = data.train
    >>> recipe = divulge.Recipe(widths=[4, 8, 3], epochs=20, seed=0)
    >>> released = recipe.train(X[:50], y[:50])
    >>> divulge.informed.membership(recipe, released, X[:49], y[:49], X[49:51], y[49:51]).guess
    0
    """
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
    return Membership(
        guess, (distances[0], distances[1]), certain, method="membership", seed=recipe.seed,
        seconds=time.perf_counter() - started,
        reason="" if certain else "Neither candidate reproduces the weights to rounding, or both do.",
    )  # fmt: skip


def membership_scores(
    recipe: Recipe, known_X: Any, known_y: Any, row: Any, label: Any, *, draws: int = 50, fresh_start: bool = True
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Minus the loss on a row, over models trained with it and models trained without it (Balle 2022, figure 11).

    Parameters
    ----------
    recipe : Recipe
        How each model is trained.
    known_X : array [n, d]
        The other training rows.
    known_y : array [n]
        Their labels or targets.
    row : array [d]
        The row in question.
    label : int or float
        Its label or target.
    draws : int, default 50
        Models of each kind.
    fresh_start : bool, default True
        Whether each draw has a new seed, that is new initial weights and a new order; the recipe's own otherwise.

    Returns
    -------
    members, others : ndarray [draws]
        Scores of the models trained with the row and of those without it.

    Examples
    --------
    >>> import divulge
    >>> X, y = divulge.datasets.load("iris").train
    >>> recipe = divulge.Recipe(widths=[4, 8, 3], epochs=5)
    >>> members, others = divulge.informed.membership_scores(recipe, X[:20], y[:20], X[20], y[20], draws=3)
    >>> members.shape, others.shape
    ((3,), (3,))
    """
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
    """The ROC curve of a test's scores, and the privacy parameter that it implies.

    For each threshold the rates' Clopper-Pearson limits give (1 - FNR_upper - delta) / FPR_upper, and the same with the
    roles exchanged. epsilon is the logarithm of the largest. The confidence is split over the thresholds tried.

    Parameters
    ----------
    members : array [n]
        Scores where the row was in the training set; high scores say member.
    others : array [m]
        Scores where it was not.
    delta : float, default 1e-5
        The delta of (epsilon, delta)-DP.
    confidence : float, default 0.95
        With which the lower limit on epsilon holds.

    Returns
    -------
    Curve
        Rates, AUC, true positive rates at low false positive rates, and the lower limit on epsilon.

    Raises
    ------
    InvalidInput
        One side has no score, or a score is not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from divulge.informed import roc
    >>> rng = np.random.default_rng(0)
    >>> curve = roc(rng.normal(2.0, 1.0, 1000), rng.normal(0.0, 1.0, 1000))
    >>> bool(0.9 < curve.auc < 0.95), curve.epsilon > 1
    (True, True)
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
    error = (1 - confidence) / len(tried)
    counts = [(int(above_in[i]), len(inside), int(above_out[i]), len(outside)) for i in tried]
    epsilon = max(implied_epsilon(*one, delta=delta, error=error) for one in counts)
    return Curve(fpr, tpr, auc, at, epsilon, delta, confidence)

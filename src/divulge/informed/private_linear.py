"""The informed attack on a logistic or softmax regression that was released with Gaussian noise in its weights.

The insider knows every record but one, the scaler, C, the clipping norm and the size of the noise, and of the unknown
record the distribution: its mean and covariance for each label. The reconstruction is the most probable record: for
each label, Gauss-Newton steps on |released - trained(known + record)|^2 / noise^2 plus the prior's squared distance,
and then the label with the best sum. The derivative of the trained weights by the record is exact (implicit function
theorem). Without noise it solves the equations of Balle et al. 2022, section IV; with noise it is the attack for which
the Fisher information bound of ``divulge.protection.fisher_error_bound`` is sharp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from divulge.core.progress import tick
from divulge.training.private.logistic import PrivateEstimator, clipped, gradient

Array = NDArray[np.float64]
_STEPS = 8
_NEWTON = 20


@dataclass(frozen=True)
class _Prior:
    """The Gaussian prior of one label's records, in scaled columns."""

    mean: Array
    precision: Array
    log_share: float


def rebuild(released: PrivateEstimator, known_X: Any, known_y: Any, shadow_X: Any, shadow_y: Any) -> tuple[Array, Any]:
    """Rebuild the record that a private estimator was trained on besides the known ones.

    Parameters
    ----------
    released : PrivateEstimator
        The released pipeline, with the settings of its training.
    known_X, known_y : array [n, d], array [n]
        All training records but one.
    shadow_X, shadow_y : array [m, d], array [m]
        Records of the same population, for the prior.

    Returns
    -------
    x : ndarray [d]
        The record, in the units of the known rows.
    y : label
        Its label.
    """
    final = released.estimator[-1]
    classes = final.classes_
    target = np.column_stack([final.coef_, final.intercept_])
    rows = clipped(released.scale(known_X), released.norm)
    wide = np.column_stack([rows, np.ones(len(rows))])
    labels = np.searchsorted(classes, np.asarray(known_y))
    start = _minimum(np.zeros_like(target), wide, labels, released.C)
    found = []
    for label, prior in _priors(released, shadow_X, shadow_y, len(classes)).items():
        tick()
        x, score = _most_probable(released, target, start, wide, labels, label, prior)
        found.append((score, x, label))
    _, x, label = min(found, key=lambda one: one[0])
    return x * released.scale.scale + released.scale.centre, classes[label]


def fisher_information(released: PrivateEstimator, X: Any, y: Any, record: int) -> Array:
    """The Fisher information [d, d] of the released weights about one training record, in the record's own units.

    Parameters
    ----------
    released : PrivateEstimator
        The released pipeline.
    X, y : array [n, d], array [n]
        All training records.
    record : int
        The number of the record.

    Returns
    -------
    ndarray [d, d]
    """
    classes = released.estimator[-1].classes_
    rows = clipped(released.scale(X), released.norm)
    wide = np.column_stack([rows, np.ones(len(rows))])
    labels = np.searchsorted(classes, np.asarray(y))
    weights = _minimum(np.zeros((1 if len(classes) == 2 else len(classes), wide.shape[1])), wide, labels, released.C)
    x = released.scale(np.asarray(X, dtype=np.float64)[record : record + 1])[0]
    jacobian = _derivative(weights, wide, released, x, int(labels[record])) / released.scale.scale
    return np.asarray(jacobian.T @ jacobian / released.deviation**2)


def _priors(released: PrivateEstimator, X: Any, y: Any, classes: int) -> dict[int, _Prior]:
    rows = released.scale(X)
    labels = np.searchsorted(released.estimator[-1].classes_, np.asarray(y))
    pooled = np.cov(np.concatenate([rows[labels == k] - rows[labels == k].mean(axis=0) for k in np.unique(labels)]).T)
    pooled = np.atleast_2d(pooled) + 1e-4 * max(1e-12, float(np.trace(np.atleast_2d(pooled))) / rows.shape[1]) * np.eye(
        rows.shape[1]
    )
    precision = np.linalg.inv(pooled)
    return {
        k: _Prior(rows[labels == k].mean(axis=0), precision, float(np.log((labels == k).mean())))
        for k in range(classes)
        if (labels == k).any()
    }


def _most_probable(
    released: PrivateEstimator,
    target: Array,
    start: Array,
    wide: Array,
    labels: NDArray[Any],
    label: int,
    prior: _Prior,
) -> tuple[Array, float]:
    """The record with the best sum of misfit and prior for one label, and that sum."""
    noise = max(released.deviation, 1e-9)
    x, weights, best = prior.mean.copy(), start, (prior.mean.copy(), np.inf)
    for _ in range(_STEPS):
        extended = np.vstack([wide, np.append(clipped(x[None], released.norm)[0], 1.0)])
        weights = _minimum(weights, extended, np.append(labels, label), released.C)
        away = (target - weights).ravel() / noise
        score = float(away @ away + (x - prior.mean) @ prior.precision @ (x - prior.mean)) - 2 * prior.log_share
        if score >= best[1]:
            x = (x + best[0]) / 2  # the step was too long
            continue
        best = (x.copy(), score)
        J = _derivative(weights, extended, released, x, label) / noise
        x = x + np.linalg.solve(J.T @ J + prior.precision, J.T @ away - prior.precision @ (x - prior.mean))
    return best


def _derivative(weights: Array, wide: Array, released: PrivateEstimator, x: Array, label: int) -> Array:
    """How the trained weights [k (d + 1)] move with the record [d], both scaled; ``wide`` contains the record."""
    inside, outer = _clip_derivative(x, released.norm)
    row = np.append(inside, 1.0)
    width, k = len(row), len(weights)
    shares = _shares(weights, row[None])[0]
    target = np.array([float(label)]) if k == 1 else np.eye(k)[label]
    spread = np.diag(shares) - np.outer(shares, shares) if k > 1 else np.diag(shares * (1 - shares))
    slopes = spread @ weights[:, :-1]  # [k, d]: how the shares move with the record
    moved = np.zeros((k, width, width - 1))
    moved[:, : width - 1] = (shares - target)[:, None, None] * np.eye(width - 1)
    moved += row[None, :, None] * slopes[:, None, :]
    hessian = _hessian(weights, wide, released.C)
    found = -np.linalg.solve(hessian, released.C * moved.reshape(k * width, width - 1))
    return np.asarray(found @ outer)


def _clip_derivative(x: Array, norm: float) -> tuple[Array, Array]:
    length = float(np.linalg.norm(x))
    if length <= norm:
        return x, np.eye(len(x))
    unit = x / length
    return norm * unit, norm / length * (np.eye(len(x)) - np.outer(unit, unit))


def _shares(weights: Array, wide: Array) -> Array:
    scores = wide @ weights.T
    if len(weights) == 1:
        return np.asarray(1 / (1 + np.exp(-scores)))
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


def _hessian(weights: Array, wide: Array, C: float) -> Array:
    """The second derivative of F [k (d + 1), k (d + 1)]."""
    shares = _shares(weights, wide)
    k, width = weights.shape
    if k == 1:
        return np.asarray(np.eye(width) + C * (wide * (shares * (1 - shares))).T @ wide)
    blocks = np.eye(k * width).reshape(k, width, k, width)
    for a in range(k):
        for b in range(a, k):
            factor = shares[:, a] * ((a == b) - shares[:, b])
            block = C * (wide * factor[:, None]).T @ wide
            blocks[a, :, b, :] += block
            if b > a:
                blocks[b, :, a, :] += block.T
    return blocks.reshape(k * width, k * width)


def _minimum(weights: Array, wide: Array, labels: NDArray[Any], C: float) -> Array:
    """Newton steps from nearby weights to the minimum of F, each halved until the gradient falls."""
    slope = gradient(weights, wide, labels, C)
    for _ in range(_NEWTON):
        size = float(np.linalg.norm(slope))
        if size <= 1e-11 * max(1.0, float(np.linalg.norm(weights))):
            break
        step = np.linalg.solve(_hessian(weights, wide, C), slope.ravel()).reshape(weights.shape)
        for _ in range(30):
            moved = weights - step
            new = gradient(moved, wide, labels, C)
            if float(np.linalg.norm(new)) < size:
                break
            step = step / 2
        else:
            break
        weights, slope = moved, new
    return weights

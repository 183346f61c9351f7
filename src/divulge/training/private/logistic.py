"""Logistic and softmax regression with differential privacy, by output perturbation, for scikit-learn models.

Chaudhuri, Monteleoni and Sarwate 2011 (output perturbation), with Gaussian noise. The trained weights minimise F(w) =
C sum of losses + |w|^2 / 2, which is 1-strongly convex. If w minimises F and v minimises F plus one more loss C l,
then the gradient of F at v is -C grad l(v), so |v - w| <= C |grad l(v)|. The gradient of a logistic loss is at most
the norm of the row, that of a softmax loss at most sqrt(2) times that. Rows are clipped to a norm R after scaling and
get a constant column 1 for the intercept, which is regularised as every other weight (otherwise F is not strongly
convex). So the sensitivity is C sqrt(R^2 + 1), times sqrt(2) for softmax. It covers an inexact solver too: weights at
which the gradient of F has norm g are within g of the minimum, and twice the tolerance is added.

Two departures. The noise is Gaussian instead of Gamma, so that the release is exactly mu-GDP and composes with the
scaler's. And C is chosen by a rule that looks at the number of records and the noise, not at the records.

diffprivlib 0.6.6 has objective perturbation; it cannot be imported with scikit-learn 1.9 and calls arguments that
scikit-learn has removed, so it is not used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from divulge.core.errors import DivulgeError, InvalidInput
from divulge.core.validation import checked_number, checked_rows
from divulge.training.private import accounting
from divulge.training.private.preprocessing import PrivateScale, Scaling, private_scale, source_of

Array = NDArray[np.float64]
_TOLERANCE = 1e-4  # of the sensitivity: how far from the minimum the solver may stop
_SCORES = 10.0  # scores up to this size are as good as certain: what the rule for C aims at
_SCALER_SHARE = 0.2  # of mu squared, where the scaler is fitted to records


@dataclass(frozen=True)
class PrivateEstimator:
    """A scikit-learn pipeline of a scaler and a logistic or softmax regression, trained with differential privacy.

    Attributes
    ----------
    estimator : Pipeline
        The fitted pipeline, made of scikit-learn's own parts.
    mu : float
        The Gaussian DP that scaler and model spent together.
    delta : float
        The delta at which epsilon is stated.
    seeded : bool
        Whether the noise can be repeated, so that nothing can be claimed.
    C : float
        The regularisation that was used.
    norm : float
        To which rows were clipped after scaling.
    deviation : float
        The standard deviation of the noise in each weight.
    scale : PrivateScale
        The scaler.
    """

    estimator: Any
    mu: float
    delta: float
    seeded: bool
    C: float
    norm: float
    deviation: float
    scale: PrivateScale

    @property
    def epsilon(self) -> float:
        """The epsilon that was spent at ``delta``, as if nobody knew a seed."""
        return accounting.epsilon_spent(noise_multiplier=1 / self.mu, steps=1, delta=self.delta)


def regularisation_for(records: int, *, mu: float, norm: float) -> float:
    """C by a rule that looks at no record: it balances the loss that noise adds against the one that shrinking adds.

    Noise of deviation C G / mu in each weight raises the mean loss by at most (C G / mu)^2 G^2 / 8, with
    G^2 = norm^2 + 1. Shrinking raises it by |w|^2 / (2 C n) for weights w that would do without; such weights reach
    scores of 10 on rows of norm G. The sum is smallest where C^3 = 200 mu^2 / (n G^6).
    """
    G = math.sqrt(norm**2 + 1)
    return float((2 * _SCORES**2 * mu**2 / (records * G**6)) ** (1 / 3))


def private_logistic(
    X: Any,
    y: Any,
    *,
    epsilon: float,
    delta: float = 1e-5,
    ranges: Any,
    scaling: Scaling = "ranges",
    norm: float | None = None,
    C: float | None = None,
    seed: int | None = None,
) -> PrivateEstimator:
    """Train a scaler and a logistic or softmax regression that together are (epsilon, delta)-DP.

    Parameters
    ----------
    X : array [n, d]
        The records.
    y : array [n]
        Their classes. Which classes there are counts as public, as does the number of records.
    epsilon, delta : float
        What may be spent, for add-or-remove neighbours.
    ranges : array [d, 2]
        The least and largest value of each column, from what is publicly known and not from the records.
    scaling : {"ranges", "moments", "quantiles"}, default "ranges"
        How columns are scaled: by the ranges, which costs nothing, by private moments, or by private quartiles, each of
        which takes a fifth of the budget.
    norm : float, optional
        To which rows are clipped after scaling; by default the root of the number of columns.
    C : float, optional
        The inverse of the regularisation; by default chosen by a rule that looks at no record.
    seed : int, optional
        Repeats the noise. No privacy can be claimed then.

    Returns
    -------
    PrivateEstimator
        The fitted pipeline and what it spent.

    Raises
    ------
    InvalidInput
        There are fewer than two classes, or a parameter is out of its range.
    DivulgeError
        The solver did not come close enough to the minimum for the proof.

    Examples
    --------
    >>> import divulge
    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> ranges = [(0, 2 * column.max()) for column in X.T]  # in practice from the literature
    >>> private = divulge.protection.private_logistic(X, y, epsilon=4.0, ranges=ranges, seed=0)
    >>> private.estimator.score(X, y) > 0.8, round(private.epsilon, 6)
    (True, 4.0)
    """
    from sklearn.pipeline import Pipeline

    rows = checked_rows(X, what="records").numpy().astype(np.float64)
    labels = np.asarray(y)
    if labels.shape != (len(rows),):
        raise InvalidInput(f"There are {len(rows)} records and labels of shape {labels.shape}; give one label each.")
    classes = np.unique(labels)
    if len(classes) < 2:
        raise InvalidInput("A classifier needs two classes at least.")
    mu = 1 / accounting.noise_for(epsilon, delta=delta, steps=1)
    share = 0.0 if scaling == "ranges" else _SCALER_SHARE
    scale = private_scale(rows, ranges, mu=math.sqrt(share) * mu, method=scaling, seed=seed)
    own = math.sqrt(mu**2 - scale.mu**2)
    norm = math.sqrt(rows.shape[1]) if norm is None else checked_number("norm", norm, above=0)
    C = regularisation_for(len(rows), mu=own, norm=norm) if C is None else checked_number("C", C, above=0)
    inside = clipped(scale(rows), norm)
    weights = minimum(inside, np.searchsorted(classes, labels), len(classes), C, tolerance=_tolerance(C, norm, classes))
    deviation = (sensitivity(C, norm, len(classes)) + 2 * _tolerance(C, norm, classes)) / own
    weights = weights + _noise(weights.shape, deviation, None if seed is None else seed + 1)
    parts = [("scale", _scaler(scale)), ("model", _released(weights, classes, C))]
    return PrivateEstimator(Pipeline(parts), mu, delta, seed is not None, C, norm, deviation, scale)


def sensitivity(C: float, norm: float, classes: int) -> float:
    """How far one record more or less moves the minimum, at most."""
    return C * math.sqrt(norm**2 + 1) * (1.0 if classes == 2 else math.sqrt(2))


def clipped(rows: Array, norm: float) -> Array:
    """Rows with a norm of at most ``norm``."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows * np.minimum(1, norm / np.maximum(lengths, 1e-300)))


def minimum(rows: Array, labels: NDArray[Any], classes: int, C: float, *, tolerance: float) -> Array:
    """The weights [1 or k, d + 1] where the gradient of F has at most this norm; the last column is the intercept."""
    from sklearn.linear_model import LogisticRegression

    wide = np.column_stack([rows, np.ones(len(rows))])
    solver = LogisticRegression(C=C, fit_intercept=False, tol=1e-10, max_iter=5000, solver="newton-cg")
    weights: Array = solver.fit(wide, labels).coef_
    left = float(np.linalg.norm(gradient(weights, wide, labels, C)))
    if left > tolerance:
        raise DivulgeError(
            f"The solver stopped where the gradient has norm {left:.2g}, and the proof needs {tolerance:.2g}; use a "
            "smaller C or a smaller norm."
        )
    return weights


def gradient(weights: Array, wide: Array, labels: NDArray[Any], C: float) -> Array:
    """The gradient of F, one row a class (one row for two classes)."""
    scores = wide @ weights.T
    if len(weights) == 1:
        residuals = 1 / (1 + np.exp(-scores)) - labels[:, None]
    else:
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        residuals = shares / shares.sum(axis=1, keepdims=True) - np.eye(len(weights))[labels]
    return np.asarray(weights + C * residuals.T @ wide)


def _tolerance(C: float, norm: float, classes: Array) -> float:
    return _TOLERANCE * sensitivity(C, norm, len(classes))


def _noise(shape: tuple[int, ...], deviation: float, seed: int | None) -> Array:
    import torch

    return np.asarray(source_of(seed).normal(shape, deviation, torch.float64).numpy())


def _scaler(scale: PrivateScale) -> Any:
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler()
    scaler.mean_, scaler.scale_, scaler.var_ = scale.centre, scale.scale, scale.scale**2
    scaler.n_features_in_, scaler.n_samples_seen_ = len(scale.centre), 0  # the number of records is not released here
    return scaler


def _released(weights: Array, classes: NDArray[Any], C: float) -> Any:
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=C)
    model.classes_, model.n_features_in_ = classes, weights.shape[1] - 1
    model.coef_, model.intercept_ = weights[:, :-1].copy(), weights[:, -1].copy()
    model.n_iter_ = np.zeros(1, dtype=np.int32)
    return model

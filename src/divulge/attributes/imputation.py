"""What other people's rows say about the hidden column, with and without the model.

Two imputers (a forest and a logistic regression) predict the column from the known columns and the label; each record
is predicted from rows of other people only. A conditional logit over the candidate values weighs their log
probabilities. The attack weighs the same two and the model's answers for each candidate. Both are learned from other
people's rows, so that their difference is what the model adds, and nothing else.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Index = NDArray[np.int64]
FOLDS = 5
SMALLEST = 1e-3
"""Probability that no candidate falls below."""
PENALTY = 1.0
"""Squared weights are added to the negative log likelihood times this: they stay finite where values separate."""
TREES = 40


def folds_of(records: int, seed: int) -> Index:
    """The fold of each record [n]."""
    return np.asarray(np.random.default_rng([seed, 1]).permutation(records) % FOLDS)


def imputed(known: Array, own: Index, candidates: int, folds: Index, seed: int) -> Array:
    """Log probabilities of both imputers for every candidate [n, k, 2]; each record from the other folds only."""
    out = np.empty((len(own), candidates, 2))
    for fold in range(FOLDS):
        held, rest = folds == fold, folds != fold
        if held.any():
            out[held] = predicted(known[rest], own[rest], known[held], candidates, seed)
    return out


def predicted(known: Array, own: Index, asked: Array, candidates: int, seed: int) -> Array:
    """Log probabilities of both imputers [m, k, 2], learned from some rows, for others."""
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    imputers = (
        RandomForestClassifier(TREES, min_samples_leaf=2, random_state=seed),
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=300)),
    )
    out = np.full((len(asked), candidates, 2), SMALLEST)
    for place, imputer in enumerate(imputers):
        if len(np.unique(own)) == 1:
            out[:, own[0], place] = 1.0
            continue
        fitted = imputer.fit(known, own)
        out[:, fitted.classes_, place] = fitted.predict_proba(asked)
    out = np.maximum(out, SMALLEST)
    return np.asarray(np.log(out / out.sum(axis=1, keepdims=True)))


def weighed(features: Array, own: Index, folds: Index) -> Array:
    """Log probabilities of every candidate [n, k] by conditional logits, each learned from the other folds."""
    out = np.empty(features.shape[:2])
    for fold in range(FOLDS):
        held, rest = folds == fold, folds != fold
        if held.any():
            out[held] = log_softmax(features[held] @ weights(features[rest], own[rest]))
    return out


def weights(features: Array, own: Index) -> Array:
    """The weights [j] of a conditional logit: features [n, k, j], the chosen candidate [n]."""
    from scipy.optimize import minimize

    rows = np.arange(len(own))

    def loss(w: Array) -> tuple[float, Array]:
        logs = log_softmax(features @ w)
        away = np.exp(logs)
        away[rows, own] -= 1
        slope = np.einsum("nk,nkj->j", away, features) + 2 * PENALTY * w
        return float(-logs[rows, own].sum() + PENALTY * w @ w), slope

    found: Array = minimize(loss, np.zeros(features.shape[2]), jac=True, method="L-BFGS-B").x
    return found


def log_softmax(scores: Array) -> Array:
    """Log probabilities along the last axis."""
    shifted = scores - scores.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))

"""Several scores of one model weighed together, without reference models: what ``auto`` runs where it may not train.

No single score is the strongest everywhere: a threshold on the loss finds the members of one model, a regression on the
record those of another, and some models answer members with unusually little confidence. A logistic regression weighs
them. It learns from the other four fifths of both sides, so that no record is scored by weights that were chosen by it:
the attacker is one who knows of other records whether they were in (as in Nasr et al. 2019). Each score enters as the
normal quantile of its rank among the other non-members, and squared.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

Array = NDArray[np.float64]
Pair = tuple[Array, Array]
FOLDS = 5
MOST_TO_LEARN = 20_000
"""Records of a side that the regression learns from."""
MOST_RANKED = 100_000
"""Records up to which the regression on the record takes part: it asks 240 trees about each."""
BEYOND = 1e-3
"""Weight of the score itself beside its rank: it orders records that lie beyond all non-members."""


def weighed(scores: Sequence[Pair], seed: int) -> Pair:
    """One score for each record of both sides, from several; each is weighed by a regression on other records."""
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng([seed, 7])
    folds = [np.asarray(rng.permutation(len(side)) % FOLDS) for side in scores[0]]
    out = np.empty(len(scores[0][0])), np.empty(len(scores[0][1]))
    for fold in range(FOLDS):
        known = [np.flatnonzero(own != fold)[:MOST_TO_LEARN] for own in folds]
        ranked = [np.sort(others[known[1]]) for _, others in scores]
        tables = [_table([pair[side] for pair in scores], ranked) for side in (0, 1)]
        learned = LogisticRegression(class_weight="balanced").fit(
            np.concatenate([tables[side][known[side]] for side in (0, 1)]),
            np.repeat([1, 0], [len(known[0]), len(known[1])]),
        )
        for side in (0, 1):
            held = folds[side] == fold
            out[side][held] = learned.decision_function(tables[side][held])
    return out


def _table(columns: list[Array], ranked: list[Array]) -> Array:
    """The normal quantile of each score's rank among non-members, and its square [n, 2 * scores]."""
    quantiles = []
    for values, others in zip(columns, ranked, strict=True):
        places = np.searchsorted(others, values, side="left") + np.searchsorted(others, values, side="right")
        low, middle, high = np.quantile(others, [0.1, 0.5, 0.9])
        away = ((values - middle) / max(float(high - low), 1e-9)).clip(-100, 100)
        quantiles.append(ndtri((places / 2 + 0.5) / (len(others) + 1)) + BEYOND * away)
    return np.stack([*quantiles, *(one**2 for one in quantiles)], axis=1)

"""Do members and non-members differ by themselves? A classifier that sees the rows and never the model says.

Where it tells the two apart, an attack on the model measures that difference too: the non-members are then other
people, not the same people left out. Its area under the ROC curve stands beside the attack's.
"""

from __future__ import annotations

import warnings

import numpy as np
from torch import Tensor

from divulge.core.roc import Estimate, area
from divulge.membership.calibration import narrow

MOST = 4_000
"""Rows of each side that the classifier sees."""
TREES = 100


def distribution_area(members: Tensor, others: Tensor, seed: int) -> Estimate:
    """The area under the ROC curve of a forest on the rows alone, each judged by trees that did not see it."""
    from sklearn.ensemble import ExtraTreesClassifier

    rng = np.random.default_rng([seed, 6])
    inside = members[np.sort(rng.permutation(len(members))[:MOST])]
    outside = others[np.sort(rng.permutation(len(others))[:MOST])]
    both = np.concatenate([narrow(inside, outside, seed), narrow(outside, outside, seed)])
    truth = np.repeat([1, 0], [len(inside), len(outside)])
    forest = ExtraTreesClassifier(
        TREES, min_samples_leaf=3, bootstrap=True, oob_score=True, class_weight="balanced", random_state=seed
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a row that every tree saw has no score; it counts as undecided
        scores = np.nan_to_num(forest.fit(both, truth).oob_decision_function_[:, 1], nan=0.5)
    return area(scores[truth == 1], scores[truth == 0])

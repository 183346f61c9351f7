"""What kind of records the most exposed members are: outliers, mislabelled, of a rare category, or duplicates.

Each kind is judged by the data alone. Its share among the most exposed members stands beside its share among all of
them, so that a reader sees which kind is exposed more than its numbers explain.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from divulge.membership.calibration import narrow
from divulge.membership.records import Records, row_keys

TOP_SHARE = 0.05
"""Part of the members that counts as the most exposed; at least ten of them."""
SAMPLE = 2_000
"""Members that stand for all, and records among which neighbours are looked for."""
NEIGHBOURS = 5
OUTLIER = 0.95
"""An outlier's distance to its neighbours is above this quantile of the sample's."""
RARE = 0.01
"""A category is rare below this share of the members."""
CATEGORIES = 50
"""A column with at most this many different values is a category."""


def kinds_of_exposed(members: Records, scores: NDArray[np.float64], seed: int) -> dict[str, dict[str, float]]:
    """For each kind its share among the most exposed members and among all."""
    n = len(members)
    top = np.argsort(-scores, kind="stable")[: max(10, int(TOP_SHARE * n))][:SAMPLE]
    sample = np.sort(np.random.default_rng([seed, 4]).permutation(n)[:SAMPLE])
    flags = _flags(members, np.concatenate([top, sample]), sample, seed)
    return {
        name: {"most_exposed": float(flag[: len(top)].mean()), "all": float(flag[len(top) :].mean())}
        for name, flag in flags.items()
    }


def _flags(members: Records, judged: NDArray[Any], sample: NDArray[Any], seed: int) -> dict[str, NDArray[np.bool_]]:
    """Which of the judged members are of each kind."""
    from sklearn.neighbors import NearestNeighbors

    rows = members.X
    spread = rows.std(dim=0, correction=0).clamp(min=1e-12)
    scaled = (rows[sample] - rows.mean(dim=0)) / spread
    own = (rows[judged] - rows.mean(dim=0)) / spread
    known = narrow(scaled, scaled, seed)
    search = NearestNeighbors(n_neighbors=min(NEIGHBOURS + 1, len(sample))).fit(known)
    away, near = search.kneighbors(narrow(own, scaled, seed))
    distance = away[:, -1]
    self_distance = search.kneighbors(known)[0][:, -1]
    flags = {"outlier": distance > np.quantile(self_distance, OUTLIER), "rare": _rare(members, judged)}
    if members.y.ndim == 1 and len(np.unique(members.y)) <= CATEGORIES:
        labels = members.y[sample][near]
        others = sample[near] != judged[:, None]
        agree = ((labels == members.y[judged][:, None]) & others).sum(axis=1)
        flags["mislabelled"] = agree * 2 < others.sum(axis=1)
    keys = row_keys(members)
    _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    flags["duplicate"] = counts[inverse][judged] > 1
    return flags


def _rare(members: Records, judged: NDArray[Any]) -> NDArray[np.bool_]:
    found = np.zeros(len(judged), dtype=bool)
    for column in range(min(members.X.shape[1], 256)):
        values = members.X[:, column].numpy()
        if len(np.unique(values[:1000])) > CATEGORIES:
            continue
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        if 2 <= len(counts) <= CATEGORIES:
            found |= counts[inverse][judged] < RARE * len(values)
    return found

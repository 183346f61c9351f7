"""Groups of kinks that may be one neuron where rows show only in part, because fewer units are on in a layer below.

Such a kink tells the projection of the row and bias on the space that is visible there, up to scale. Two kinks agree if
their projections are parallel on the intersection of their visible spaces.
"""

from __future__ import annotations

import itertools

import numpy as np

from divulge.extraction.layers.accuracy import Accuracy
from divulge.extraction.layers.known_layers import Array
from divulge.extraction.layers.partial_rows import PartialRows

MOST = 60
"""Kinks compared, the strongest first."""
GROUPS = 20
PARALLEL = 1e-5
SHARED = 3
"""Dimensions that two visible spaces must share."""
CONFIRMED, CONSISTENT = 2, 1e-8
"""Equations of a kink that must follow from those of a group, and the singular values that count as zero."""
MOST_CANDIDATES = 60


def hidden_groups(rows: PartialRows, used: Array) -> list[list[int]]:
    """Groups of open kinks that agree pairwise with their first one."""
    if rows.plain:
        return []
    left = np.flatnonzero(~used & ~rows.outside & (rows.rank >= SHARED))
    if len(left) < 2:
        return []
    left = left[np.argsort(-rows.survey.data.strength[rows.index[left]])[:MOST]]
    visible = [_visible(rows, k) for k in left.tolist()]
    agree = np.zeros((len(left), len(left)), bool)
    for i, j in itertools.combinations(range(len(left)), 2):
        if not (rows.full[left[i]] and rows.full[left[j]]):  # those were compared entry by entry
            agree[i, j] = agree[j, i] = _parallel(*visible[i], *visible[j], rows.accuracy)
    groups = []
    for _ in range(GROUPS):
        count = agree.sum(axis=1)
        if count.max() < 1:
            break
        seed = int(np.argmax(count))
        members = _grown(rows, [int(left[seed]), *left[agree[seed]].tolist()], used)
        done = np.append(np.isin(left, members).nonzero()[0], seed)
        agree[done], agree[:, done] = False, False
        groups.append(members)
    return groups


def _grown(rows: PartialRows, members: list[int], used: Array) -> list[int]:
    """The group with every other kink that its equations confirm twice, however few of them it shows."""
    candidates = np.flatnonzero(~used & ~rows.outside & (rows.rank >= 1))
    candidates = candidates[~np.isin(candidates, members)][:MOST_CANDIDATES].tolist()
    spare = _spare(rows, members)
    again = True
    while again and spare is not None:
        again = False
        for k in candidates.copy():
            more = _spare(rows, [*members, k])
            if more is not None and more >= spare + CONFIRMED:
                members, spare, again = [*members, k], more, True
                candidates.remove(k)
    return members


def _spare(rows: PartialRows, members: list[int]) -> int | None:
    """Equations of a group beyond those that determine its row; None if they contradict each other."""
    columns = np.flatnonzero(rows.shown[members].any(axis=0))
    blocks = [rows.equations(k, columns) for k in members]
    s = np.linalg.svd(np.concatenate(blocks), compute_uv=False)
    rank = int((s > rows.accuracy.at_least(CONSISTENT, 300) * s[0]).sum())
    return sum(rows.rank[members]) - rank if rank <= len(columns) else None


def _visible(rows: PartialRows, k: int) -> tuple[Array, Array]:
    """E^T (w, b) = s (n, 0) of one kink, reduced to its visible space: the matrix [r, h + 1] and right side [r]."""
    width, inputs = rows.jacobian[k].shape
    system = np.zeros((width + 1, inputs + 1))
    system[:-1, :-1], system[:-1, -1], system[-1, -1] = rows.jacobian[k], rows.activation[k], 1.0
    U, s, Vt = np.linalg.svd(system.T, full_matrices=False)
    keep = s > rows.accuracy.at_least(1e-9, 100) * s[0]
    return s[keep, None] * Vt[keep] / s[0], U[:, keep].T @ np.append(rows.normal[k], 0.0)


def _parallel(A: Array, n: Array, B: Array, m: Array, accuracy: Accuracy) -> bool:
    """Whether two right sides are parallel where the visible spaces of A and B intersect."""
    U, s, _ = np.linalg.svd(np.concatenate([A, B]), full_matrices=True)
    common = U[:, int((s > accuracy.at_least(1e-8, 100) * s[0]).sum()) :]
    if common.shape[1] < SHARED:
        return False
    p, q = common[: len(n)].T @ n, common[len(n) :].T @ m
    size = np.linalg.norm(p) * np.linalg.norm(q)
    angle = np.sqrt(max(0.0, 1 - (p @ q / size) ** 2)) if size > 1e-8 else np.inf
    return bool(angle < accuracy.at_least(PARALLEL, 1e3))

"""Groups of kinks that may be one neuron where rows show only in part, because fewer units are on in a layer below.

Such a kink tells the projection of the row and bias on the space that is visible there, up to scale. Two kinks agree if
their projections are parallel on the intersection of their visible spaces.
"""

from __future__ import annotations

import itertools

import numpy as np

from divulge.extraction.layers.known_layers import Array
from divulge.extraction.layers.partial_rows import OUTSIDE, PartialRows

MOST = 100
"""Kinks compared, the strongest first."""
GROUPS = 20
PARALLEL = 1e-5
SHARED = 3
"""Dimensions that two visible spaces must share."""


def hidden_groups(rows: PartialRows, used: Array) -> list[list[int]]:
    """Groups of open kinks that agree pairwise with their first one."""
    if rows.plain:
        return []
    left = np.flatnonzero(~used & (rows.misfit < OUTSIDE) & (rows.rank >= SHARED))
    if len(left) < SHARED or rows.full[left].all():
        return []
    left = left[np.argsort(-rows.survey.data.strength[rows.index[left]])[:MOST]]
    visible = [_visible(rows, k) for k in left.tolist()]
    agree = np.zeros((len(left), len(left)), bool)
    for i, j in itertools.combinations(range(len(left)), 2):
        agree[i, j] = agree[j, i] = _parallel(*visible[i], *visible[j])
    groups = []
    for _ in range(GROUPS):
        count = agree.sum(axis=1)
        if count.max() < 2:
            break
        seed = int(np.argmax(count))
        members = [seed, *np.flatnonzero(agree[seed]).tolist()]
        agree[members], agree[:, members] = False, False
        groups.append(left[members].tolist())
    return groups


def _visible(rows: PartialRows, k: int) -> tuple[Array, Array]:
    """E^T (w, b) = s (n, 0) of one kink, reduced to its visible space: the matrix [r, h + 1] and right side [r]."""
    width, inputs = rows.jacobian[k].shape
    system = np.zeros((width + 1, inputs + 1))
    system[:-1, :-1], system[:-1, -1], system[-1, -1] = rows.jacobian[k], rows.activation[k], 1.0
    U, s, Vt = np.linalg.svd(system.T, full_matrices=False)
    keep = s > 1e-9 * s[0]
    return s[keep, None] * Vt[keep] / s[0], U[:, keep].T @ np.append(rows.normal[k], 0.0)


def _parallel(A: Array, n: Array, B: Array, m: Array) -> bool:
    """Whether two right sides are parallel where the visible spaces of A and B intersect."""
    U, s, _ = np.linalg.svd(np.concatenate([A, B]), full_matrices=True)
    common = U[:, int((s > 1e-8 * s[0]).sum()) :]
    if common.shape[1] < SHARED:
        return False
    p, q = common[: len(n)].T @ n, common[len(n) :].T @ m
    size = np.linalg.norm(p) * np.linalg.norm(q)
    return bool(size > 1e-8 and np.sqrt(max(0.0, 1 - (p @ q / size) ** 2)) < PARALLEL)

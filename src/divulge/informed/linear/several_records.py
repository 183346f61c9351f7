"""Two or more unknown records at once.

One output: G = -sum_i x_i r_i is a single vector equation, and any split of it into m >= 2 records explains the model
equally well. Only the slope-weighted sum of the records is determined.

k classes: G = -sum_i x_i r_i^T has rank m as long as m < k, and its column space holds every unknown record. r_i is a
function of x_i, which leaves m (m - 1) unknowns and m (k - 1) equations. A softmax model with k classes so determines
up to k - 1 records.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from divulge.core.errors import AttackFailed, InvalidInput
from divulge.core.progress import report
from divulge.informed.linear.equations import Equations
from divulge.informed.linear.models import Array

_STARTS = 6
_MOST_LABELLINGS = 300


def solve_several(eq: Equations, unknown: int, labels: Any, seed: int) -> tuple[list[Array], list[Any], float, bool]:
    """The records [m][d], their labels, the relative misfit, and whether the equations determine them."""
    model = eq.model
    k = len(model.coef)
    if model.family != "softmax" or model.intercept is None or model.class_weight is not None or unknown > k - 1:
        G = eq.plain_gradient(model.classes[0] if model.discrete else None)
        raise AttackFailed(
            f"{unknown} unknown records cannot be separated in this model: it determines only their slope-weighted "
            "sum (in partial). One unknown record is always solvable; up to k - 1 are for a softmax model with an "
            "intercept and k classes.",
            partial=-G,
        )
    G, s = eq.gradient(None)
    U, sizes, _ = np.linalg.svd(G, full_matrices=False)
    U = U[:, :unknown]  # the space of the unknown records, with their ones
    C = U.T @ G
    best: tuple[float, Array, tuple[int, ...]] | None = None
    labellings = _labellings(eq, unknown, labels)
    for turn, labelling in enumerate(labellings):
        report("solving for several records", turn, len(labellings))
        best = _fit(eq, U, C, s, labelling, seed, best)
        if best is not None and best[0] < 1e-10:
            break
    assert best is not None
    misfit, points, labelling = best
    noise = math.sqrt(float(np.square(sizes[unknown:]).sum())) / float(np.linalg.norm(sizes))
    determined = misfit <= max(1e-6, 10 * noise)
    return [eq.features(row[:-1]) for row in points], [model.classes.tolist()[c] for c in labelling], misfit, determined


def _labellings(eq: Equations, unknown: int, labels: Any) -> list[tuple[int, ...]]:
    classes = eq.model.classes.tolist()
    if labels is not None:
        if not isinstance(labels, Sequence) or len(labels) != unknown or any(c not in classes for c in labels):
            raise InvalidInput(f"label is a list of {unknown} of the model's classes, one for each unknown record.")
        return [tuple(classes.index(c) for c in labels)]
    count = math.comb(len(classes) + unknown - 1, unknown)
    if count > _MOST_LABELLINGS:
        raise InvalidInput(f"{unknown} unknown labels can be {count} ways; pass them as label=[...].")
    return list(itertools.combinations_with_replacement(range(len(classes)), unknown))


def _fit(
    eq: Equations, U: Array, C: Array, s: float, labelling: tuple[int, ...], seed: int,
    best: tuple[float, Array, tuple[int, ...]] | None,
) -> tuple[float, Array, tuple[int, ...]] | None:  # fmt: skip
    m = len(labelling)
    Y = np.eye(len(eq.model.coef))[list(labelling)]
    ones = U[-1] / float(U[-1] @ U[-1])  # the last entry of U a is 1 for a = ones + anything orthogonal to U[-1]
    free = np.linalg.svd(U[-1][None])[2][1:]  # [m - 1, m]
    known = U.T @ eq.augmented.T  # [m, n]: the known rows in that space
    rng = np.random.default_rng(seed)

    def residual(z: Array) -> Array:
        A = ones + z.reshape(m, m - 1) @ free
        with np.errstate(over="ignore", invalid="ignore"):
            r = s * eq.model.slope(A @ U.T @ eq.theta, Y)
        flat: Array = (C + A.T @ r).ravel()
        return flat

    for turn in range(_STARTS):
        z = rng.standard_normal((m, m - 1)) * float(known.std()) * (0.5 + turn)
        try:
            fit = least_squares(residual, z.ravel(), method="lm", max_nfev=200 * m)
        except ValueError:
            continue
        misfit = float(np.linalg.norm(fit.fun) / np.linalg.norm(C))
        if best is None or misfit < best[0]:
            points = (ones + fit.x.reshape(m, m - 1) @ free) @ U.T
            best = (misfit, points, labelling)
    return best

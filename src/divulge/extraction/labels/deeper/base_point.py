"""A point of the boundary at which all neurons of a layer are on, far from where one of them switches.

The outputs of a second layer are asked around such a point. Rows at which the neurons and all their inputs are positive
are a convex set, so that segments between two of them stay inside.
"""

from __future__ import annotations

import numpy as np

from divulge.extraction.labels.asking import Array, bisect_all, together
from divulge.extraction.labels.survey import Survey

RADII = (0.1, 0.3, 1.0, 3.0, 10.0)
"""How far out, in spreads, the largest ball of such rows may lie."""
ROWS, SEGMENTS = 32, 8
"""Rows around its middle that are asked, and segments between rows of different labels that are bisected."""


def base_point(W: Array, b: Array, survey: Survey) -> Array | None:
    """Such a point [d] for neurons W x + b, in the region of a survey; None where none was found."""
    rows, labels = _inside(W, b, survey)
    if not len(rows) or (labels == labels[0]).all():
        return None
    one, two = survey.random.integers(len(rows), size=(2, 50 * SEGMENTS))
    differ = labels[one] != labels[two]
    one, two = one[differ][:SEGMENTS], two[differ][:SEGMENTS]
    along, zero = rows[one] - rows[two], np.zeros(len(one))
    precise = survey.tolerances.resolution / float(np.linalg.norm(along, axis=1).max())
    t, _, _ = together(survey.ask, [bisect_all(rows[two], along, zero, zero + 1, labels[one], precise)])[0]
    points = [_centred(x, W, survey) for x in rows[two] + t[:, None] * along]
    slack = [_slack(x[None], W, b, survey).min() for x in points]
    return points[int(np.argmax(slack))]


def _slack(x: Array, W: Array, b: Array, survey: Survey) -> Array:
    """How far rows [n, d] are from the faces of the region and from the neurons' hyperplanes [n, m]."""
    faces = survey.domain.faces
    further = [] if faces is None else [x @ faces[:, :-1].T + faces[:, -1]]
    return np.concatenate([x - survey.domain.low, (x @ W.T + b) / np.linalg.norm(W, axis=1), *further], axis=1)


def _inside(W: Array, b: Array, survey: Survey) -> tuple[Array, Array]:
    """Rows at which all neurons are on [n, d], and their labels [n]."""
    found = [np.zeros((0, W.shape[1]))]
    for radius in RADII:
        middle = _middle(W, b, radius * survey.tolerances.spread, survey)
        if middle is None:
            continue
        along = survey.random.standard_normal((ROWS, len(middle)))
        along /= np.linalg.norm(along, axis=1, keepdims=True)
        heights, slopes = _slack(middle[None], W, b, survey), _slack(middle + along, W, b, survey)
        with np.errstate(divide="ignore"):
            ends = np.where(slopes < heights, heights / (heights - slopes), np.inf).min(axis=1)
        far = np.minimum(ends, 2 * radius * survey.tolerances.spread)
        found.append(middle + (survey.random.random(ROWS) * 0.95 * far)[:, None] * along)
    rows = np.concatenate(found)
    return rows, survey.ask(rows) if len(rows) else np.zeros(0, dtype=int)


def _middle(W: Array, b: Array, radius: float, survey: Survey) -> Array | None:
    """The middle of the largest ball in which all neurons are on, up to a distance; None where there is none."""
    d = W.shape[1]
    size = np.linalg.norm(W, axis=1)
    rows, right = [W / size[:, None]], [b / size]
    if survey.domain.faces is not None:
        rows.append(survey.domain.faces[:, :-1])
        right.append(survey.domain.faces[:, -1])
    rows.append(np.eye(d))
    right.append(-survey.domain.low)
    return _farthest_inside(np.concatenate(rows), np.concatenate(right), [(None, radius)] * d, 1e-6)


def _centred(x: Array, W: Array, survey: Survey) -> Array:
    """The row moved along what no neuron sees, as far as possible from the faces of the region."""
    null = np.linalg.svd(W)[2][len(W) :].T  # [d, m]
    if not null.shape[1]:
        return x
    rows, right = [null], [x - survey.domain.low]
    if (faces := survey.domain.faces) is not None:
        rows.append(faces[:, :-1] @ null)
        right.append(faces[:, :-1] @ x + faces[:, -1])
    reach = 3 * survey.tolerances.spread
    shift = _farthest_inside(np.concatenate(rows), np.concatenate(right), [(-reach, reach)] * null.shape[1], None)
    return x if shift is None else np.asarray(x + null @ shift)


def _farthest_inside(
    rows: Array, right: Array, bounds: list[tuple[float | None, float]], least: float | None
) -> Array | None:
    """The y within bounds for which the smallest of rows @ y + right is largest; None if that is below ``least``."""
    from scipy.optimize import linprog  # takes half a second to load

    A = np.column_stack([-rows, np.ones(len(rows))])  # the last variable is below every height
    aim = -np.eye(A.shape[1])[-1]
    best = linprog(aim, A, right, bounds=[*bounds, (least, None)])
    return np.asarray(best.x[:-1]) if best.success else None

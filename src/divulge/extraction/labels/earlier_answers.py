"""Rows that were asked on the way, and that a copy which agrees on all fresh rows decides otherwise.

Where the target still answers as it did, the copy is wrong there: searches go where the boundary bends, and so to
places that fresh rows hardly meet. Where it does not, the target has become another one on the way.
"""

from __future__ import annotations

import numpy as np

from divulge.extraction.labels.asking import Array
from divulge.extraction.labels.source import LabelSource
from divulge.extraction.labels.survey import Survey
from divulge.extraction.labels.tolerances import Tolerances
from divulge.extraction.labels.verification import (
    DISTANCES,
    FLAT,
    MOST_REPAIRS,
    STEEP_ROWS,
    Decides,
    Disagreement,
    nearest_change,
)

CLEAR = 10 * DISTANCES[-1]
"""A row this far from the copy's boundary, relative to its size, is decided by no rounding."""
INSIDE = 3.0
"""Rows up to so many spreads from the centre are rows of the region."""
UNLIKELY = 1e-6
"""Labels that are wrong at random gather in the first rows less often than this."""
FIRST = 32
"""The fewest rows that are looked at for that; then twice as many, and so on."""
ASKED_AGAIN = 100


def contradicted(copy: Decides, source: LabelSource, tolerances: Tolerances) -> tuple[Array, Array]:
    """Rows [m, d] that have other labels [m] than the copy gives them, away from its boundary.

    There are none where labels are wrong at random and contradictions are as frequent in the first rows as in all.
    """
    rows = np.concatenate([rows for rows, _ in source.asked])
    labels = np.concatenate([labels for _, labels in source.asked])
    decided = copy.labels(rows)
    other = np.flatnonzero(decided != labels)
    if len(other):
        value, gradient = copy.difference(rows[other], np.stack([decided[other], labels[other]], axis=1))
        size = np.linalg.norm(rows[other], axis=1)
        some = rows[:: max(1, len(rows) // STEEP_ROWS)]
        steepest = np.linalg.norm(copy.difference(some, np.tile([0, 1], (len(some), 1)))[1], axis=1).max()
        away = np.abs(value) / np.maximum(np.linalg.norm(gradient, axis=1), max(FLAT * steepest, 1e-300))
        clear = np.maximum(CLEAR * (tolerances.spread + size), tolerances.offset)
        other = other[(size <= INSIDE * tolerances.spread) & (away > clear)]
    if source.lead > 1 and not _first_rows(other, len(rows)):
        other = other[:0]
    return rows[other], labels[other]


def _first_rows(other: Array, count: int) -> bool:
    """Whether contradictions gather in the first of so many rows, as they do of a target that changed."""
    from scipy.stats import binom  # takes half a second to load

    wrong, first = np.zeros(count, dtype=bool), FIRST
    wrong[other] = True
    while first <= count // 2:
        rate = (float(wrong[first:].sum()) + 1) / (count - first)
        if binom.sf(int(wrong[:first].sum()) - 1, first, rate) < UNLIKELY:
            return True
        first *= 2
    return False


def still_answered(rows: Array, labels: Array, source: LabelSource) -> bool:
    """Whether the target gives these rows their labels again."""
    return bool((source(rows[:ASKED_AGAIN]) == labels[:ASKED_AGAIN]).all())


def segments(rows: Array, survey: Survey) -> list[Disagreement]:
    """The shortest segments from some of the rows to where the target decides otherwise."""
    others = np.stack(survey.of_both_labels())
    found = [nearest_change(survey, x, others) for x in rows[:MOST_REPAIRS]]
    return [one for one in found if one is not None]

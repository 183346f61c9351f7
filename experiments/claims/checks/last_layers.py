"""The last layer: do answers that the audit never saw lie in a space of the width that the report states?

The rank of the library's own answers to held-out rows, rows between them and near them is computed by numpy. Answers
that are probabilities become centred logarithms.
"""

from __future__ import annotations

import numpy as np

from experiments.claims.checks.checked import Checked
from experiments.claims.recording import Audited
from experiments.claims.subject import Array, Subject

ROUNDING = 1e-4
"""Singular values below this part of the largest are rounding of float32 answers."""


def check(audited: Audited, subject: Subject) -> list[Checked]:
    """The width that a report states, beside the rank of other answers."""
    found = audited.finding("last-layer")
    if found is None or found["severity"] == "none":
        return []
    stated = found["measures"]["width_found"]
    ranks = [rank_of(answers) for answers in subject.scores(subject.around())]
    measured = f"other answers have rank {' or '.join(map(str, ranks))}"
    return [Checked("last-layer", found["title"], measured, any(0 < rank <= stated for rank in ranks))]


def rank_of(answers: Array) -> int:
    """Dimensions of answers [n, k] around their mean."""
    if bool((answers > 0).all()) and bool(np.allclose(answers.sum(axis=1), 1, atol=1e-4)):
        answers = np.log(answers)
        answers = answers - answers.mean(axis=1, keepdims=True)
    values = np.linalg.svd(answers - answers.mean(axis=0), compute_uv=False)
    return int((values > ROUNDING * values[0]).sum())

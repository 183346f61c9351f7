"""Which training records are most exposed by membership: they go first where an attack takes only a few records."""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import Tensor

from divulge.auditing.target import Target
from divulge.core.errors import DivulgeError

KEY = "training records, the most exposed first"
MOST = 2_000
"""Records that are ranked where the membership probe has not run yet."""


def remember(target: Target, rows: Tensor, scores: object) -> None:
    """Keep the order of the rows of the training set that a membership attack has scored."""
    order = torch.as_tensor(scores).argsort(descending=True, stable=True)
    target.memo[KEY] = rows[order].tolist()


def most_exposed(target: Target) -> list[int]:
    """Rows of the training set, the most exposed first; none where membership cannot be judged.

    The order of the membership probe where it has run, and otherwise that of the loss, one question a record.
    """
    if KEY not in target.memo:
        target.memo[KEY] = []
        with suppress(DivulgeError):
            _rank(target)
    found: list[int] = target.memo[KEY]
    return found


def _rank(target: Target) -> None:
    from divulge import membership
    from divulge.auditing.probes.membership import sides_of

    if target.unseen_labels is None or target.inputs is None or not target.grants("value"):
        return
    (X, y), outside = sides_of(target)
    rows = torch.randperm(len(X), generator=torch.Generator().manual_seed(target.seed))[:MOST].sort().values
    risk = membership.attack(
        target.oracle("value"), (X[rows], y[rows]), tuple(one[:MOST] for one in outside), method="loss",
        seed=target.seed, check_distribution=False,
    )  # fmt: skip
    remember(target, rows, risk.scores)

"""What stands beside a membership attack: the informed adversary above it, and canaries below a claimed epsilon.

This is where the folders of two attacks meet: Algorithm 2 of Balle 2022 (``informed.membership``) knows every other
record, the recipe and its seed, and is the upper end of what membership inference can do. A recipe with privacy is
trained once more with canaries (``membership.epsilon_audit``).
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import torch

from divulge.auditing.exposed import most_exposed
from divulge.auditing.probes.probe import TimeUp, deadline
from divulge.auditing.sentences import members as sentences
from divulge.auditing.target import Target
from divulge.core.errors import DivulgeError

RECORDS = 3
"""Members that the informed adversary is asked about, the most exposed first."""


def beside(target: Target, seconds: float) -> tuple[dict[str, Any], list[str]]:
    """Measures and notes, as far as the time allows them."""
    measures: dict[str, Any] = {}
    notes: list[str] = []
    if target.recipe is None or seconds <= 0:
        return measures, notes
    with suppress(TimeUp), deadline(seconds):
        if target.recipe.privacy is not None:
            _by_canaries(target, measures, notes)
        elif target.grants("weights") and target.model is not None and target.unseen_labels is not None:
            _informed(target, measures, notes, time.perf_counter() + seconds)
    return measures, notes


def _by_canaries(target: Target, measures: dict[str, Any], notes: list[str]) -> None:
    from divulge import membership

    with suppress(DivulgeError):
        audit = membership.epsilon_audit(target.recipe, target.inputs, target.labels, seed=target.seed)
        measures["epsilon_by_canaries_at_least"] = audit.epsilon
        notes.append(sentences.by_canaries(str(audit), audit.canaries))


def _informed(target: Target, measures: dict[str, Any], notes: list[str], end: float) -> None:
    """Each of a few members against an unseen record: which of the two was in, given all the others."""
    from divulge import informed

    assert target.inputs is not None
    assert target.labels is not None
    assert target.unseen is not None
    assert target.unseen_labels is not None
    recognised: list[bool] = []
    for place, row in enumerate((most_exposed(target) or list(range(RECORDS)))[:RECORDS]):
        started = time.perf_counter()
        keep = torch.arange(len(target.inputs)) != row
        rows = torch.stack([target.inputs[row], target.unseen[place]])
        labels = torch.stack([target.labels[row], target.unseen_labels[place]])
        try:
            found = informed.membership(
                target.recipe, target.model, target.inputs[keep], target.labels[keep], rows, labels, position=row  # type: ignore[arg-type]
            )  # fmt: skip
        except TimeUp:
            break
        except DivulgeError:
            return
        recognised.append(found.certain and found.guess == 0)
        if time.perf_counter() + (time.perf_counter() - started) > end:
            break
    if recognised:
        measures["informed_adversary_is_certain_of"] = f"{sum(recognised)} of {len(recognised)}"
        notes.append(sentences.informed_adversary(sum(recognised), len(recognised)))

"""Spans: which directions of its input a model depends on, by moving held-out rows along the others."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from experiments.claims.checks.checked import Checked
from experiments.claims.checks.statistics import in_percent
from experiments.claims.recording import Audited
from experiments.claims.subject import Array, Subject, matrix

UNMOVED = 1e-4
"""Answers that move by less than this part of their spread did not move."""
MOSTLY = 0.5
"""Directions that a model depends on "mostly" leave no more than this part of its variance to the others."""


def check(audited: Audited, subject: Subject) -> list[Checked]:
    """Every claim about directions."""
    if hasattr(subject.table.heldout.X, "iloc"):
        return []
    claims = []
    for access, attack in (("gradient", "from_gradients"), ("value", "from_gradients"), ("label", "from_labels")):
        found = audited.finding(f"span-from-{access}s")
        if found is None or found["outcome"] == "inconclusive":
            continue
        calls = audited.made_by(found["name"], f"span.{attack}")
        claims += _claims(found, None if not calls else calls[-1].result.basis.double().numpy(), subject)
    return claims


def _claims(found: dict[str, Any], basis: Array | None, subject: Subject) -> list[Checked]:
    title = found["title"]
    match = re.search(r"depends (mostly )?on ([\d,]+)", title)
    if match is None:
        return []  # "did not succeed" claims nothing
    if basis is None:
        return [Checked(found["name"], title, "no span was returned", False)]
    rank, inputs = int(match.group(2).replace(",", "")), matrix(subject.table.heldout.X).shape[1]
    if rank == inputs:
        seen = directions(subject)
        return [Checked(found["name"], title, f"finite differences have rank {seen}", seen == inputs)]
    moved, changed = under_noise(subject, basis)
    if match.group(1):
        said = (
            f"the other directions move answers by {moved:.2g} of their spread and {in_percent(changed)} of decisions"
        )
        return [Checked(found["name"], f"{title}. {found['meaning']}", said, moved <= MOSTLY and changed <= 0.02)]
    said = f"{inputs - rank} other directions move answers by {moved:.2g} of their spread"
    return [Checked(found["name"], f"{title}. {found['meaning']}", said, moved <= UNMOVED and changed == 0)]


def under_noise(subject: Subject, basis: Array, *, seed: int = 0) -> tuple[float, float]:
    """How far answers move, and how many decisions change, when held-out rows move across the span."""
    X = matrix(subject.table.heldout.X)
    random = np.random.default_rng(seed)
    noise = X.std(axis=0) * random.standard_normal(X.shape)
    for _ in range(2):  # the second pass removes what rounding left of the first
        noise -= noise @ basis.T @ basis
    moved = X + noise
    before, after = subject.scores(X)[0], subject.scores(moved)[0]
    spread = float(before.std()) or 1.0
    changed = 0.0 if subject.decide is None else float((subject.decide(X) != subject.decide(moved)).mean())
    return float(np.abs(after - before).max()) / spread, changed


def directions(subject: Subject, *, points: int = 40, seed: int = 0) -> int:
    """The rank of the gradients at points near the data, by finite differences in units of the columns."""
    X = matrix(subject.table.heldout.X)
    random = np.random.default_rng(seed)
    start, spread = X[random.integers(len(X), size=points)], X.std(axis=0)
    moved = [np.zeros(X.shape[1]) for _ in range(X.shape[1])]
    for column, step in enumerate(moved):
        step[column] = 1e-2 * (spread[column] or 1.0)
    before = [subject.scores(start - step) for step in moved]
    after = [subject.scores(start + step) for step in moved]
    ranks = []
    for which in range(len(before[0])):  # probabilities that round to 0 or 1 hide what logits show
        table = np.stack([b[which] - a[which] for a, b in zip(before, after, strict=True)], axis=-1)
        values = np.linalg.svd(table.reshape(-1, X.shape[1]), compute_uv=False)
        ranks.append(int((values > 1e-9 * values[0]).sum()) if values[0] > 0 else 0)
    return max(ranks)

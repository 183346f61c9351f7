"""Kinds: what function a model is near its data, by finite differences of its logits in double precision.

The kind by construction, which the zoo states, is what a report is held to. The measurement holds the zoo to account:
``measured`` must not contradict it.
"""

from __future__ import annotations

import numpy as np

from experiments.claims.checks.checked import Checked
from experiments.claims.recording import Audited
from experiments.claims.subject import Array, Kind, Subject, matrix

WORDS: tuple[tuple[str, Kind], ...] = (
    ("one hidden relu layer", "one hidden ReLU layer"),
    ("piecewise-linear", "piecewise linear"),
    ("piecewise-constant", "piecewise constant"),
    ("same answer", "constant"),
    ("linear", "linear"),
    ("smooth", "smooth"),
)
TRUE_OF: dict[Kind, tuple[Kind, ...]] = {
    "constant": ("constant", "linear", "piecewise constant"),
    "linear": ("linear",),
    "one hidden ReLU layer": ("one hidden ReLU layer", "piecewise linear"),
    "piecewise linear": ("piecewise linear",),
    "piecewise constant": ("piecewise constant",),
    "smooth": ("smooth",),
    "none": (),
}
"""For each kind by construction, the words that are true of it. "Unknown" is always true."""


def stated(text: str) -> Kind | None:
    """The kind that a report names; None where it says that the kind is unknown."""
    low = text.lower()
    return next((kind for word, kind in WORDS if word in low), None) if "unknown kind" not in low else None


def check(audited: Audited, subject: Subject) -> list[Checked]:
    """The kind that the report names."""
    text = str(audited.report["target"].get("kind", ""))
    named = stated(text)
    true = named is None or named in TRUE_OF[subject.kind]
    return [Checked("target", f"kind: {text}", f"by construction: {subject.kind}", true)]


def measured(subject: Subject, *, points: int = 60, seed: int = 0) -> dict[str, float]:
    """Shares of points near the data at which second differences vanish, and at which first differences do.

    Three points on a short line through a row: a linear or piecewise-linear function has no second difference at most
    of them, a piecewise-constant one no first difference.
    """
    rows = matrix(subject.table.heldout.X)
    random = np.random.default_rng(seed)
    start = rows[random.integers(len(rows), size=points)]
    spread = rows.std(axis=0)
    step = 3e-3 * spread * random.standard_normal(start.shape)
    before, here, after = (_logits(subject, start + sign * step) for sign in (-1.0, 0.0, 1.0))
    scale = np.abs(here).max() + 1e-300
    bend = np.abs(before - 2 * here + after).max(axis=1)
    slope = np.abs(after - before).max(axis=1)
    return {
        "straight": float((bend <= 1e-3 * slope + 1e-12 * scale).mean()),
        "flat": float((slope <= 1e-12 * scale).mean()),
        "constant": float((np.abs(here - here[0]).max(axis=1) <= 1e-12 * scale).mean()),
    }


def _logits(subject: Subject, X: Array) -> Array:
    """The numbers of the model, as logits where it shows any."""
    parts = subject.scores(X)
    return parts[0] if subject.decide is None or len(parts) == 1 else parts[-1]

"""What a value attack does about answers that are precise at some rows only, and about models without kinks.

Behind a sigmoid the logits of probabilities near one are lost. Lines then end where answers stop being precise, and
each meets only some of the hyperplanes: more lines are searched, from places where the copy is right. A model whose
logits are affine is tried before any line (``affine.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from divulge.extraction.values.affine import affine_estimate, rows_needed
from divulge.extraction.values.gauss_newton import parameters
from divulge.extraction.values.line_network import further_line
from divulge.extraction.values.line_scan import Array
from divulge.extraction.values.polishing import polish
from divulge.extraction.values.search_state import SearchState
from divulge.extraction.values.tolerances import DEEPER, EXACT, NEARLY, QUICK_POLISH
from divulge.extraction.verification import FEWEST_CHECKS, verify

if TYPE_CHECKING:
    from divulge.extraction.values.rebuild import ValueAttack

SHORT_REPAIRS, WIDEST = 100, 2_000
"""Repairs, and neurons of a copy, at most, where lines end with the precise answers."""
NEARBY, NEARBY_ROWS = (1.0, 0.5, 0.25, 0.12), 6
"""How far around a point where the copy is right one is looked for where it is wrong, and rows at each distance."""


def as_affine(attack: ValueAttack) -> str | None:
    """Try logits without kinks: empty if such a copy is exact, a reason if nothing can be told; None if it is not.

    The rows are drawn apart, so that those of the search for kinks do not depend on this attempt.
    """
    needed = rows_needed(attack.oracle.input_dim) + FEWEST_CHECKS
    if attack.basis is not None or attack.affordable(needed) < needed:
        return None
    found = affine_estimate(attack.space, attack.ask_full, tolerance=EXACT, seed=attack.seed)
    if found is None:
        return None
    before = attack.holdout.rows, attack.holdout.truth, attack.holdout.count
    attack.affine, rows, truth = found
    keep = attack.precise_ones(truth)
    rows, truth = (rows[keep], truth[keep]) if keep.sum() > 1 else (rows, truth)
    attack.holdout.start(rows, truth, len(rows))
    attack.verification = verify(
        attack.space, attack.full_estimate.value, attack.full_estimate, checks=attack.checks, tolerance=EXACT,
        generator=attack.generator, farthest=attack.far,
    )  # fmt: skip
    if not len(attack.verification.wrong()[0]) and not attack.verification.contradicted:
        return attack.verification.reason
    attack.affine = attack.verification = None
    if len(before[0]):
        attack.holdout.start(*before)
    else:
        attack.holdout.redraw()
    return None


def repair(attack: ValueAttack, state: SearchState) -> str:
    """Search further lines, each of which ends with the precise answers and meets some hyperplanes only; a reason if
    that fails."""
    found, polished = 1, False
    for _ in range(SHORT_REPAIRS):
        toward = attack.wrong_point(state)
        if toward is None:
            _merge_twins(attack, state)
            break
        nearly = attack.holdout.error(attack.estimate) <= NEARLY * EXACT * attack.holdout.scale
        if nearly and not polished and parameters(attack.estimate) <= QUICK_POLISH:
            polished = True
            polish(attack, state, always=True)
            continue
        if not found:  # answers on the way are not precise, or nothing is missing on it
            toward = _nearby(attack, state, toward)
        found = further_line(state, toward)
        if found < 0 or attack.estimate.width > WIDEST:
            return DEEPER
        if found:
            polished = False
            attack.holdout.redraw()
    return attack.judgement(state)


def _merge_twins(attack: ValueAttack, state: SearchState) -> None:
    """One neuron in place of two on all but the same hyperplane, where the copy stays as good."""
    while attack.estimate.has_twins():
        merged = attack.estimate.closest_merged()
        if attack.holdout.error(merged) > EXACT * attack.holdout.scale:
            if parameters(attack.estimate) <= QUICK_POLISH:
                polish(attack, state, always=True)
            return
        state.estimate = merged


def _nearby(attack: ValueAttack, state: SearchState, toward: Array) -> Array:
    """A point where the copy is wrong near one where it is right, which becomes the centre; else ``toward``."""
    scales = np.repeat(NEARBY, NEARBY_ROWS)
    rows = state.centre + scales[:, None] * attack.rng.normal(size=(len(scales), state.inputs))
    values = attack.ask(rows)
    precise = attack.precise_ones(values)
    wrong = np.abs(attack.estimate(rows) - values).max(axis=1) > EXACT * attack.holdout.scale
    right, off = np.flatnonzero(precise & ~wrong), np.flatnonzero(precise & wrong)
    if len(right):
        state.centre = rows[attack.rng.choice(right)]
    if not len(off):
        return toward
    return np.asarray(rows[off[np.linalg.norm(rows[off] - state.centre, axis=1).argmin()]])

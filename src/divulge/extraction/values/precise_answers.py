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
LINES, NEURONS, FEWEST_NEURONS = 3, 40, 6
"""After so many lines that found neurons, and again after as many, up to so many neurons are looked for elsewhere on
their hyperplanes; fewer than the last say nothing."""
BESIDE = 0.02
"""How far from a hyperplane its kink is looked for, in lengths of a typical coordinate."""
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
    found, polished, lines = 1, False, 0
    for _ in range(SHORT_REPAIRS):
        toward = attack.wrong_point(state)
        if toward is None:
            _merge_duplicates(attack, state)
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
            polished, lines = False, lines + 1
            if lines % LINES == 0 and _bends(attack, state):
                return DEEPER
            attack.holdout.redraw()
    return attack.judgement(state)


def _bends(attack: ValueAttack, state: SearchState) -> bool:
    """Whether most neurons are not met elsewhere on their hyperplanes: in a deeper network these end or bend.

    A neuron of a single hidden layer bends the function alike on all of its hyperplane. Three points across it at a
    random place tell; places where an answer is not precise are left out.
    """
    A, b, *_ = attack.estimate.arrays()
    chosen = attack.rng.permutation(len(b))[:NEURONS]
    A, b = A[chosen], b[chosen]
    places = state.places[attack.rng.integers(len(state.places), size=len(b))]
    there = places - ((places * A).sum(axis=1) + b)[:, None] * A
    step = BESIDE * A
    rows = np.stack([there - step, there, there + step])
    values = attack.ask(rows.reshape(-1, state.inputs)).reshape(3, len(b), -1)
    precise = attack.precise_ones(values.reshape(3 * len(b), -1)).reshape(3, len(b)).all(axis=0)
    if precise.sum() < FEWEST_NEURONS:
        return False
    copied = attack.estimate(rows.reshape(-1, state.inputs)).reshape(3, len(b), -1)
    seen, expected = (np.linalg.norm(v[0] - 2 * v[1] + v[2], axis=1) for v in (values - copied, copied))
    return float((seen > 0.5 * expected)[precise].mean()) > 0.5


def _merge_duplicates(attack: ValueAttack, state: SearchState) -> None:
    """One neuron in place of two on all but the same hyperplane, where the copy stays as good."""
    while attack.estimate.has_duplicates():
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

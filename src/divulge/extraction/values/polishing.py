"""All parameters of a value attack's copy fitted to fresh answers, where precision and not neurons is lacking."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from divulge.extraction.values import gauss_newton
from divulge.extraction.values.holdout import drawn_precisely
from divulge.extraction.values.line_scan import Array
from divulge.extraction.values.search_state import SearchState
from divulge.extraction.values.tolerances import EXACT, HOPELESS, LARGEST_POLISH, QUICK_POLISH

if TYPE_CHECKING:
    from divulge.extraction.values.rebuild import ValueAttack


def polish(attack: ValueAttack, state: SearchState, *, always: bool = False) -> bool:
    """Fit all parameters to fresh values, if precision is the limit; True if only noise is left."""
    estimate = attack.estimate
    count = gauss_newton.parameters(estimate)
    if count > QUICK_POLISH and attack.holdout.error(estimate) > HOPELESS * attack.holdout.scale:
        return False
    precise = attack.explained(state) <= 0.1 * EXACT * attack.holdout.scale
    if (precise and not always) or count > LARGEST_POLISH:
        return False
    missing = int(np.ceil(1.6 * count / state.outputs)) - len(attack.fitted)
    remaining = attack.oracle.ledger.remaining
    if remaining is not None and missing + 2 * len(attack.holdout.rows) > remaining:
        state.notes.append(f"The budget left no room for the {missing:,} values that would polish the copy.")
        return False
    if missing > 0:
        rows, values = _rows_to_fit(attack, state, missing)
        attack.fitted = np.concatenate([attack.fitted, rows])
        attack.fitted_values = np.concatenate([attack.fitted_values, values])
    noise = 4.0 * float(np.sqrt(np.mean(state.precision.noise(attack.fitted) ** 2)))
    better = gauss_newton.polish(estimate, attack.fitted, attack.fitted_values)
    if better.after > noise:
        return False
    state.estimate = better.estimate
    if count <= QUICK_POLISH:
        state.estimate = gauss_newton.pruned(better.estimate, attack.fitted, attack.fitted_values, noise)
    state.spread = 0.0
    attack.holdout.redraw()
    return True


def _rows_to_fit(attack: ValueAttack, state: SearchState, count: int) -> tuple[Array, Array]:
    """Typical rows with their answers, precise ones."""
    if attack.precise is not None:
        return drawn_precisely(attack.ask, attack.precise, attack.rng, (count, state.inputs))
    rows = state.precision.store(attack.rng.normal(size=(count, state.inputs)))
    return rows, attack.ask(rows)

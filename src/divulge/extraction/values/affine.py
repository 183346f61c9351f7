"""A model whose logits are affine, from little more than one answer for each input.

Linear, logistic and softmax regressions have no kinks to look for. Mirrored pairs of rows show whether the logits are
straight, and one row for each direction of an orthonormal frame gives their slopes (Milli 2019, section 5.1, does the
same with one gradient). Where probabilities are shown, rows lie around one whose classes are about equally likely, as
close to it as precise logits ask for. The estimate is compared on typical inputs; verification is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from divulge.extraction.attack_space import AttackSpace
from divulge.extraction.relu_network import NetworkEstimate
from divulge.extraction.values.cell_gradients import random_frame
from divulge.extraction.values.line_scan import Array
from divulge.extraction.verification import spread

PAIRS = 4
"""Mirrored pairs of rows, at most, that show whether the logits are straight."""
TYPICAL = 8
"""Typical inputs that an estimate is compared on."""
STRAIGHT = 1e-9
"""Second differences up to this part of the change are rounding."""
SHRINK, SHRINKS = 3.0, 12
Ask = Callable[[Array], Array]


def rows_needed(inputs: int) -> int:
    """About how many rows an estimate takes."""
    return inputs + PAIRS + 1 + TYPICAL


def affine_estimate(
    space: AttackSpace, ask: Ask, *, tolerance: float, seed: int
) -> tuple[NetworkEstimate, Array, Array] | None:
    """The affine logits, with the typical rows [n, d] and answers [n, k] they agree with; None if they are not affine.

    ``tolerance`` is the part of the answers' standard deviation by which typical answers may be off.
    """
    rng = np.random.default_rng([seed, 1])
    d = space.oracle.input_dim
    search = _Search(space, ask, np.sqrt(d) * random_frame(d, rng))
    rows = rng.normal(size=(TYPICAL, d))
    if space.outputs == "logits":  # any place will do, and a function that bends shows it before the rows are asked
        found = search.run(rows[0], ask(rows[:1])[0])
        rest = rows[1:]
        if found is None:
            return None
        values = np.concatenate([search.middle[None], ask(rest)])
    else:
        rows[0] = (
            0.0  # the middle of the attack's coordinates, which lies near a decision boundary where others are sure
        )
        values = ask(rows)
        odds = values.max(axis=1) - values.min(axis=1) if values.shape[1] > 1 else np.abs(values[:, 0])
        place = int(odds.argmin())
        found = search.run(rows[place], values[place])
    if found is None:
        return None
    truth, copy = torch.from_numpy(values), found.value(torch.from_numpy(rows))
    agrees = bool((space.differences(truth, copy) <= tolerance * spread(truth)).all())
    return (found, rows, values) if agrees else None


class _Search:
    """Slopes around a middle, along the rows of a frame whose length is that of a typical input."""

    def __init__(self, space: AttackSpace, ask: Ask, frame: Array) -> None:
        self.space, self.ask, self.frame = space, ask, frame
        self.middle: Array = np.empty(0)

    def run(self, centre: Array, middle: Array) -> NetworkEstimate | None:
        """The affine function through the slopes at ``centre``; None where it bends, or where no answer is precise."""
        self.middle = middle
        frame, eps = self.frame, self.space.oracle.eps
        first = frame[:PAIRS]
        step, ahead = self._first_step(centre, first)
        if step is None or not self._precise(middle[None])[0]:
            return None
        back = self.ask(centre - step * first)
        change = float(np.abs(ahead - middle).max())
        bend = float(np.abs(ahead + back - 2 * middle).max())
        if bend > STRAIGHT * change + 64 * eps * float(np.abs(middle).max() + change):
            return None
        slopes = (ahead - back) / (2 * step)
        if len(frame) > PAIRS:
            rest = self._slopes(centre, frame[PAIRS:], step)
            if rest is None:
                return None
            slopes = np.concatenate([slopes, rest])
        P = slopes.T @ frame / len(frame)  # the rows of the frame have the squared length d
        return NetworkEstimate.affine(P, middle - P @ centre)

    def _first_step(self, centre: Array, first: Array) -> tuple[float | None, Array]:
        """How far to go so that all answers are precise, and the answers there."""
        step = 1.0
        for _ in range(SHRINKS):
            ahead = self.ask(centre + step * first)
            if self._precise(ahead).all():
                return step, ahead
            step /= SHRINK
        return None, self.middle

    def _slopes(self, centre: Array, frame: Array, step: float) -> Array | None:
        """One slope [m, k] for each row of the frame; where an answer is not precise, another is asked closer by."""
        steps = np.full(len(frame), step)
        slopes = np.zeros((len(frame), len(self.middle)))
        left = np.arange(len(frame))
        for _ in range(SHRINKS):
            values = self.ask(centre + steps[left, None] * frame[left])
            slopes[left] = (values - self.middle) / steps[left, None]
            left = left[~self._precise(values)]
            if not len(left):
                return slopes
            steps[left] /= -SHRINK  # to the other side, too
        return None

    def _precise(self, values: Array) -> Array:
        return np.asarray(self.space.precise(torch.from_numpy(values)).numpy())

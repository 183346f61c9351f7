"""Rows on which a copy of trees must answer as the target does: fresh ones, and every row that was asked before.

A third of the fresh rows lies anywhere in the domain, a third is like the data, and a third lies beside thresholds of
the copy: in one column just below or just above one. A copy that meets all of them is wrong on less than 1 -
0.01^(1/n) of the first and of the second kind, with 99 % confidence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from divulge.extraction.trees.domain import Array
from divulge.extraction.trees.steps import Asker
from divulge.extraction.verification import CONFIDENCE, spread


@dataclass(frozen=True)
class Checked:
    """The rows that were asked before and the fresh ones, what the target answered, and where the copy is wrong."""

    X: Array
    truth: Array
    wrong: NDArray[np.bool_]
    worst: float
    scale: float
    each: int
    """Fresh rows of each of the three kinds; they are the last rows."""

    @property
    def fresh(self) -> int:
        """Fresh rows."""
        return 3 * self.each

    @property
    def reason(self) -> str:
        """Why the copy is not exact; empty if nothing contradicts it."""
        if not self.wrong.any():
            return ""
        count, before = int(self.wrong[-self.fresh :].sum()), len(self.X) - self.fresh
        if count:
            return f"The copy differs from the target on {count:,} of {self.fresh:,} fresh rows."
        return f"The copy contradicts {int(self.wrong.sum()):,} of {before:,} rows that were asked before."

    def facts(self) -> dict[str, object]:
        """What ``exact`` claims."""
        share = 1 - (1 - CONFIDENCE) ** (1 / max(1, self.each))
        claim = (
            f"All {self.fresh:,} fresh rows agree, a third of them beside thresholds: with {100 * CONFIDENCE:.0f} % "
            f"confidence the copy is wrong on less than {100 * share:.2g} % of inputs in the domain."
        )
        return {
            "rows": self.fresh, "wrong_rows": int(self.wrong.sum()), "confidence": CONFIDENCE, "share": share,
            "attack_rows_compared": len(self.X) - self.fresh, "claim": "" if self.wrong.any() else claim,
        }  # fmt: skip


def checked(asker: Asker, model: nn.Module, beside: Array, rng: np.random.Generator, loose: float) -> Checked:
    """Compare a copy with the target on rows beside thresholds, on as many of each other kind, and on what was asked
    before; answers agree up to ``loose`` tolerances."""
    each, domain = len(beside), asker.domain
    asker.value(np.concatenate([domain.draw(each, rng), domain.typical(each, rng), domain.rounded(beside)]))
    X, truth = (np.concatenate(parts) for parts in zip(*asker.asked, strict=True))
    X = domain.rounded(X)  # the first rows were asked before it was known that the target rounds them
    with torch.no_grad():
        copy = model(torch.from_numpy(X)).numpy()
    off = np.abs(copy - truth).max(axis=1)
    scale = spread(torch.from_numpy(truth[-3 * each :]))
    return Checked(X, truth, ~(off <= loose * asker.tolerance), float(off.max()), scale, each)

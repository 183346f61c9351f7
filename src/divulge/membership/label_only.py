"""Membership from decisions alone: how often the model keeps a record's label when the record is moved a little.

Choquette-Choo et al. 2021: training records lie further from the decision boundary, so their label survives larger
perturbations. Each record is asked as it is and with Gaussian noise of several sizes, in units of each column's spread
among the non-members. The score is the share of the questions that are answered with the record's own label; the
right answer to the record itself counts most, because a wrong one is the stronger evidence (Yeom et al. 2018).

Between the numbers of two tokens there is nothing to ask. A record of tokens is moved by putting others in the place of
some of them, as the augmentations of that paper do with pictures.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from divulge.core.progress import report
from divulge.membership.records import Records
from divulge.oracles.record_scores import ROWS_AT_ONCE, Asked

SIZES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Standard deviations of the noise, in units of the columns' spreads."""
SHARES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
"""Parts of the tokens of a record that are replaced by others, at least one of them."""
EACH = 4
"""Noisy copies of a record for each size."""


def questions() -> int:
    """Rows that are asked for one record."""
    return 1 + EACH * len(SIZES)


def label_scores(model: Asked, records: Records, spread: Tensor, seed: int) -> NDArray[np.float64]:
    """The share of each record's questions [n] that are answered with its own label; from 0 to 2."""
    generator = torch.Generator().manual_seed(seed)
    out = np.empty(len(records))
    for first in range(0, len(records), ROWS_AT_ONCE):
        part = slice(first, first + ROWS_AT_ONCE)
        rows, labels = records.X[part], records.y[part]
        own = model.agrees(rows, labels).astype(float)
        kept = np.zeros(len(rows))
        for size, share in zip(SIZES, SHARES, strict=True):
            for _ in range(EACH):
                if model.oracle.vocabulary is not None:
                    moved = _replaced(rows, share, model.oracle.vocabulary, generator)
                else:
                    moved = rows + size * spread * torch.randn(rows.shape, generator=generator, dtype=rows.dtype)
                kept += model.agrees(moved, labels)
        out[part] = own + kept / (EACH * len(SIZES))
        report("asking labels", first + len(rows), len(records))
    return out


def _replaced(rows: Tensor, share: float, vocabulary: int, generator: torch.Generator) -> Tensor:
    """Rows of tokens with this part of them, and at least one, replaced by drawn ones."""
    count = max(1, round(share * rows.shape[1]))
    places = torch.rand(rows.shape, generator=generator).topk(count, dim=1).indices
    drawn = torch.randint(vocabulary, places.shape, generator=generator).to(rows.dtype)
    return rows.scatter(1, places, drawn)

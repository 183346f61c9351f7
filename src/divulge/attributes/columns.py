"""The hidden column: which it is, the values that a record may have there, and records with another value put in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from divulge.core.errors import InvalidInput
from divulge.core.validation import is_whole

MOST_CATEGORIES = 20
"""A column with more different values is a quantity."""


@dataclass(frozen=True)
class Hidden:
    """The hidden column, its candidate values [k, columns], and each record's own as an index [n]."""

    columns: tuple[int, ...]
    values: NDArray[np.float64]
    own: NDArray[np.int64]
    quantity: bool

    def known(self, X: Tensor) -> NDArray[np.float64]:
        """The other columns [n, d - columns]."""
        kept = [column for column in range(X.shape[1]) if column not in self.columns]
        out: NDArray[np.float64] = X[:, kept].numpy()
        return out

    def filled(self, X: Tensor, candidate: int) -> Tensor:
        """The records with this candidate in the hidden column."""
        rows = X.clone()
        rows[:, list(self.columns)] = torch.as_tensor(self.values[candidate], dtype=X.dtype)
        return rows

    def index(self, X: Tensor) -> NDArray[np.int64]:
        """The candidate nearest to each record's own value, for records that the candidates were not taken from."""
        held = X[:, list(self.columns)].numpy()
        away = np.abs(held[:, None, :] - self.values[None]).sum(axis=2)
        return np.asarray(away.argmin(axis=1))


def hidden_column(X: Tensor, column: Any, names: Sequence[str], bins: int) -> Hidden:
    """The column by number or name, or several that are one attribute in one-hot form."""
    chosen = tuple(_number(one, X.shape[1], names) for one in _listed(column))
    if not chosen or len(set(chosen)) != len(chosen):
        raise InvalidInput("column names one column, or several different ones that are one attribute in one-hot form.")
    held = X[:, list(chosen)].numpy()
    values, own = np.unique(held, axis=0, return_inverse=True)
    if len(values) < 2:
        raise InvalidInput(f"Column {column!r} has the same value in every record; there is nothing to infer.")
    if len(chosen) == 1 and len(values) > MOST_CATEGORIES:
        return _quantity(held[:, 0], chosen, bins)
    if len(values) > 10 * MOST_CATEGORIES:
        raise InvalidInput(f"Columns {chosen} have {len(values):,} different values together; name fewer of them.")
    return Hidden(chosen, values, own.reshape(-1), quantity=False)


def _quantity(held: NDArray[np.float64], chosen: tuple[int, ...], bins: int) -> Hidden:
    """A quantity as intervals that hold equally many records."""
    edges = np.unique(np.quantile(held, np.linspace(0, 1, bins + 1)[1:-1]))
    own = np.searchsorted(edges, held, side="right")
    present = np.unique(own)
    middles = np.array([[np.median(held[own == place])] for place in present])
    return Hidden(chosen, middles, np.searchsorted(present, own), quantity=True)


def _listed(column: Any) -> list[Any]:
    return list(column) if isinstance(column, Sequence) and not isinstance(column, str) else [column]


def _number(column: Any, width: int, names: Sequence[str]) -> int:
    if isinstance(column, str):
        if column not in names:
            known = f"; the columns are {', '.join(names[:20])}" if names else "; the rows have no names, give a number"
            raise InvalidInput(f"There is no column {column!r}{known}.")
        return list(names).index(column)
    if not is_whole(column) or not 0 <= int(column) < width:
        raise InvalidInput(f"column is a number from 0 to {width - 1} or a name; got {column!r}.")
    return int(column)

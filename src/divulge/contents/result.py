"""What was found in the file of a model, and how it compares with the training data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from divulge.core.html import table
from divulge.core.result import AttackResult

HoldingKind = Literal["records", "sums", "values", "categories", "labels", "counts"]
KINDS: dict[HoldingKind, str] = {
    "records": "training records",
    "sums": "sums or means over records",
    "values": "values of single records",
    "categories": "categories and words that occur in the records",
    "labels": "labels of single records",
    "counts": "numbers of records",
}
"""What a fitted model may hold, the most telling first."""


@dataclass(frozen=True, eq=False)
class Holding:
    """One part of a fitted model that was copied or computed from training records.

    Parameters
    ----------
    where : str
        The attribute, tensor or operator that holds it, such as ``model["kneighborsclassifier"]._fit_X``.
    kind : {"records", "sums", "values", "categories", "labels", "counts"}
        What is held.
    count : int
        How many: rows, numbers, categories or leaves.
    detail : str
        What it is, in one sentence.
    rows : array [count, d], optional
        The records, in the units of the model's input where the steps before them could be undone.
    verbatim : bool, default False
        Whether the rows are records as they went into the model: nothing before them changed what cannot be undone.
    in_training_data : int, optional
        How many of the rows equal a row of the training data; None if no data was given, or it cannot be compared.

    Examples
    --------
    >>> from divulge.contents import Holding
    >>> Holding("model._fit_X", "records", 100, "The rows that it was fitted to.").kind
    'records'
    """

    where: str
    kind: HoldingKind
    count: int
    detail: str
    rows: NDArray[Any] | None = field(default=None, repr=False)
    verbatim: bool = False
    in_training_data: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON, without the rows.

        Returns
        -------
        dict
            Where, what, how many, and how many equal a row of the training data.
        """
        return {
            "where": self.where,
            "kind": self.kind,
            "count": self.count,
            "detail": self.detail,
            "verbatim": self.verbatim,
            "in_training_data": self.in_training_data,
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Contents(AttackResult):
    """Everything that :func:`divulge.contents.read` found in a model.

    Attributes
    ----------
    holdings : tuple of Holding
        What the model holds, records first.

    Examples
    --------
    >>> from sklearn.neighbors import KNeighborsClassifier
    >>> from divulge import contents
    >>> found = contents.read(KNeighborsClassifier(1).fit([[0.0, 5.0], [1.0, 6.0]], [0, 1]))
    >>> found.records.tolist()
    [[0.0, 5.0], [1.0, 6.0]]
    """

    holdings: tuple[Holding, ...] = ()

    @property
    def records(self) -> NDArray[Any] | None:
        """The training records of the largest holding of records; None if there are none."""
        held = [holding.rows for holding in self.holdings if holding.kind == "records" and holding.rows is not None]
        return max(held, key=len, default=None)

    @property
    def verbatim(self) -> bool:
        """Whether whole training records stand in the model as they went into it."""
        return any(holding.kind == "records" and holding.verbatim for holding in self.holdings)

    def of_kind(self, kind: HoldingKind) -> tuple[Holding, ...]:
        """The holdings of one kind.

        Parameters
        ----------
        kind : {"records", "sums", "values", "categories", "labels", "counts"}
            Which.

        Returns
        -------
        tuple of Holding
        """
        return tuple(holding for holding in self.holdings if holding.kind == kind)

    def as_dict(self) -> dict[str, Any]:
        """The result without its rows, as plain values for JSON."""
        return {**super().as_dict(), "holdings": [holding.as_dict() for holding in self.holdings]}

    def _arrays(self) -> dict[str, Any]:
        """The rows of numbers; ``save`` writes them."""
        held = [holding for holding in self.holdings if holding.rows is not None and holding.rows.dtype != object]
        return {f"rows_{place}": np.asarray(holding.rows) for place, holding in enumerate(held)}

    def _repr_html_(self) -> str:
        rows = [(h.where, KINDS[h.kind], h.count, h.detail) for h in self.holdings]
        return table("What the model holds", rows, header=("where", "what", "how many", "detail"), most=25)

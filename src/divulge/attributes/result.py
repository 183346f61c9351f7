"""What an attribute attack returns: how often it names the hidden value, and how often one does without the model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from divulge.core.result import AttackResult
from divulge.core.statistics import WithInterval
from divulge.core.validation import checked_whole


@dataclass(frozen=True)
class Attribute(AttackResult):
    """How well an attack names a hidden column of training records.

    Attributes
    ----------
    column : tuple of int
        The hidden column; several where it is one attribute in one-hot form.
    accuracy : float
        The share of records whose value the attack names.
    baseline : float
        The share that imputation names: the same known columns, label and other people's rows, without the model.
    advantage : WithInterval
        accuracy - baseline, a number that unpacks as ``value, low, high`` (95 % interval over records). Only this is
        the model's leak.
    majority : float
        The share of the most common value.
    control : WithInterval or None
        The advantage on records that the model was not trained on; None where none were given.
    values : ndarray [k] or [k, columns]
        The candidate values. A quantity is cut into intervals of equal numbers of records, each named by its middle.
    guesses : ndarray [n]
        The guess for each record, as an index into ``values``.
    scores : ndarray [n]
        How much the model adds to the log probability of each record's true value; higher is more exposed.
    by_group : dict
        For each subgroup the number of records, accuracy, baseline and advantage with its interval.
    quantity : bool
        Whether the column is a quantity, of which an interval is guessed.
    """

    column: tuple[int, ...]
    accuracy: float
    baseline: float
    advantage: WithInterval
    majority: float
    control: WithInterval | None
    values: NDArray[np.float64]
    guesses: NDArray[np.int64] = field(repr=False)
    scores: NDArray[np.float64] = field(repr=False)
    by_group: dict[str, dict[str, Any]] = field(default_factory=dict)
    quantity: bool = False

    def worst(self, count: int = 10) -> NDArray[np.int64]:
        """The most exposed records.

        Parameters
        ----------
        count : int, default 10
            How many; all of them if there are fewer.

        Returns
        -------
        ndarray of int
            Their indices, the most exposed first.
        """
        count = min(checked_whole("count", count, at_least=1), len(self.scores))
        return np.argsort(-self.scores, kind="stable")[:count]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; guesses and scores are left out."""
        return super().as_dict() | {
            "column": list(self.column),
            "records": len(self.scores),
            "values": len(self.values),
            "quantity": self.quantity,
            "accuracy": self.accuracy,
            "baseline": self.baseline,
            "majority": self.majority,
            "advantage": list(self.advantage),
            "control": None if self.control is None else list(self.control),
            "most_exposed": [int(row) for row in self.worst(10)],
            "by_group": self.by_group,
        }

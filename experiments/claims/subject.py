"""A model under test with what its claims are checked by: data that the audit was not given, and plain calls of the
library that the model comes from. Nothing here uses divulge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Kind = Literal[
    "constant", "linear", "one hidden ReLU layer", "piecewise linear", "piecewise constant", "smooth", "none"
]
"""What kind of function a model is by its construction; "none" fits no other word."""


class Rows(NamedTuple):
    """Inputs and their labels."""

    X: Any
    y: Array


@dataclass(frozen=True, eq=False)
class Table:
    """A data set in three parts."""

    training: Rows | None
    """None where nobody here knows what the model was trained on: the audit then gets the unseen inputs alone."""
    unseen: Rows
    """Given to the audit as the control."""
    heldout: Rows
    """Never given to the audit."""


@dataclass(frozen=True, eq=False)
class Subject:
    """A model, what it was trained on, and how it answers.

    Parameters
    ----------
    model : object
        What the audit is given.
    table : Table
        The data.
    decide : callable
        From inputs [n, d] to class numbers [n]; None for a model that predicts a quantity.
    scores : callable
        From inputs [n, d] to every kind of number that the model can show, each [n, k].
    kind : str
        What kind of function it is by its construction.
    options : dict
        More options of the audit.
    width : int, optional
        Hidden units, where the kind is "one hidden ReLU layer".
    guarantee : (noise multiplier, steps), optional
        How a privately trained model was trained.
    """

    model: Any
    table: Table
    decide: Callable[[Array], Array] | None
    scores: Callable[[Array], list[Array]]
    kind: Kind
    options: dict[str, Any] = field(default_factory=dict)
    width: int | None = None
    guarantee: tuple[float, int] | None = None

    def around(self, seed: int = 0, count: int = 600) -> Array:
        """Held-out rows, points between two of them, and held-out rows moved by a tenth of each column's spread."""
        rows = matrix(self.table.heldout.X)
        random = np.random.default_rng(seed)
        a, b = (rows[random.integers(len(rows), size=count)] for _ in range(2))
        between = a + random.random((count, 1)) * (b - a)
        moved = a + 0.1 * rows.std(axis=0) * random.standard_normal(a.shape)
        return np.concatenate([rows, between, moved])


def matrix(rows: Any) -> Array:
    """Rows as numbers [n, d]."""
    return np.asarray(rows, dtype=np.float64).reshape(len(rows), -1)


def columns(*parts: Any) -> list[Array]:
    """Answers as [n, k] each."""
    return [np.asarray(part, dtype=np.float64).reshape(len(part), -1) for part in parts]

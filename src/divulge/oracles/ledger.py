"""Counts of the rows that an oracle answered, and the budget that limits them.

A ``Ledger`` counts while an attack runs. A ``Spent`` is a fixed copy of its counts, such as what one attack cost.
"""

from __future__ import annotations

import threading
from typing import Literal

from divulge.core.errors import BudgetExhausted, InvalidInput
from divulge.core.result import Spent as Spent  # counts belong to every result; they are read here too
from divulge.core.validation import is_whole

Kind = Literal["label", "value", "gradient"]


class Ledger:
    """Counts the rows answered, by kind, and refuses rows beyond the budget. The counts are exact under threads.

    Parameters
    ----------
    budget : int or None, default None
        The largest total number of rows. None sets no limit.

    Raises
    ------
    InvalidInput
        If the budget is not a whole number from zero.

    Examples
    --------
    >>> from divulge.oracles import Ledger
    >>> ledger = Ledger(budget=100)
    >>> ledger.charge("value", 60)
    >>> ledger.total, ledger.remaining
    (60, 40)
    >>> ledger.charge("label", 50)
    Traceback (most recent call last):
    divulge.core.errors.BudgetExhausted: The budget of 100 rows is used up: 60 were answered and 50 more were asked \
for. Raise the budget or ask for at most 40.
    """

    def __init__(self, budget: int | None = None) -> None:
        if budget is not None:
            if not is_whole(budget) or budget < 0:
                raise InvalidInput(
                    f"A budget of {budget!r} rows makes no sense; give a whole number from zero, or None for no limit."
                )
            budget = int(budget)
        self.budget = budget
        self._rows = {"value": 0, "gradient": 0, "label": 0}
        self._total = 0
        self._requests = 0
        self._lock = threading.Lock()

    def charge(self, kind: Kind, rows: int) -> None:
        """Reserve ``rows`` of the budget before they are asked.

        Raises
        ------
        BudgetExhausted
            If the budget does not cover them. Nothing is charged then.
        """
        with self._lock:
            if self.budget is not None and self._total + rows > self.budget:
                raise BudgetExhausted(
                    f"The budget of {self.budget:,} rows is used up: {self._total:,} were answered and {rows:,} more "
                    f"were asked for. Raise the budget or ask for at most {self.budget - self._total:,}."
                )
            self._rows[kind] += rows
            self._total += rows

    def refund(self, kind: Kind, rows: int) -> None:
        """Give back rows that were reserved and never answered."""
        with self._lock:
            self._rows[kind] -= rows
            self._total -= rows

    def count_request(self, requests: int = 1) -> None:
        """Count requests that were sent to a remote target."""
        with self._lock:
            self._requests += requests

    def snapshot(self) -> Spent:
        """A copy of the counts as they are now."""
        with self._lock:
            return Spent(**self._rows, requests=self._requests)

    @property
    def value(self) -> int:
        """Rows answered with values."""
        return self._rows["value"]

    @property
    def gradient(self) -> int:
        """Rows answered with gradients; the value that comes with a gradient is not counted."""
        return self._rows["gradient"]

    @property
    def label(self) -> int:
        """Rows answered with labels."""
        return self._rows["label"]

    @property
    def requests(self) -> int:
        """Inference requests sent to a remote target."""
        return self._requests

    @property
    def total(self) -> int:
        """Rows of all kinds."""
        return self._total

    @property
    def remaining(self) -> int | None:
        """Rows left in the budget; None where there is no budget."""
        return None if self.budget is None else self.budget - self.total

    def __repr__(self) -> str:
        spent = ", ".join(f"{kind}={rows}" for kind, rows in self._rows.items() if rows)
        return f"Ledger({spent or 'nothing asked'}, budget={self.budget}, requests={self._requests})"

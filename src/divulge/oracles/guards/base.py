"""``Guard``: a defence in front of an oracle. It is an oracle itself, so guards stack.

A guard shares the ledger of the oracle behind it. A row that the client asks counts once, however many guards it
passes, and the budget limits the client's rows. ``guard.cost`` counts the rows that the model itself computed, which
for SmoothGrad are many times more.

A guard never shows weights. Its ``eps`` is the relative size of the smallest difference that its answers can show to
a client, for outputs of order one. Attacks derive their tolerances from it as from a number format.
"""

from __future__ import annotations

import math

from torch import Tensor

from divulge.core.errors import InvalidInput
from divulge.oracles.base import ACCESS_LEVELS, Access, Oracle
from divulge.oracles.ledger import Kind, Ledger, Spent

ROWS_AT_ONCE = 8192
"""Rows that a guard sends to the model at once, where it makes several of each row that it is asked."""


class Guard(Oracle):
    """An oracle in front of an oracle. This base class passes everything but the weights on.

    A guard of your own overrides ``_value``, ``_gradient`` or ``_label`` and calls ``super()`` for the model's answer.

    Parameters
    ----------
    oracle : Oracle
        What the guard protects: an oracle, or another guard.
    most : {"label", "value", "gradient"}, default "gradient"
        The highest access level that passes.

    Raises
    ------
    InvalidInput
        If ``oracle`` is not an Oracle.

    Examples
    --------
    >>> import divulge
    >>> from divulge.oracles import Guard
    >>> class Halved(Guard):
    ...     def _value(self, X):
    ...         return super()._value(X) / 2
    >>> oracle = divulge.oracle(lambda X: X.sum(1), input_shape=(2,))
    >>> Halved(oracle).value([[1.0, 3.0]])
    tensor([[2.]], dtype=torch.float64)
    """

    def __init__(self, oracle: Oracle, *, most: Access = "gradient") -> None:
        if not isinstance(oracle, Oracle):
            raise InvalidInput(f"A guard stands in front of an oracle, not a {type(oracle).__name__}; build one first.")
        super().__init__(
            input_dim=oracle.input_dim,
            output_dim=oracle.output_dim,
            access=min(oracle.access, most, key=ACCESS_LEVELS.index),
            dtype=oracle.dtype,
            device=oracle.device,
            input_shape=oracle.input_shape,
            threshold=oracle.threshold,
            output_kind=oracle.output_kind,
            vocabulary=oracle.vocabulary,
        )
        self.oracle = oracle
        self.ledger = oracle.ledger
        self._computed = Ledger()

    @property
    def cost(self) -> Spent:
        """Rows that the model itself computed for this guard: what the defence costs its owner."""
        return self.oracle.cost if isinstance(self.oracle, Guard) else self._computed.snapshot()

    @property
    def eps(self) -> float:
        """Relative size of the smallest difference that the answers can show."""
        return self.oracle.eps

    def _count_and_get_oracle(self, kind: Kind, rows: int) -> Oracle:
        """The oracle behind this guard. The rows that it is about to compute are counted first."""
        self._computed.charge(kind, rows)
        return self.oracle

    def _value(self, X: Tensor) -> Tensor:
        return self._finite(self._count_and_get_oracle("value", len(X))._value(X), "value")

    def _gradient(self, X: Tensor) -> tuple[Tensor, Tensor]:
        values, gradients = self._count_and_get_oracle("gradient", len(X))._gradient(X)
        return self._finite(values, "value"), self._finite(gradients, "gradient")

    def _label(self, X: Tensor) -> Tensor:
        return self._count_and_get_oracle("label", len(X))._label(X)


def checked_deviation(sigma: float, guard: str) -> float:
    """``sigma`` as a float, once it is finite and not negative."""
    if not (math.isfinite(sigma) and sigma >= 0):
        raise InvalidInput(f"{guard} takes a standard deviation of zero or more; got {sigma}.")
    return float(sigma)

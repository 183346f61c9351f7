"""Only the largest outputs."""

from __future__ import annotations

import torch
from torch import Tensor

from divulge.core.errors import InvalidInput
from divulge.oracles.base import Oracle
from divulge.oracles.guards.base import Guard
from divulge.oracles.outputs import rows_of_probabilities


class TopK(Guard):
    """Values and gradients of the ``k`` largest outputs only.

    The hidden outputs are filled in from the shown ones, so they carry no information of their own. Their gradients are
    zero. Their values are zero where the row looks like probabilities, and one less than the smallest shown value
    otherwise.

    Parameters
    ----------
    oracle : Oracle
        What the guard protects.
    k : int
        Outputs that the client sees, from 1 to all of them.

    Raises
    ------
    InvalidInput
        If ``k`` is not a whole number from 1 to ``oracle.output_dim``.

    Examples
    --------
    >>> import divulge
    >>> from divulge.oracles import TopK
    >>> oracle = divulge.oracle(lambda X: X, input_shape=(3,))
    >>> TopK(oracle, k=2).value([[0.2, 5.0, 3.0]])
    tensor([[2., 5., 3.]], dtype=torch.float64)
    """

    def __init__(self, oracle: Oracle, k: int) -> None:
        if k != int(k) or not 1 <= k <= oracle.output_dim:
            raise InvalidInput(f"TopK shows between 1 and all {oracle.output_dim} outputs; got {k}.")
        super().__init__(oracle)
        self.k = int(k)

    def _hide_small(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """The values with the small ones filled in, and a mask of the shown ones, both [n, outputs]."""
        top = values.topk(self.k, dim=1)
        shown = torch.zeros_like(values, dtype=torch.bool).scatter_(1, top.indices, True)
        probable = rows_of_probabilities(values)[:, None]
        fill = torch.where(probable, torch.zeros_like(top.values[:, -1:]), top.values[:, -1:] - 1)
        return torch.where(shown, values, fill), shown

    def _value(self, X: Tensor) -> Tensor:
        return self._hide_small(super()._value(X))[0]

    def _gradient(self, X: Tensor) -> tuple[Tensor, Tensor]:
        values, gradients = super()._gradient(X)
        values, shown = self._hide_small(values)
        return values, gradients * shown[:, :, None]

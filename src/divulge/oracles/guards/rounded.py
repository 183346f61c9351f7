"""Answers rounded to a number of decimals."""

from __future__ import annotations

from torch import Tensor

from divulge.core.errors import InvalidInput
from divulge.oracles.base import Oracle
from divulge.oracles.guards.base import Guard


class Rounded(Guard):
    """Values and gradients rounded to ``digits`` decimals. Labels are those of the unrounded values.

    Parameters
    ----------
    oracle : Oracle
        What the guard protects.
    digits : int
        Decimals that the client sees, from 0 to 16.

    Raises
    ------
    InvalidInput
        If ``digits`` is not a whole number from 0 to 16.

    Examples
    --------
    >>> import divulge
    >>> from divulge.oracles import Rounded
    >>> oracle = divulge.oracle(lambda X: X.sum(1), input_shape=(2,))
    >>> Rounded(oracle, digits=1).value([[1.0, 0.27]])
    tensor([[1.3000]], dtype=torch.float64)
    """

    def __init__(self, oracle: Oracle, digits: int) -> None:
        if digits != int(digits) or not 0 <= digits <= 16:
            raise InvalidInput(f"Rounded takes a number of decimals from 0 to 16; got {digits}.")
        super().__init__(oracle)
        self.digits = int(digits)

    @property
    def eps(self) -> float:
        """One unit in the last decimal, or the number format's own precision where that is coarser."""
        return float(max(self.oracle.eps, 10.0**-self.digits))

    def _round(self, answer: Tensor) -> Tensor:
        return answer.double().round(decimals=self.digits).to(answer.dtype)

    def _value(self, X: Tensor) -> Tensor:
        return self._round(super()._value(X))

    def _gradient(self, X: Tensor) -> tuple[Tensor, Tensor]:
        values, gradients = super()._gradient(X)
        return self._round(values), self._round(gradients)

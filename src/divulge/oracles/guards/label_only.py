"""Decisions without values."""

from __future__ import annotations

from divulge.oracles.base import Oracle
from divulge.oracles.guards.base import Guard


class LabelOnly(Guard):
    """The decision and nothing else.

    Parameters
    ----------
    oracle : Oracle
        What the guard protects.

    Examples
    --------
    >>> import divulge
    >>> from divulge.oracles import LabelOnly
    >>> oracle = divulge.oracle(lambda X: X.sum(1), input_shape=(2,))
    >>> LabelOnly(oracle).label([[1.0, 2.0], [-1.0, -2.0]])
    tensor([1, 0])
    """

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(oracle, most="label")

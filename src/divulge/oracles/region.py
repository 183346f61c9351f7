"""The region in which a target's inputs lie, and an oracle in its standardised coordinates.

Attacks are written for inputs around N(0, I). A target that takes inputs in other units is asked through
``RegionOracle``: x = center + scale * u, column by column. What an attack finds in the coordinates u is converted back
at its end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from divulge.core.errors import InvalidInput, WrongShape
from divulge.oracles.base import Oracle
from divulge.oracles.guards.base import Guard
from divulge.oracles.rows import as_rows, check_finite_rows


@dataclass(frozen=True)
class Region:
    """Inputs around ``center`` with a standard deviation of ``scale`` in each column.

    Parameters
    ----------
    center : Tensor
        [d].
    scale : Tensor
        [d], positive.
    rows : Tensor, optional
        The inputs [n, d] from which center and scale were computed.

    Examples
    --------
    >>> import torch
    >>> from divulge.oracles import Region
    >>> region = Region(torch.tensor([10.0, 0.0]), torch.tensor([2.0, 1.0]))
    >>> region.to_inputs(torch.ones(1, 2))
    tensor([[12.,  1.]])
    """

    center: Tensor
    scale: Tensor
    rows: Tensor | None = None

    @staticmethod
    def of(inputs: Any, oracle: Oracle) -> Region:
        """The region of rows like the target's data, a given region, or N(0, I) where ``inputs`` is None.

        A column that is constant in the rows gets the size of its value as its scale, or 1 if that is 0.
        """
        d = oracle.input_dim
        if isinstance(inputs, Region):
            return _checked(inputs, d)
        if inputs is None:
            return Region(torch.zeros(d, dtype=torch.float64), torch.ones(d, dtype=torch.float64))
        rows = check_finite_rows(as_rows(inputs, d, torch.float64, torch.device("cpu")))
        if len(rows) < 2:
            raise InvalidInput("inputs are rows like the target's data, at least two; got one.")
        center, scale = rows.mean(dim=0), rows.std(dim=0)
        size = center.abs()
        flat = scale <= 1e-12 * size
        return Region(center, torch.where(flat, torch.where(size > 0, size, 1.0), scale), rows)

    @property
    def standard(self) -> bool:
        """Whether this is N(0, I)."""
        return not bool(self.center.any()) and bool((self.scale == 1).all())

    @property
    def rounding(self) -> float:
        """How many times larger the rounding of an input is than that of its standardised value."""
        return 1.0 + float((self.center / self.scale).square().mean().sqrt())

    def to_inputs(self, U: Tensor) -> Tensor:
        """Inputs [n, d] of standardised rows U."""
        return self.center.to(U) + U * self.scale.to(U)

    def standardised(self, X: Tensor) -> Tensor:
        """Standardised rows [n, d] of inputs X."""
        return (X.to(torch.float64) - self.center) / self.scale

    def moved(self, center: Tensor, factor: float) -> Region:
        """The region around another standardised point, smaller by a factor."""
        return replace(self, center=self.to_inputs(center), scale=self.scale * factor)

    def oracle(self, oracle: Oracle) -> Oracle:
        """The oracle in this region's standardised coordinates; the oracle itself where the region is N(0, I)."""
        return oracle if self.standard else RegionOracle(oracle, self)


class RegionOracle(Guard):
    """An oracle that is asked in the standardised coordinates of a region.

    Parameters
    ----------
    oracle : Oracle
        The target.
    region : Region
        Where its inputs lie.

    Examples
    --------
    >>> import torch, divulge
    >>> from divulge.oracles import Region, RegionOracle
    >>> oracle = divulge.oracle(lambda X: X.sum(1), input_shape=(2,))
    >>> RegionOracle(oracle, Region(torch.tensor([10.0, 0.0]), torch.tensor([2.0, 1.0]))).value([[1.0, 1.0]])
    tensor([[13.]], dtype=torch.float64)
    """

    def __init__(self, oracle: Oracle, region: Region) -> None:
        super().__init__(oracle)
        self.region = region

    @property
    def eps(self) -> float:
        """Relative size of the smallest difference that the answers can show."""
        return self.oracle.eps * self.region.rounding

    def _value(self, X: Tensor) -> Tensor:
        return super()._value(self._inputs(X))

    def _gradient(self, X: Tensor) -> tuple[Tensor, Tensor]:
        value, gradient = super()._gradient(self._inputs(X))
        return value, gradient * self.region.scale.to(gradient)

    def _label(self, X: Tensor) -> Tensor:
        return super()._label(self._inputs(X))

    def _inputs(self, X: Tensor) -> Tensor:
        return self.region.to_inputs(X.to(torch.float64)).to(self.oracle.dtype)


def _checked(region: Region, d: int) -> Region:
    center, scale = region.center.detach().double().reshape(-1), region.scale.detach().double().reshape(-1)
    if len(center) != d or len(scale) != d:
        raise WrongShape(f"The region has {len(center)} and {len(scale)} columns, and the model takes {d}.")
    if not bool(torch.isfinite(center).all()) or not bool((torch.isfinite(scale) & (scale > 0)).all()):
        raise InvalidInput("A region has a finite center and a positive, finite scale in every column.")
    return replace(region, center=center, scale=scale)

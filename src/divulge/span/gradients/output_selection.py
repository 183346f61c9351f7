"""An oracle's answers in float64, for every output or for one of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from divulge.oracles.base import Oracle


@dataclass(frozen=True)
class OutputSelection:
    """An oracle and the output in use, or all outputs where ``output`` is None."""

    oracle: Oracle
    output: int | None

    def outputs(self, points: Tensor) -> Tensor:
        """Values [n, k] of the outputs in use."""
        return self._pick(self.oracle.value(points).to(torch.float64))

    def gradients(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Values [n, k] and gradients [n, k, d] of the outputs in use."""
        values, gradients = self.oracle.gradient(points)
        return self._pick(values.to(torch.float64)), self._pick(gradients).to(torch.float64)

    def _pick(self, answer: Tensor) -> Tensor:
        return answer if self.output is None else answer[:, self.output : self.output + 1]

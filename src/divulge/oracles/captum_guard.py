"""An explanation endpoint as people run them: the answer to a gradient question is an attribution made by captum.

captum's Saliency takes absolute values unless told otherwise, so the sign of every gradient is lost; its
IntegratedGradients are the mean gradient on the way from a baseline, times the difference to it.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from divulge.errors import InvalidInput, MissingPackage
from divulge.oracles.base import Oracle, in_batches
from divulge.oracles.guards import ROWS_AT_ONCE, Guard

Method = Literal["saliency", "integrated-gradients"]


class Explained(Guard):
    """Answers gradient questions with captum's attribution of every output; values and labels pass unchanged.

    It stands directly in front of a model that torch can differentiate. ``absolute`` is for saliency, ``steps`` and
    ``baseline`` (one number for every input) for integrated gradients.
    """

    def __init__(
        self,
        oracle: Oracle,
        method: Method = "saliency",
        *,
        absolute: bool = True,
        steps: int = 50,
        baseline: float = 0.0,
    ) -> None:
        super().__init__(oracle)
        if method not in ("saliency", "integrated-gradients"):
            raise InvalidInput(f'An explanation is made by "saliency" or "integrated-gradients", not {method!r}.')
        if steps != int(steps) or steps < 1:
            raise InvalidInput(f"Integrated gradients take at least one step; got {steps}.")
        try:
            from captum.attr import IntegratedGradients, Saliency
        except ImportError as error:
            raise MissingPackage("Explanations need captum; install divulge[explain].") from error
        oracle._forward(torch.zeros(1, oracle.input_dim, dtype=oracle.dtype, device=oracle.device))
        self.method, self.absolute, self.steps, self.baseline = method, absolute, int(steps), float(baseline)
        maker = Saliency if method == "saliency" else IntegratedGradients
        self._attribution = maker(oracle._forward)

    def _gradient(self, X: Tensor) -> tuple[Tensor, Tensor]:
        values = self._value(X)
        passes = self.output_dim * (1 if self.method == "saliency" else self.steps)
        self._computed.charge("gradient", len(X) * passes)
        most = max(1, ROWS_AT_ONCE // (1 if self.method == "saliency" else self.steps))
        (gradients,) = in_batches(X, most, lambda rows: (self._explained(rows),))
        return values, self._finite(gradients, "gradient")

    def _explained(self, X: Tensor) -> Tensor:
        rows = X.clone().requires_grad_()
        maps = []
        for output in range(self.output_dim):
            if self.method == "saliency":
                made = self._attribution.attribute(rows, target=output, abs=self.absolute)
            else:
                made = self._attribution.attribute(rows, self.baseline, target=output, n_steps=self.steps)
            maps.append(made.detach().to(X.dtype))
        return torch.stack(maps, dim=1)

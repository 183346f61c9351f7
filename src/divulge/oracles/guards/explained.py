"""Explanations in place of gradients, computed by captum, as an explanation endpoint serves them.

captum's Saliency takes absolute values by default, so the sign of every gradient is lost. Its IntegratedGradients are
the mean gradient on the way from a baseline, times the difference to the baseline.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from divulge.core.errors import InvalidInput, MissingPackage
from divulge.oracles.base import Oracle
from divulge.oracles.guards.base import ROWS_AT_ONCE, Guard
from divulge.oracles.rows import in_batches

Method = Literal["saliency", "integrated-gradients"]


class Explained(Guard):
    """captum's attribution of every output in place of its gradient. Values and labels pass unchanged.

    It stands directly in front of a model that torch can differentiate, and needs ``divulge[explain]``.

    Parameters
    ----------
    oracle : Oracle
        What the guard protects.
    method : {"saliency", "integrated-gradients"}, default "saliency"
        How an explanation is computed.
    absolute : bool, default True
        Whether saliency shows absolute values.
    steps : int, default 50
        Points between the baseline and the row, for integrated gradients.
    baseline : float, default 0.0
        The number that stands for every input at the baseline, for integrated gradients.

    Raises
    ------
    InvalidInput
        If the method or the number of steps is not one of those above.
    MissingPackage
        If captum is not installed.
    UnsupportedModel
        If torch cannot differentiate the model.

    Examples
    --------
    >>> import divulge, torch
    >>> from divulge.oracles.guards import Explained
    >>> oracle = divulge.oracle(torch.nn.Linear(2, 1).double(), access="gradient")
    >>> _, shown = Explained(oracle, "saliency").gradient([[1.0, 2.0]])
    >>> bool((shown >= 0).all())
    True
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
        (gradients,) = in_batches(X, most, lambda rows: (self._attributions(rows),))
        return values, self._finite(gradients, "gradient")

    def _attributions(self, X: Tensor) -> Tensor:
        """The attribution of every output [n, k, d]."""
        rows = X.clone().requires_grad_()
        maps = []
        for output in range(self.output_dim):
            if self.method == "saliency":
                made = self._attribution.attribute(rows, target=output, abs=self.absolute)
            else:
                made = self._attribution.attribute(rows, self.baseline, target=output, n_steps=self.steps)
            maps.append(made.detach().to(X.dtype))
        return torch.stack(maps, dim=1)

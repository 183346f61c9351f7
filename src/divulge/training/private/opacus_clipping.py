"""Clipped per-example gradients by Opacus, for networks with layers that ``layer_clipping`` does not cover."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from divulge.core.errors import MissingPackage, UnsupportedModel
from divulge.core.losses import shaped
from divulge.training.private.mlp_clipping import factors
from divulge.training.recipe import Recipe


class OpacusClipping:
    """A model and its training rows; Opacus computes each example's gradient."""

    def __init__(self, model: nn.Module, rows: Tensor, targets: Tensor, recipe: Recipe) -> None:
        try:
            from opacus import GradSampleModule
            from opacus.validators.errors import UnsupportedModuleError
        except ImportError as error:
            raise MissingPackage('Private training of this model needs Opacus; install "divulge[privacy]".') from error
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                self._private: Any = GradSampleModule(model.train(), loss_reduction="sum")
        except (UnsupportedModuleError, NotImplementedError) as error:
            raise UnsupportedModel(f"Opacus cannot train this model privately: {str(error).splitlines()[0]}") from error
        self._model, self._recipe = model, recipe
        self._rows, self._targets = shaped(rows, model), targets

    def parameters(self) -> list[Tensor]:
        """The parameters in place, each with a leading axis for its one model."""
        return [parameter.detach()[None] for parameter in self._model.parameters()]

    def clipped_sum(self, clip: float, index: Tensor | None = None) -> tuple[list[Tensor], Tensor]:
        """Each example's gradient clipped and summed, over all rows or over those at ``index``; and the norms."""
        parameters = list(self._model.parameters())
        rows, targets = (self._rows, self._targets) if index is None else (self._rows[index], self._targets[index])
        if len(rows) == 0:
            return [torch.zeros_like(parameter.detach())[None] for parameter in parameters], rows.new_zeros(1, 0)
        self._recipe.loss_of(self._private(rows.clone().requires_grad_()), targets, "sum").backward()  # type: ignore[no-untyped-call]
        gradients: list[Tensor] = [parameter.grad_sample for parameter in parameters]  # type: ignore[attr-defined]
        norms = torch.stack([gradient.flatten(1).square().sum(dim=1) for gradient in gradients]).sum(dim=0).sqrt()
        weights = factors(norms, clip)
        sums = [torch.tensordot(weights, gradient, dims=1).detach()[None] for gradient in gradients]
        for parameter in parameters:
            parameter.grad_sample = parameter.grad = None  # type: ignore[attr-defined]
        return sums, norms[None]

    def release(self) -> nn.Module:
        """The model without hooks, in evaluation mode."""
        self._private.remove_hooks()
        return self._model.eval()

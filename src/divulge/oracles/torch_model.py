"""An nn.Module behind the counter: values, and the gradient of every output in one batched pass each."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from divulge.errors import AccessDenied, InvalidInput, UnsupportedModel
from divulge.oracles.base import Access, Oracle

Precision = Literal["native", "double"]


class TorchOracle(Oracle):
    """Answers for a torch module in its own precision, or, with ``precision="double"``, for a float64 copy of it."""

    def __init__(
        self,
        module: nn.Module,
        *,
        access: Access = "value",
        budget: int | None = None,
        precision: Precision = "native",
        input_shape: Sequence[int] | None = None,
        device: str | torch.device | None = None,
    ) -> None:
        if precision not in ("native", "double"):
            raise InvalidInput(f'precision is "native" or "double", not {precision!r}.')
        reference = next(
            (p for p in module.parameters() if p.is_floating_point()), torch.zeros((), dtype=torch.float64)
        )
        device = torch.device(device) if device is not None else reference.device
        dtype = torch.float64 if precision == "double" else reference.dtype
        if precision == "double" or module.training or device != reference.device:
            module = copy.deepcopy(module).to(device=device, dtype=dtype).eval()
        self._module = module
        shape = tuple(input_shape) if input_shape is not None else input_shape_of(module)
        with torch.no_grad():
            try:
                probe = module(torch.zeros(2, *shape, dtype=dtype, device=device))
            except (RuntimeError, ValueError, TypeError) as error:
                raise InvalidInput(
                    f"The model does not take inputs of shape {shape}: {str(error).splitlines()[0]} "
                    "Pass input_shape=(...) as one example has it."
                ) from error
        width = 1
        for extent in shape:
            width *= extent
        super().__init__(
            input_dim=width,
            output_dim=1 if probe.ndim == 1 else int(probe[0].numel()),
            access=access,
            budget=budget,
            dtype=dtype,
            device=device,
            input_shape=shape,
        )

    def weights(self) -> nn.Module:
        """A copy of the module itself, for the holder of the weights."""
        if not self.allows("weights"):
            raise AccessDenied(f'This oracle grants {self.access} access only; build it with access="weights".')
        return copy.deepcopy(self._module)

    def _forward(self, X: Tensor) -> Tensor:
        out: Tensor = self._module(X.reshape(len(X), *self.input_shape))
        return out.reshape(len(X), -1)

    def _value(self, X: Tensor) -> Tensor:
        with torch.no_grad():
            return self._forward(X)

    def _gradient(self, X: Tensor) -> tuple[Tensor, Tensor]:
        X = X.clone().requires_grad_()
        with torch.enable_grad():
            values = self._forward(X)
            if not values.requires_grad:  # a constant model
                return values.detach(), X.new_zeros(len(X), self.output_dim, self.input_dim)
            columns = [
                torch.autograd.grad(values[:, k].sum(), X, retain_graph=k + 1 < self.output_dim, allow_unused=True)[0]
                for k in range(self.output_dim)
            ]
        gradients = torch.stack([torch.zeros_like(X) if c is None else c for c in columns], dim=1)
        return values.detach(), gradients


def input_shape_of(module: nn.Module) -> tuple[int, ...]:
    """The shape of one input: the module's own ``input_shape``, or what its first linear layer takes."""
    declared = getattr(module, "input_shape", None)
    if declared is not None:
        return tuple(int(extent) for extent in declared)
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            return (layer.in_features,)
        if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            raise UnsupportedModel(
                "A convolutional model does not say how large its pictures are; pass "
                "input_shape=(channels, height, width)."
            )
    raise UnsupportedModel("The model has no linear layer that tells its input width; pass input_shape=(...).")

"""An nn.Module behind the counter: values, and the gradient of every output in one batched pass each."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from divulge.errors import InvalidInput, TargetError, UnsupportedModel
from divulge.oracles.base import Access, Oracle, in_batches
from divulge.whole import is_whole

Precision = Literal["native", "double"]
LIVE_NUMBERS = 2**26
"""Activations held at once when no batch size is given: half a gigabyte in float64."""


class TorchOracle(Oracle):
    """Answers for a torch module as it is when it is given: in its own precision, or, with ``precision="double"``, in
    float64. The oracle keeps a copy, in evaluation mode; training the original further does not change its answers.

    ``output`` turns logits into what the endpoint would show; None leaves the module's outputs as they are.
    ``batch_size`` is how many rows are computed at once; by default as many as fit in a fixed amount of memory.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        access: Access = "value",
        budget: int | None = None,
        precision: Precision = "native",
        input_shape: Sequence[int] | None = None,
        device: str | torch.device | None = None,
        output: str | None = None,
        batch_size: int | None = None,
    ) -> None:
        module, dtype, device = _prepared(module, precision, device)
        shape = checked_shape(input_shape) if input_shape is not None else input_shape_of(module)
        module = with_output(module, output)
        probe, activations = _probe(module, torch.zeros(2, *shape, dtype=dtype, device=device))
        super().__init__(
            input_dim=math.prod(shape),
            output_dim=1 if probe.ndim == 1 else int(probe[0].numel()),
            access=access,
            budget=budget,
            dtype=dtype,
            device=device,
            input_shape=shape,
            threshold=0.5 if isinstance(_last_layer(module), nn.Sigmoid) else 0.0,
        )
        self._module = module
        self._flat = len(shape) == 1
        self._answers_tell = answers_tell(module)
        batch_size = checked_batch_size(batch_size)
        self._value_rows = batch_size or max(1, LIVE_NUMBERS // activations)
        self._gradient_rows = batch_size or max(1, LIVE_NUMBERS // (activations + self.output_dim * self.input_dim))

    def _weights(self) -> nn.Module:
        module = copy.deepcopy(self._module)
        for parameter in module.parameters():
            if parameter.is_leaf and parameter.is_floating_point():
                parameter.requires_grad_()
        return module

    def _forward(self, X: Tensor) -> Tensor:
        try:
            out: Tensor = self._module(X if self._flat else X.reshape(len(X), *self.input_shape))
        except Exception as error:
            raise TargetError(f"The model failed on {len(X)} rows: {type(error).__name__}: {error}") from error
        if out.dtype is not self.dtype:
            out = out.to(self.dtype)
        return out if out.ndim == 2 else out.reshape(len(X), -1)

    def _value(self, X: Tensor) -> Tensor:
        # neither the rows nor the weights ask for gradients, so none are kept; the detour is for large queries only
        if X.size(0) > self._value_rows:
            return in_batches(X, self._value_rows, lambda rows: (self._value(rows),))[0]
        out = self._forward(X)
        return out.detach() if out.requires_grad else out

    def _gradient(self, X: Tensor) -> tuple[Tensor, Tensor]:
        values, gradients = in_batches(X, self._gradient_rows, lambda rows: jacobian(self._forward, rows))
        return values, gradients


def jacobian(forward: Callable[[Tensor], Tensor], X: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs [n, k] and the gradient of each at every row [n, k, d], by one backward pass an output."""
    X = X.clone().requires_grad_()
    with torch.enable_grad():
        values = forward(X)
        outputs = values.shape[1]
        if not values.requires_grad:  # a constant model
            return values.detach(), X.new_zeros(len(X), outputs, X.shape[1])
        columns = [
            torch.autograd.grad(values[:, k].sum(), X, retain_graph=k + 1 < outputs, allow_unused=True)[0]
            for k in range(outputs)
        ]
    gradients = torch.stack([torch.zeros_like(X) if c is None else c for c in columns], dim=1)
    return values.detach(), gradients


class Probabilities(nn.Module):
    """Logits [n, k] to class probabilities; a single logit to those of "no" and "yes", as scikit-learn shows them."""

    def __init__(self, *, log: bool = False) -> None:
        super().__init__()
        self.log = log

    def forward(self, logits: Tensor) -> Tensor:
        if logits.shape[1] == 1:
            logits = torch.cat([torch.zeros_like(logits), logits], dim=1)
        return torch.log_softmax(logits, dim=1) if self.log else torch.softmax(logits, dim=1)


def with_output(module: nn.Module, output: str | None) -> nn.Module:
    """The module, followed by what turns its logits into the output asked for."""
    if output is None or output == "logits":
        return module
    if output not in ("probabilities", "log-probabilities"):
        raise InvalidInput(f'output is "logits", "probabilities" or "log-probabilities", not {output!r}.')
    layers = list(module) if is_plain_sequence(module) else [module]
    return nn.Sequential(*layers, Probabilities(log=output == "log-probabilities")).eval()


def input_shape_of(module: nn.Module) -> tuple[int, ...]:
    """The shape of one input: the module's own ``input_shape``, or what its first linear layer takes."""
    declared = getattr(module, "input_shape", None)
    if declared is not None:
        return checked_shape(declared)
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            return (layer.in_features,)
        if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            raise UnsupportedModel(
                "A convolutional model does not say how large its pictures are; pass "
                "input_shape=(channels, height, width)."
            )
    raise UnsupportedModel("The model has no linear layer that tells its input width; pass input_shape=(...).")


def checked_shape(shape: Sequence[int] | int) -> tuple[int, ...]:
    """``input_shape`` as a tuple of positive extents; a bare number is the width of a flat input."""
    extents = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    if not extents or any(not is_whole(extent) or extent < 1 for extent in extents):
        raise InvalidInput(f"input_shape is the shape of one input, positive whole numbers; got {shape!r}.")
    return tuple(int(extent) for extent in extents)


def checked_batch_size(batch_size: int | None) -> int | None:
    if batch_size is None:
        return None
    if not is_whole(batch_size) or batch_size < 1:
        raise InvalidInput(f"batch_size is how many rows are computed at once, at least 1; got {batch_size!r}.")
    return int(batch_size)


def checked_precision(precision: str) -> None:
    if precision not in ("native", "double"):
        raise InvalidInput(f'precision is "native" or "double", not {precision!r}.')


def is_plain_sequence(module: nn.Module) -> TypeGuard[nn.Sequential]:
    """Whether calling the module is calling its layers one after the other, and nothing else."""
    plain = isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward
    return plain and not _hooked(module)


def _prepared(
    module: nn.Module, precision: Precision, device: str | torch.device | None
) -> tuple[nn.Module, torch.dtype, torch.device]:
    """A copy of the module that is ready to answer, its number format and its device."""
    checked_precision(precision)
    if any(is_lazy(part) for part in (*module.parameters(), *module.buffers())):
        raise UnsupportedModel("The model has lazy layers without weights yet; run it on one batch first.")
    reference = next((p for p in module.parameters() if p.is_floating_point()), torch.zeros((), dtype=torch.float64))
    try:
        device = torch.device(device) if device is not None else reference.device
        dtype = torch.float64 if precision == "double" else reference.dtype
        module = copy.deepcopy(module).to(device=device, dtype=dtype).eval()
    except (RuntimeError, AssertionError) as error:  # torch's ways to say that a device is not there
        raise InvalidInput(f"The model cannot be copied to {device}: {str(error).splitlines()[0]}") from error
    for parameter in module.parameters():
        if parameter.is_leaf:  # a scripted module's copies are not
            parameter.requires_grad_(False)
    return module, dtype, device


def _probe(module: nn.Module, X: Tensor) -> tuple[Tensor, int]:
    """The answer to a batch of two zeros, and how many numbers one row takes on its way through the layers."""
    numbers = [X.numel()]

    def count(layer: nn.Module, inputs: Any, out: Any) -> None:
        numbers[0] += out.numel() if isinstance(out, Tensor) else 0

    plain = (layer for layer in module.modules() if not isinstance(layer, torch.jit.ScriptModule))
    hooks = [layer.register_forward_hook(count) for layer in plain if not any(layer.children())]
    try:
        with torch.no_grad():
            answer = module(X)
    except Exception as error:
        fault = next(iter(str(error).splitlines()), type(error).__name__)
        raise InvalidInput(
            f"The model does not take inputs of shape {tuple(X.shape[1:])}: {fault}. Pass input_shape=(...) as one "
            "example has it."
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    if not isinstance(answer, Tensor) or answer.ndim == 0 or len(answer) != len(X):
        got = f"a tensor of shape {tuple(answer.shape)}" if isinstance(answer, Tensor) else type(answer).__name__
        raise UnsupportedModel(f"The model answers {len(X)} rows with {got}; one row of outputs for each is expected.")
    if not answer.is_floating_point():
        raise UnsupportedModel(f"The model answers {answer.dtype}; give one that ends before the decision is taken.")
    return answer, max(1, numbers[0] // len(X))


def answers_tell(module: nn.Module) -> bool:
    """Whether NaN or infinity in a row is sure to reach every output, so that the rows need no check of their own.

    Zero times infinity is NaN, so one bad input makes every unit of a linear layer bad, and every output of the last
    one. An activation in between hides it only where all units are minus infinity; they cannot be if every input has a
    weight that is not below zero (and, for an input that may be minus infinity itself, one that is not above).
    """
    if not is_plain_sequence(module) or len(module) % 2 == 0:
        return False
    linears, between = list(module)[::2], list(module)[1::2]
    if not all(type(layer) is nn.Linear and not _hooked(layer) for layer in linears):
        return False
    if not all(isinstance(layer, nn.ReLU | nn.ELU | nn.Softplus) for layer in between):
        return False
    for depth, layer in enumerate(linears[:-1]):
        weight = layer.weight.detach()  # type: ignore[operator]
        if not bool((weight.amax(dim=0) >= 0).all()) or (depth == 0 and not bool((weight.amin(dim=0) <= 0).all())):
            return False
    return True


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)


def _last_layer(module: nn.Module) -> nn.Module:
    while is_plain_sequence(module) and len(module):
        module = module[-1]
    return module

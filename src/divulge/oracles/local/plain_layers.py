"""What the layers of a plain sequence say of a network without asking it."""

from __future__ import annotations

from typing import TypeGuard

from torch import nn


def is_plain_sequence(module: nn.Module) -> TypeGuard[nn.Sequential]:
    """Whether calling the module is calling its layers one after the other, and nothing else."""
    plain = isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward
    return plain and not _has_hooks(module)


def propagates_nonfinite(module: nn.Module) -> bool:
    """Whether NaN or infinity in a row always reaches every output, so that the rows need no check of their own.

    Zero times infinity is NaN, so one bad input makes every unit of a linear layer bad, and every output of the last
    one. An activation in between hides it only where all units are minus infinity. They cannot be if every input has a
    weight that is not below zero (and, for an input that may be minus infinity itself, one that is not above).
    """
    if not is_plain_sequence(module) or len(module) % 2 == 0:
        return False
    linears, between = list(module)[::2], list(module)[1::2]
    if not all(type(layer) is nn.Linear and not _has_hooks(layer) for layer in linears):
        return False
    if not all(isinstance(layer, nn.ReLU | nn.ELU | nn.Softplus) for layer in between):
        return False
    for depth, layer in enumerate(linears[:-1]):
        weight = layer.weight.detach()  # type: ignore[operator]
        if not bool((weight.amax(dim=0) >= 0).all()) or (depth == 0 and not bool((weight.amin(dim=0) <= 0).all())):
            return False
    return True


def _has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)


def last_layer(module: nn.Module) -> nn.Module:
    """The layer that gives the answer, as far as the module is a plain sequence; otherwise the module itself."""
    while is_plain_sequence(module) and len(module):
        module = module[-1]
    return module

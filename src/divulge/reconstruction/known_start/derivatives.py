"""What a candidate says about its row of A besides the zeros: the derivatives of the outputs.

A row of A is the sum over the steps of J^T g, where g is the derivative of the loss by the outputs, and J that of the
outputs by the layer's pre-activations. J follows from the candidate, before and after training. So where units are on,
the row lies near a space of twice as many dimensions as there are outputs. That holds only nearly, because J changes
while the network is trained. It leads the search for a row until the zeros alone make it exact.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

Derivatives = Callable[[Tensor], Tensor]
"""From inputs of the layer [m, d] to the derivatives of all outputs by its pre-activations, [m, k, h]."""
MOST_SHARE = 0.1
"""Outputs, of both networks together, as a share of the units: with more of them they say little."""


def derivatives_of(
    models: tuple[nn.Module, nn.Module], name: str, shape: tuple[int, ...], unit_sizes: Tensor | float = 1.0
) -> Derivatives | None:  # fmt: skip
    """The derivatives before and after training, or None where there are too many outputs, or none to be had.

    They are divided by ``unit_sizes`` [h], as the rows of the difference are.
    """
    functions = [_outputs_behind(model, name, shape) for model in models]
    try:
        weight: Tensor = models[0].get_parameter(f"{name}.weight" if name else "weight")
        found = _jacobian(functions[0], torch.zeros(2, weight.shape[1]), len(weight))
    except (RuntimeError, ValueError, IndexError, TypeError):
        return None
    if 2 * found.shape[1] > MOST_SHARE * found.shape[2]:
        return None

    def derivatives(X: Tensor) -> Tensor:
        both = [_jacobian(function, X.float(), found.shape[2]) for function in functions]
        return torch.cat(both, dim=1).to(X) / unit_sizes

    return derivatives


def signs(model: nn.Module, name: str, shape: tuple[int, ...], X: Tensor, A: Tensor) -> Tensor:
    """1 or -1 for each of the layer's inputs X [m, d] of unknown sign, with rows A [m, h] of the same sign, [m].

    The derivative of the loss by the outputs has one entry of its own sign, that of the input's class. With fewer than
    three outputs, or no more units than outputs, nothing is told, and all are 1.
    """
    function, lone = _outputs_behind(model, name, shape), []
    for sign in (1.0, -1.0):
        J = _jacobian(function, sign * X.float(), A.shape[1]).to(A)
        if J.shape[1] < 3 or J.shape[2] <= J.shape[1]:
            return torch.ones(len(X)).to(X)
        J = J - J.mean(dim=1, keepdim=True)  # the entries sum to zero
        entries = (torch.linalg.pinv(J.mT) @ (sign * A)[..., None])[..., 0]
        lone.append(entries.amax(dim=1) + entries.amin(dim=1))
    return torch.where(lone[1] > lone[0], -1.0, 1.0).to(X)


def _outputs_behind(model: nn.Module, name: str, shape: tuple[int, ...]) -> Callable[[Tensor, Tensor], Tensor]:
    """The outputs [m, k] as a function of the layer's inputs [m, d] and of what is added to its pre-activations."""
    whole = copy.deepcopy(model).float().eval().requires_grad_(False)
    layer = whole.get_submodule(name)

    def outputs(X: Tensor, added: Tensor) -> Tensor:
        handles = [
            layer.register_forward_pre_hook(lambda *_: (X,)),
            layer.register_forward_hook(lambda _, __, out: out + added),
        ]
        try:
            answer: Tensor = whole(X.new_zeros(len(X), *shape)).reshape(len(X), -1)
        finally:
            for handle in handles:
                handle.remove()
        return answer

    return outputs


def _jacobian(function: Callable[[Tensor, Tensor], Tensor], X: Tensor, units: int) -> Tensor:
    added = torch.zeros(len(X), units, requires_grad=True)
    with torch.enable_grad():
        outputs = function(X, added)
        slopes = [
            torch.autograd.grad(outputs[:, k].sum(), added, retain_graph=True)[0] for k in range(outputs.shape[1])
        ]
    return torch.stack(slopes, dim=1)

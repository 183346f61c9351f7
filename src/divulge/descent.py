"""The steps of gradient descent and Adam in plain tensor operations, digit for digit those of torch.optim.

torch.optim takes seconds to start (it loads torch's compiler on first use); a small model trains in less.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

BETAS = (0.9, 0.999)
ADDED = 1e-8


class Descent:
    """Steps along the gradients that ``tensors`` hold in ``.grad``, in place."""

    def __init__(
        self,
        tensors: Sequence[Tensor],
        *,
        optimiser: Literal["sgd", "adam"],
        learning_rate: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        self._tensors = list(tensors)
        self._optimiser = optimiser
        self._rate, self._momentum, self._decay = float(learning_rate), float(momentum), float(weight_decay)
        self._steps = 0
        self._first: dict[int, Tensor] = {}  # velocity, or Adam's mean of the gradient
        self._second: dict[int, Tensor] = {}  # Adam's mean of its square

    def clear(self) -> None:
        """Forget the gradients."""
        for tensor in self._tensors:
            tensor.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """One step; a tensor without a gradient stays where it is."""
        self._steps += 1
        for number, tensor in enumerate(self._tensors):
            if tensor.grad is None:
                continue
            gradient = tensor.grad if self._decay == 0 else tensor.grad.add(tensor, alpha=self._decay)
            if self._optimiser == "adam":
                self._adam(number, tensor, gradient)
            else:
                self._sgd(number, tensor, gradient)

    def _sgd(self, number: int, tensor: Tensor, gradient: Tensor) -> None:
        if self._momentum:
            if number in self._first:
                gradient = self._first[number].mul_(self._momentum).add_(gradient)
            else:
                gradient = self._first[number] = gradient.clone()
        tensor.add_(gradient, alpha=-self._rate)

    def _adam(self, number: int, tensor: Tensor, gradient: Tensor) -> None:
        if number not in self._first:
            self._first[number], self._second[number] = torch.zeros_like(tensor), torch.zeros_like(tensor)
        mean = self._first[number].lerp_(gradient, 1 - BETAS[0])
        square = self._second[number].mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        root = (square.sqrt() / (1 - BETAS[1] ** self._steps) ** 0.5).add_(ADDED)
        tensor.addcdiv_(mean, root, value=-self._rate / (1 - BETAS[0] ** self._steps))

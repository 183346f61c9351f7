"""Any function on arrays as an oracle: numpy in and out, or tensors in and out; it is tried once to find which.

Gradients come from a second function that the user gives, or from autograd where the function is written in torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from divulge.core.errors import AccessDenied, BadAnswer, InvalidInput, TargetError
from divulge.oracles.arguments import Precision, checked_batch_size, checked_precision, checked_shape
from divulge.oracles.base import Access, Oracle
from divulge.oracles.local.torch_module import jacobian
from divulge.oracles.rows import in_batches

Function = Callable[[Any], Any]


class CallableOracle(Oracle):
    """Answers for ``function``, which takes rows [n, *input_shape] and returns [n] or [n, k].

    Two rows of zeros are asked when the oracle is built, to learn the kind of array and the number of outputs; they
    are not charged. ``gradient``, if given, takes the same rows and returns [n, k, d] (or [n, d] for one output).
    """

    def __init__(
        self,
        function: Function,
        *,
        input_shape: Sequence[int],
        access: Access = "value",
        budget: int | None = None,
        precision: Precision = "native",
        gradient: Function | None = None,
        batch_size: int | None = None,
    ) -> None:
        checked_precision(precision)
        shape = checked_shape(input_shape)
        self._function, self._gradient_function = function, gradient
        self._takes_tensors, self._asked_in, probe = _try(
            function, shape, tensors_first=access == "gradient" and gradient is None
        )
        dtype = probe.dtype if probe.is_floating_point() else torch.float64
        if precision == "double" and dtype != torch.float64:
            raise InvalidInput(
                f'The function answers in {dtype}, and nothing can make it more precise; use precision="native".'
            )
        super().__init__(
            input_dim=math.prod(shape),
            output_dim=1 if probe.ndim == 1 else int(probe[0].numel()),
            access=access,
            budget=budget,
            dtype=dtype,
            input_shape=shape,
        )
        self._batch_size = checked_batch_size(batch_size)
        if access == "weights":
            raise AccessDenied("A function has no weights to show; give the model itself instead.")
        if access == "gradient" and gradient is None and not self._differentiable():
            raise AccessDenied(
                "A function gives no gradients by itself; pass gradient=, a function from rows [n, d] to gradients "
                "[n, k, d], or write it in torch so that autograd can follow it."
            )

    def _differentiable(self) -> bool:
        if not self._takes_tensors:
            return False
        X = torch.zeros(2, *self.input_shape, dtype=self._asked_in).requires_grad_()
        try:
            with torch.enable_grad():
                return bool(self._function(X).requires_grad)
        except Exception:  # numpy's functions refuse tensors that carry gradients, each in its own way
            return False

    def _forward(self, X: Tensor) -> Tensor:
        if not self._takes_tensors:
            return super()._forward(X)
        out: Tensor = self._function(X.to(self._asked_in).reshape(len(X), *self.input_shape))
        return self._answer(out, len(X))

    def _ask(self, function: Function, X: Tensor) -> Tensor:
        rows = X.to(self._asked_in).reshape(len(X), *self.input_shape)
        try:
            with torch.no_grad():
                return _as_tensor(function(rows if self._takes_tensors else rows.numpy()))
        except Exception as error:
            raise TargetError(f"The function failed on {len(X)} rows: {type(error).__name__}: {error}") from error

    def _answer(self, out: Tensor, rows: int) -> Tensor:
        if out.ndim == 0 or out.shape[0] != rows or out.numel() != rows * self.output_dim:
            raise BadAnswer(
                f"The function answered {rows} rows with an array of shape {tuple(out.shape)}; "
                f"[{rows}, {self.output_dim}] was expected."
            )
        return out.reshape(rows, self.output_dim).to(self.dtype)

    def _value(self, X: Tensor) -> Tensor:
        return in_batches(
            X, self._batch_size, lambda rows: (self._answer(self._ask(self._function, rows), len(rows)),)
        )[0]

    def _gradient(self, X: Tensor) -> tuple[Tensor, Tensor]:
        values, gradients = in_batches(X, self._batch_size, self._gradient_batch)
        return values, gradients

    def _gradient_batch(self, X: Tensor) -> tuple[Tensor, Tensor]:
        if self._gradient_function is None:
            return jacobian(self._forward, X)
        gradients = self._ask(self._gradient_function, X)
        if len(gradients) != len(X) or gradients.numel() != len(X) * self.output_dim * self.input_dim:
            raise BadAnswer(
                f"The gradient function answered {len(X)} rows with shape {tuple(gradients.shape)}; "
                f"[{len(X)}, {self.output_dim}, {self.input_dim}] was expected."
            )
        values = self._answer(self._ask(self._function, X), len(X))
        return values, gradients.reshape(len(X), self.output_dim, self.input_dim).to(self.dtype)


def _as_tensor(answer: Any) -> Tensor:
    """Arrays and tensors in their own precision; numbers in a list are Python's, in double precision."""
    return torch.as_tensor(answer if isinstance(answer, Tensor | np.ndarray) else np.asarray(answer))


def _try(function: Function, shape: tuple[int, ...], *, tensors_first: bool) -> tuple[bool, torch.dtype, Tensor]:
    """Whether the function takes tensors, in which number format, and its answer to two rows of zeros."""
    rows = torch.zeros(2, *shape, dtype=torch.float64)
    array: tuple[bool, Any] = (False, rows.numpy())
    tensor: list[tuple[bool, Any]] = [(True, rows), (True, rows.float())]
    problems = []
    for tensors, X in [*tensor, array] if tensors_first else [array, *tensor]:
        try:
            with torch.no_grad(), np.errstate(all="ignore"):
                answer = function(X)
            if isinstance(answer, Tensor) and not tensors:
                continue  # it did something with tensors: ask it with one
            out = _as_tensor(answer).detach()
        except Exception as error:
            problems.append(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
            continue
        if out.ndim and len(out) == 2 and not out.is_complex():
            return tensors, rows.dtype if not tensors else X.dtype, out
        problems.append(f"two rows were answered with shape {tuple(out.shape)}")
    raise InvalidInput(
        f"The function does not take rows of shape {(2, *shape)} and return one answer for each "
        f"({'; '.join(dict.fromkeys(problems))})."
    )

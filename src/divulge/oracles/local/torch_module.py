"""A torch module as an oracle: values, and the gradient of every output by one batched backward pass each.

The oracle asks a copy of the module in evaluation mode. A module that cannot be copied is asked in place: it is put
into evaluation mode for each query and restored afterwards.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from divulge.core.errors import AccessDenied, InvalidInput, TargetError, UnsupportedModel
from divulge.oracles.arguments import Precision, check_size, checked_batch_size, checked_precision, checked_shape
from divulge.oracles.base import Access, Oracle, OutputKind
from divulge.oracles.local.input_shape import candidate_shapes
from divulge.oracles.local.named_inputs import WHOLE_NUMBERS, shape_to_pass, vocabulary_of, with_row_inputs
from divulge.oracles.local.plain_layers import is_plain_sequence, last_layer, propagates_nonfinite
from divulge.oracles.local.single_output import threshold_of
from divulge.oracles.rows import in_batches

LIVE_NUMBERS = 2**26
"""Activations held at once when no batch size is given: half a gigabyte in float64."""
OUTPUTS = ("logits", "probabilities", "log-probabilities")


class TorchOracle(Oracle):
    """A torch module as it is when it is given, in its own precision or in float64.

    The oracle keeps a copy in evaluation mode. Training the original further does not change the oracle's answers.

    Parameters
    ----------
    module : nn.Module
        Any module from tensors to one tensor (or to an object with ``logits``). One that starts with an embedding takes
        the nearest whole numbers, and shows no gradients.
    access : {"label", "value", "gradient", "weights"}, default "value"
        What may be asked.
    budget : int or None, default None
        The largest total number of rows.
    precision : {"native", "double"}, default "native"
        "double" asks a float64 copy.
    input_shape : sequence of int, mapping or None, default None
        The shape of one input. By default the module's own ``input_shape``, or what its first layer takes. Of several
        inputs the shapes by name: the row is cut into them in that order.
    device : str, torch.device or None, default None
        Where the copy is asked; the module's own device by default.
    output : {"logits", "probabilities", "log-probabilities"} or None, default None
        What the endpoint shows of the module's logits. None leaves the outputs as they are.
    batch_size : int or None, default None
        Rows computed at once; by default as many as fit in half a gigabyte.

    Raises
    ------
    InvalidInput
        If the module does not take inputs of this shape, or an option makes no sense.
    UnsupportedModel
        If the module does not answer one row of numbers for each input, or mixes the rows of a batch.

    Examples
    --------
    >>> import torch
    >>> from divulge.oracles import TorchOracle
    >>> oracle = TorchOracle(torch.nn.Linear(3, 2), access="gradient", output="probabilities")
    >>> values, gradients = oracle.gradient(torch.ones(4, 3))
    >>> values.shape, gradients.shape, oracle.output_kind
    (torch.Size([4, 2]), torch.Size([4, 2, 3]), 'probabilities')
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        access: Access = "value",
        budget: int | None = None,
        precision: Precision = "native",
        input_shape: Sequence[int] | Mapping[str, Sequence[int]] | None = None,
        device: str | torch.device | None = None,
        output: str | None = None,
        batch_size: int | None = None,
    ) -> None:
        module = with_row_inputs(module, input_shape)
        said = str(getattr(module, "values_only", ""))
        if said and (access == "gradient" or (access == "weights" and said != WHOLE_NUMBERS)):
            raise AccessDenied(said)
        vocabulary = None if isinstance(input_shape, Mapping) else vocabulary_of(module)
        given = None if isinstance(input_shape, Mapping) else input_shape
        shapes = [checked_shape(given)] if given is not None else candidate_shapes(module)
        module, dtype, device = _prepared(module, precision, device)
        module = with_output(module, output)
        shape, answer, activations = _probe(module, shapes, dtype, device)
        super().__init__(
            input_dim=math.prod(shape),
            output_dim=1 if answer.ndim == 1 else int(answer[0].numel()),
            access=access,
            budget=budget,
            dtype=dtype,
            device=device,
            input_shape=shape,
            threshold=0.0 if vocabulary is not None else threshold_of(module, _tensor_of, shape, answer),
            output_kind=_output_kind(module, output),
            vocabulary=vocabulary,
        )
        self._module = module
        self._no_gradient = said
        self._flat = len(shape) == 1
        self._propagates_nonfinite = propagates_nonfinite(module)
        batch_size = checked_batch_size(batch_size)
        self._value_rows = batch_size or max(1, LIVE_NUMBERS // activations)
        self._gradient_rows = batch_size or max(1, LIVE_NUMBERS // (activations + self.output_dim * self.input_dim))

    def _weights(self) -> nn.Module:
        module = self._module
        if isinstance(module, InPlace):
            raise UnsupportedModel("This module cannot be copied, so its weights cannot be handed out.")
        module = copy.deepcopy(module)
        for parameter in module.parameters():
            if parameter.is_leaf and parameter.is_floating_point():
                parameter.requires_grad_()
        return module

    def _forward(self, X: Tensor) -> Tensor:
        try:
            out = _tensor_of(self._module(X if self._flat else X.reshape(len(X), *self.input_shape)))
        except Exception as error:
            raise TargetError(f"The model failed on {len(X)} rows: {type(error).__name__}: {error}") from error
        if out.dtype is not self.dtype:
            out = out.to(self.dtype)
        return out if out.ndim == 2 else out.reshape(len(X), -1)

    def _value(self, X: Tensor) -> Tensor:
        # neither the rows nor the weights require gradients, so none are kept
        if X.size(0) > self._value_rows:
            return in_batches(X, self._value_rows, lambda rows: (self._value(rows),))[0]
        out = self._forward(X)
        return out.detach() if out.requires_grad else out

    def _gradient(self, X: Tensor) -> tuple[Tensor, Tensor]:
        if self._no_gradient:
            raise AccessDenied(self._no_gradient)
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
        gradients = X.new_zeros(len(X), outputs, X.shape[1])  # written in place: arrays kept between passes of many
        for k in range(outputs):  # outputs would leave gaps in the heap that no later pass fits into
            (column,) = torch.autograd.grad(values[:, k].sum(), X, retain_graph=k + 1 < outputs, allow_unused=True)
            if column is not None:
                gradients[:, k] = column
    return values.detach(), gradients


# -- what the endpoint shows ------------------------------------------------------------------------------------------


class Probabilities(nn.Module):
    """Logits [n, k] to class probabilities; a single logit to those of "no" and "yes", as scikit-learn shows them."""

    def __init__(self, *, log: bool = False) -> None:
        super().__init__()
        self.log = log

    def forward(self, logits: Tensor) -> Tensor:
        if logits.shape[1] == 1:
            logits = torch.cat([torch.zeros_like(logits), logits], dim=1)
        return torch.log_softmax(logits, dim=1) if self.log else torch.softmax(logits, dim=1)


class _TensorOutput(nn.Module):
    """A module whose answer is reduced to its tensor of logits."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, X: Tensor) -> Tensor:
        return _tensor_of(self.module(X))


def with_output(module: nn.Module, output: str | None) -> nn.Module:
    """The module, followed by what turns its logits into the output asked for."""
    if output is None or output == "logits":
        return module
    if output not in OUTPUTS:
        raise InvalidInput(f'output is "logits", "probabilities" or "log-probabilities", not {output!r}.')
    layers = list(module) if is_plain_sequence(module) else [_TensorOutput(module)]
    return nn.Sequential(*layers, Probabilities(log=output == "log-probabilities")).eval()


def _tensor_of(answer: Any) -> Tensor:
    """The tensor in a model's answer: the answer itself, or its ``logits``."""
    if isinstance(answer, Tensor):
        return answer
    logits = answer.get("logits") if isinstance(answer, Mapping) else getattr(answer, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    raise UnsupportedModel(
        f"The model answers with a {type(answer).__name__}; one tensor is expected. Wrap it in a function that picks "
        "the tensor: divulge.oracle(lambda X: model(X)[0], input_shape=(...))."
    )


def _output_kind(module: nn.Module, output: str | None) -> OutputKind:
    """What the module's outputs mean, as far as its last layer or the user says."""
    last = last_layer(module)
    if isinstance(last, nn.LogSoftmax) or (isinstance(last, Probabilities) and last.log):
        return "log-probabilities"
    if isinstance(last, nn.Softmax | nn.Sigmoid | Probabilities):
        return "probabilities"
    return "logits" if output == "logits" else "scores"


# -- preparing a module -----------------------------------------------------------------------------------------------


class InPlace(nn.Module):
    """A module that cannot be copied: evaluation mode while it is asked, its own modes restored afterwards."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.__dict__["borrowed"] = module  # not a submodule: eval() and to() must not reach it

    def forward(self, X: Tensor) -> Tensor:
        module: nn.Module = self.__dict__["borrowed"]
        modes = [(part, part.training) for part in module.modules()]
        module.eval()
        try:
            return _tensor_of(module(X))
        finally:
            for part, mode in modes:
                part.training = mode


def _prepared(
    module: nn.Module, precision: Precision, device: str | torch.device | None
) -> tuple[nn.Module, torch.dtype, torch.device]:
    """A copy of the module that is ready to answer, its number format and its device."""
    checked_precision(precision)
    if any(is_lazy(part) for part in (*module.parameters(), *module.buffers())):
        raise UnsupportedModel("The model has lazy layers without weights yet; run it on one batch first.")
    reference = next((p for p in module.parameters() if p.is_floating_point()), torch.zeros((), dtype=torch.float64))
    dtype = torch.float64 if precision == "double" else reference.dtype
    copied = _copied(module)
    if copied is None:
        if dtype != reference.dtype or device not in (None, str(reference.device), reference.device):
            raise UnsupportedModel(
                'This module cannot be copied, so it is asked as it is; leave out device= and precision="double".'
            )
        return InPlace(module), dtype, reference.device
    try:
        device = torch.device(device) if device is not None else reference.device
        copied = copied.to(device=device, dtype=dtype).eval()
    except (RuntimeError, AssertionError) as error:  # torch's ways to say that a device is not there
        raise InvalidInput(f"The model cannot be copied to {device}: {str(error).splitlines()[0]}") from error
    for parameter in copied.parameters():
        if parameter.is_leaf:  # a scripted module's copies are not
            parameter.requires_grad_(False)
    return copied, dtype, device


def _copied(module: nn.Module) -> nn.Module | None:
    """A deep copy, or None for a module that holds what cannot be copied (locks, tensors that carry a graph)."""
    try:
        return copy.deepcopy(module)
    except (RuntimeError, TypeError, NotImplementedError):
        return None


def _probe(
    module: nn.Module, shapes: Sequence[tuple[int, ...]], dtype: torch.dtype, device: torch.device
) -> tuple[tuple[int, ...], Tensor, int]:
    """The first shape that the module takes, its answer to two rows, and the numbers that one row takes on its way."""
    faults = []
    for shape in shapes:
        X = torch.zeros(2, *shape, dtype=dtype, device=device)
        try:
            answer, numbers = _measured(module, X)
        except UnsupportedModel:
            raise
        except Exception as error:
            faults.append((shape, error))
            continue
        if answer.ndim == 0 or len(answer) != 2:
            raise UnsupportedModel(
                f"The model answers 2 rows with a tensor of shape {tuple(answer.shape)}; one row of outputs for each "
                "is expected."
            )
        if not answer.is_floating_point():
            raise UnsupportedModel(
                f"The model answers {answer.dtype}; give one that ends before the decision is taken."
            )
        check_size(answer[0].numel(), "answer")
        _check_rows_independent(module, shape, dtype, device)
        return shape, answer, max(1, numbers // 2)
    shape, fault = faults[0]
    said = next(iter(str(fault).splitlines()), type(fault).__name__)
    raise InvalidInput(
        f"The model does not take inputs of shape {shape}: {said}. Pass {shape_to_pass(module)}."
    ) from fault


def _measured(module: nn.Module, X: Tensor) -> tuple[Tensor, int]:
    """The answer to a batch, and how many numbers it takes on its way through the layers."""
    numbers = [X.numel()]

    def count(layer: nn.Module, inputs: object, out: object) -> None:
        numbers[0] += out.numel() if isinstance(out, Tensor) else 0

    hooks = [layer.register_forward_hook(count) for layer in _leaves(module)]
    try:
        with torch.no_grad():
            return _tensor_of(module(X)), numbers[0]
    finally:
        for hook in hooks:
            hook.remove()


def _leaves(module: nn.Module) -> Iterator[nn.Module]:
    for layer in module.modules():
        if not isinstance(layer, torch.jit.ScriptModule) and not any(layer.children()):
            yield layer


def _check_rows_independent(
    module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> None:
    """Refuse a model whose answer to a row depends on the other rows of its batch."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(5, *shape, generator=generator, dtype=torch.float64).to(device=device, dtype=dtype)
    try:
        with torch.no_grad():
            first, again, second = (
                _tensor_of(module(rows[some]))[0].double() for some in ([0, 1, 2], [0, 1, 2], [0, 3, 4])
            )
    except Exception:  # random rows may lie outside what the model takes; the queries will tell
        return
    if not torch.equal(first, again):  # a random model; check_deterministic finds those
        return
    gap = float((first - second).nan_to_num(0.0, 0.0, 0.0).abs().max())
    if gap > 1e4 * torch.finfo(dtype).eps * (1 + float(first.nan_to_num(0.0, 0.0, 0.0).abs().max())):
        raise UnsupportedModel(
            f"The model answers a row differently in the company of other rows (by {gap:.3g}), as a normalisation "
            "without running statistics does; give a model that answers each row on its own."
        )


# -- what is known of a module ----------------------------------------------------------------------------------------


def input_shape_of(module: nn.Module) -> tuple[int, ...]:
    """The shape of one input: the module's own ``input_shape``, or what its first layer takes."""
    return candidate_shapes(module)[0]

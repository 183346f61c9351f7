"""Keras 3 models: ``.keras`` files and objects, on any backend.

A chain of dense layers (with activations, normalisations, dropout and flattening) is rebuilt as a torch module: values,
gradients and weights come from it, once it answers as Keras does. Every other model is asked through Keras for values
and labels.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from divulge.core.errors import InvalidInput, MissingPackage, UnsupportedModel, UntrustedFile
from divulge.oracles.arguments import checked_shape

FILES = (".keras", ".h5", ".hdf5")
_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "linear": nn.Identity, "relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "elu": nn.ELU, "selu": nn.SELU,
    "softplus": nn.Softplus, "silu": nn.SiLU, "softmax": lambda: nn.Softmax(dim=1),
}  # fmt: skip


class KerasModule(nn.Module):
    """A Keras model that answers tensors through Keras itself. A copy of it asks the same model."""

    values_only = "This Keras model is asked through Keras, for values and labels; its gradients are not read."

    def __init__(self, model: Any, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.__dict__["keras_model"] = model  # no submodule: Keras on torch is one, with modes of its own
        self.precision = nn.Parameter(torch.zeros(()), requires_grad=False)
        self.input_shape = shape

    def __deepcopy__(self, memo: object) -> KerasModule:
        return self

    def forward(self, X: Tensor) -> Tensor:
        answer = self.__dict__["keras_model"](X.detach().cpu().numpy().astype(np.float32), training=False)
        return torch.from_numpy(np.array(sys.modules["keras"].ops.convert_to_numpy(answer)))


def is_keras(model: object) -> bool:
    """Whether this is a Keras 3 model."""
    return (
        any(base.__module__.startswith("keras.") for base in type(model).__mro__)
        and hasattr(model, "layers")
        and hasattr(model, "predict")
    )


def load_keras(path: Path, *, trust_code: bool = False) -> nn.Module:
    """The model in a file. Python code that it holds is not run unless it is trusted."""
    if "keras" not in sys.modules:
        os.environ.setdefault("KERAS_BACKEND", "torch")
    try:
        import keras
    except ImportError as error:
        raise MissingPackage(f"{path.name} is a Keras model; install divulge[keras].") from error
    try:
        model = keras.saving.load_model(path, compile=False, safe_mode=not trust_code)
    except Exception as error:  # a damaged file can fail in many ways
        fault = " ".join(str(error).split())
        if "safe_mode" in fault or "unsafe" in fault:
            raise UntrustedFile(
                f"{path.name} holds Python code; if you trust whoever made it, load it with "
                f'divulge.oracle("{path}", trust_pickle=True).'
            ) from error
        raise InvalidInput(f"{path} is not a readable Keras model: {type(error).__name__}: {fault[:200]}") from error
    return from_keras(model)


def from_keras(model: Any) -> nn.Module:
    """A Keras model as a torch module: with its weights where it is a chain of dense layers."""
    shape = model.input_shape
    if isinstance(shape, list | dict) or shape is None or None in tuple(shape)[1:]:
        raise UnsupportedModel(
            f"The Keras model takes inputs of shape {shape}; one input of fixed extents is expected. Wrap it in a "
            "function: divulge.oracle(lambda X: ..., input_shape=(...))."
        )
    asked = KerasModule(model, checked_shape(shape[1:]))
    try:
        rebuilt = _chain(model, asked.input_shape)
    except UnsupportedModel:
        return asked
    rows = torch.randn(8, *asked.input_shape, generator=torch.Generator().manual_seed(0))
    theirs = asked(rows).reshape(len(rows), -1)
    with torch.no_grad():
        ours = rebuilt(rows)
    return rebuilt if ours.shape == theirs.shape and torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5) else asked


def _chain(model: Any, shape: tuple[int, ...]) -> nn.Sequential:
    if len(model.inputs) != 1 or len(model.outputs) != 1 or not _is_sequence(model):
        raise UnsupportedModel("The Keras model is not a chain of layers.")
    layers: list[nn.Module] = []
    for layer in model.layers:
        layers += _layers(layer)
    if len(shape) > 1 and not isinstance(layers[0], nn.Flatten):
        raise UnsupportedModel("The Keras model does not start with rows of numbers.")
    rebuilt = nn.Sequential(*(layer for layer in layers if not isinstance(layer, nn.Identity)))
    rebuilt.input_shape = shape  # type: ignore[assignment]
    return rebuilt.eval()


def _is_sequence(model: Any) -> bool:
    """Whether each layer takes what the one before it gives, and nothing else."""
    if type(model).__name__ == "Sequential":
        return True
    inner = [layer for layer in model.layers if type(layer).__name__ != "InputLayer"]
    wired = [layer for layer in inner if len(layer._inbound_nodes) == 1]
    if len(wired) != len(inner):
        return False
    parents = [[tensor._keras_history.operation for tensor in layer._inbound_nodes[0].input_tensors] for layer in inner]
    return all(len(p) == 1 for p in parents) and all(p[0] is q for p, q in zip(parents[1:], inner, strict=False))


def _layers(layer: Any) -> list[nn.Module]:
    """One Keras layer as torch layers."""
    name = type(layer).__name__
    if name in ("InputLayer", "Dropout", "GaussianNoise", "ActivityRegularization"):
        return []
    if name == "Flatten":
        return [nn.Flatten()]
    if name in ("Activation", "Dense"):
        activation = getattr(layer.activation, "__name__", "")
        if activation not in _ACTIVATIONS:
            raise UnsupportedModel(f"The activation {activation!r} is not read.")
        return [*([_dense(layer)] if name == "Dense" else []), _ACTIVATIONS[activation]()]
    if name == "ReLU" and layer.max_value is None and not layer.negative_slope and not layer.threshold:
        return [nn.ReLU()]
    if name == "Softmax":
        return [nn.Softmax(dim=1)]
    raise UnsupportedModel(f"The layer {name} is not read.")


def _dense(layer: Any) -> nn.Linear:
    kernel, *bias = [np.asarray(array, dtype=np.float32) for array in layer.get_weights()]
    linear = nn.Linear(kernel.shape[0], kernel.shape[1], bias=bool(bias))
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(kernel.T.copy()))
        if bias:
            linear.bias.copy_(torch.from_numpy(bias[0].copy()))
    return linear

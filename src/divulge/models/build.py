"""From a name or a description to a model, with its parameters drawn from a seed and from nothing else."""

from __future__ import annotations

import importlib
import math
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from divulge.errors import InvalidInput, UnsupportedModel
from divulge.models.ensemble import Ensemble
from divulge.models.mlp import MLP, empty_relu_network
from divulge.models.pictures import balle_cnn, resnet18, two_conv, vgg11


def _softmax(*, shape: Sequence[int] = (1, 28, 28), outputs: int = 10) -> MLP:
    """Softmax regression: one linear layer (Milli 2019, the one-layer network)."""
    return MLP([math.prod(shape), outputs])


def _one_hidden(
    *, shape: Sequence[int] = (1, 28, 28), outputs: int = 10, width: int = 128, activation: str = "relu"
) -> MLP:
    """One hidden ReLU layer (Milli 2019, the two-layer network)."""
    return MLP([math.prod(shape), width, outputs], activation=activation)


def _homogeneous(*, shape: Sequence[int] = (1, 28, 28), outputs: int = 1, width: int = 1000, depth: int = 2) -> MLP:
    """ReLU layers with a bias in the first only (Haim 2022: d-1000-1000-1)."""
    return MLP([math.prod(shape), *[width] * depth, outputs], bias="first")


def _balle_mlp(*, shape: Sequence[int] = (1, 28, 28), outputs: int = 10, width: int = 10) -> MLP:
    """One hidden ELU layer of width 10 (Balle 2022, Table V)."""
    return MLP([math.prod(shape), width, outputs], activation="elu")


def _balle_cnn_large(*, shape: Sequence[int] = (3, 32, 32), outputs: int = 10) -> nn.Module:
    """The CIFAR-10 network of Balle 2022 with its dense layer doubled (section VI-B)."""
    return balle_cnn(shape=shape, outputs=outputs, dense=20)


def _ensemble(*, members: Sequence[Mapping[str, Any]], shape: Sequence[int]) -> Ensemble:
    """Copies learned together, which answer with the mean of their logits."""
    made = [{**member} for member in members]
    return Ensemble([skeleton(member.pop("architecture", None), member) for member in made], shape)


NAMED: dict[str, Callable[..., nn.Module]] = {
    "softmax": _softmax,
    "one-hidden": _one_hidden,
    "homogeneous": _homogeneous,
    "two-conv": two_conv,
    "vgg11": vgg11,
    "resnet18": resnet18,
    "balle-mlp": _balle_mlp,
    "balle-cnn": balle_cnn,
    "balle-cnn-large": _balle_cnn_large,
}
BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "mlp": MLP, "relu-network": empty_relu_network, "ensemble": _ensemble, **NAMED,
}  # fmt: skip


def names() -> dict[str, str]:
    """The named architectures and a sentence on each; all take ``shape`` (of one row) and ``outputs``."""
    return {name: (builder.__doc__ or "").strip() for name, builder in NAMED.items()}


def build(
    spec: str | Mapping[str, Any],
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    scales: Sequence[float | None] = (),
    **options: Any,
) -> nn.Module:
    """A fresh model: by name with its options, by the dictionary that describes it, or by the user's own
    ``"module:function"``, which is imported and called with the options.

    The parameters are drawn by ``initialise`` from ``seed`` and ``scales``; the user's own function draws its own,
    from torch's global generator seeded with ``seed`` for the length of the call.
    """
    options = {**({"architecture": spec} if isinstance(spec, str) else spec), **options}
    name = options.pop("architecture", None)
    if isinstance(name, str) and ":" in name:
        return _build_own(name, options, seed=seed, dtype=dtype, scales=scales)
    return initialise(skeleton(name, options).to_empty(device="cpu").to(dtype), seed=seed, scales=scales)


def skeleton(name: object, options: Mapping[str, Any]) -> nn.Module:
    """One of divulge's networks without storage for its weights, whatever size the options ask for."""
    if not isinstance(name, str) or name not in BUILDERS:
        raise UnsupportedModel(
            f"There is no architecture {name!r}; choose one of {', '.join(BUILDERS)}, or name your own as "
            "module:function."
        )
    try:
        with torch.device("meta"):  # which also draws nothing from the global random state
            return BUILDERS[name](**options)
    except InvalidInput:
        raise
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise InvalidInput(f"The description of a {name} model does not fit: {error}.") from error


def weighted_layers(model: nn.Module) -> list[nn.Linear | nn.Conv1d | nn.Conv2d]:
    """The linear and convolutional layers, in order: the ones that an initial scale speaks of."""
    return [layer for layer in model.modules() if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d)]


def initialise(model: nn.Module, *, seed: int, scales: Sequence[float | None] = ()) -> nn.Module:
    """Draw the parameters in place, in float64 from ``torch.Generator`` seeded by ``seed``, then cast.

    A layer's weights, then its bias, are uniform on [-r, r]. By default r = 1/sqrt(fan in), torch's own initial
    distribution; where ``scales`` gives layer l a standard deviation s, r = sqrt(3) s. Layers go in order.
    Normalisation starts as the identity and any other parameter at zero.
    """
    generator = torch.Generator().manual_seed(seed)
    layers = weighted_layers(model)
    if len(scales) > len(layers):
        raise InvalidInput(f"There are {len(scales)} initial scales but {len(layers)} layers.")
    wanted = [*scales, *[None] * (len(layers) - len(scales))]
    radius: dict[nn.Module, float] = {
        layer: layer.weight[0].numel() ** -0.5 if scale is None else 3**0.5 * scale
        for layer, scale in zip(layers, wanted, strict=True)
    }
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._NormBase | nn.GroupNorm | nn.LayerNorm):
                module.reset_parameters()
                continue
            for parameter in module.parameters(recurse=False):
                if module in radius:
                    draw = torch.empty(parameter.shape, dtype=torch.float64)
                    parameter.copy_(draw.uniform_(-radius[module], radius[module], generator=generator))
                else:
                    parameter.zero_()
    return model


def own_function(name: str) -> Callable[..., Any]:
    """The user's ``"module:function"`` or ``"file.py:function"``, looked for in the current folder as well."""
    where, _, function_name = name.rpartition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        if where.endswith(".py"):
            module: Any = SimpleNamespace(**runpy.run_path(where))
        else:
            module = importlib.import_module(where)
    except (ImportError, OSError) as error:
        raise InvalidInput(
            f"{where!r} of {name!r} could not be imported ({error}); it must be installed or in the current folder."
        ) from error
    finally:
        sys.path.remove(str(Path.cwd()))
    function = getattr(module, function_name, None)
    if not callable(function):
        raise InvalidInput(f"{where!r} has no function {function_name!r}.")
    found: Callable[..., Any] = function
    return found


def _build_own(
    name: str, options: dict[str, Any], *, seed: int, dtype: torch.dtype, scales: Sequence[float | None]
) -> nn.Module:
    if scales:
        raise InvalidInput(f"{name} draws its own initial weights, so an initial scale cannot be asked of it.")
    function = own_function(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model = function(**options)
        except TypeError as error:
            raise InvalidInput(f"{name} could not be called with {options or 'no options'}: {error}.") from error
    if not isinstance(model, nn.Module):
        raise UnsupportedModel(f"{name} returned {type(model).__name__}, not a torch.nn.Module.")
    if getattr(model, "spec", None) is None:
        model.spec = {"architecture": name, **options}  # type: ignore[assignment]
    return model.to(dtype)

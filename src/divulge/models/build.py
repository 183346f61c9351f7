"""From a name or a description to a model, with its parameters drawn from a seed and from nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from divulge.core.errors import InvalidInput, UnsupportedModel
from divulge.models.convnets import balle_cnn, resnet18, two_conv, vgg11
from divulge.models.ensemble import Ensemble
from divulge.models.mlp import MLP, empty_relu_network
from divulge.models.step_functions import DecisionTree, StepTables
from divulge.models.user_code import import_function


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
    """The mean of the logits of several networks."""
    made = [{**member} for member in members]
    return Ensemble([build_empty(member.pop("architecture", None), member) for member in made], shape)


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
    "mlp": MLP, "relu-network": empty_relu_network, "ensemble": _ensemble, "decision-tree": DecisionTree,
    "step-tables": StepTables, **NAMED,
}  # fmt: skip


MAX_PARAMETERS = 1 << 36
"""The most parameters that a described model may have: 512 GB in float64, beyond any model this library attacks."""


def names() -> dict[str, str]:
    """The named architectures and a sentence on each. All take ``shape`` (of one row) and ``outputs``.

    Returns
    -------
    dict of str to str

    Examples
    --------
    >>> from divulge import models
    >>> models.names()["balle-mlp"]
    'One hidden ELU layer of width 10 (Balle 2022, Table V).'
    """
    return {name: (builder.__doc__ or "").strip() for name, builder in NAMED.items()}


def build(
    spec: str | Mapping[str, Any],
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    scales: Sequence[float | None] = (),
    **options: object,
) -> nn.Module:
    """A fresh model.

    Parameters
    ----------
    spec : str or mapping
        The name of an architecture (``names``), the dictionary that describes a model (its ``spec``), or the user's own
        ``"module:function"``, which is imported and called with the options.
    seed : int, default 0
        Fixes the initial parameters. The user's own function draws from torch's global generator, seeded with ``seed``
        for the length of the call.
    dtype : torch.dtype, default torch.float32
        The number format of the parameters.
    scales : sequence of float or None, default ()
        Initial standard deviations of the layers' weights, as for ``initialise``.
    **options
        Options of the architecture, such as ``widths=[784, 128, 10]``.

    Returns
    -------
    nn.Module
        In training mode, with ``spec`` and ``input_shape``.

    Raises
    ------
    UnsupportedModel
        If there is no such architecture.
    InvalidInput
        If the options do not describe a model, or one that is too large.

    Examples
    --------
    >>> from divulge import models
    >>> models.build("one-hidden", shape=(4,), width=3, outputs=2, seed=1)
    MLP(
      (0): Linear(in_features=4, out_features=3, bias=True)
      (1): ReLU()
      (2): Linear(in_features=3, out_features=2, bias=True)
    )
    """
    options = {**({"architecture": spec} if isinstance(spec, str) else spec), **options}
    name = options.pop("architecture", None)
    if isinstance(name, str) and ":" in name:
        return _build_by_code(name, options, seed=seed, dtype=dtype, scales=scales)
    model = build_empty(name, options)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if parameters > MAX_PARAMETERS:
        raise InvalidInput(
            f"This {name} model would have {parameters:,} parameters; at most {MAX_PARAMETERS:,} are built."
        )
    return initialise(model.to_empty(device="cpu").to(dtype), seed=seed, scales=scales)


def build_empty(name: object, options: Mapping[str, Any]) -> nn.Module:
    """One of divulge's networks on torch's meta device: without storage for its weights, so that size costs nothing."""
    if not isinstance(name, str) or name not in BUILDERS:
        raise UnsupportedModel(
            f"There is no architecture {repr(name)[:50]}; choose one of {', '.join(BUILDERS)}, or name your own as "
            "module:function."
        )
    try:
        with torch.device("meta"):  # which also draws nothing from the global random state
            model = BUILDERS[name](**options)
    except InvalidInput:
        raise
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        fault = str(error).splitlines()[0][:200]
        raise InvalidInput(f"The description of a {name} model does not fit: {fault}.") from error
    return model


def weighted_layers(model: nn.Module) -> list[nn.Linear | nn.Conv1d | nn.Conv2d]:
    """The linear and convolutional layers, in order: those that an initial scale applies to.

    Parameters
    ----------
    model : nn.Module
        Any torch module.

    Returns
    -------
    list of nn.Module

    Examples
    --------
    >>> from divulge import models
    >>> len(models.weighted_layers(models.MLP([4, 3, 2])))
    2
    """
    return [layer for layer in model.modules() if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d)]


def initialise(model: nn.Module, *, seed: int, scales: Sequence[float | None] = ()) -> nn.Module:
    """Draw the parameters in place, in float64 from a ``torch.Generator``, then cast.

    A layer's weights, then its bias, are uniform on [-r, r]. By default r = 1/sqrt(fan in), torch's own initial
    distribution. Layers are drawn in order. Normalisation layers start as the identity, other parameters at zero.

    Parameters
    ----------
    model : nn.Module
        The module to draw for.
    seed : int
        Fixes the draw.
    scales : sequence of float or None, default ()
        Where it gives layer l a standard deviation s, r = sqrt(3) s.

    Returns
    -------
    nn.Module
        The same module.

    Raises
    ------
    InvalidInput
        If there are more scales than layers.

    Examples
    --------
    >>> from divulge import models
    >>> model = models.initialise(models.MLP([400, 2]), seed=0, scales=[0.1])
    >>> bool((model[0].weight.std() - 0.1).abs() < 0.01)
    True
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


def _build_by_code(
    name: str, options: dict[str, Any], *, seed: int, dtype: torch.dtype, scales: Sequence[float | None]
) -> nn.Module:
    if scales:
        raise InvalidInput(f"{name} draws its own initial weights, so an initial scale cannot be asked of it.")
    function = import_function(name)
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

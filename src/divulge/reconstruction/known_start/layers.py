"""The first dense layer that training changed, before and after, and what runs in front of it.

The layer is found by running the model: dense layers are listed in the order in which they are called, with the input
that each one gets. So any module works, and what stands in front of the layer is a feature extractor, frozen or not.
An adapter (LoRA) brings a dense layer of its own, whose rows are the ones that moved.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from divulge.core.errors import InvalidInput, UnsupportedModel, WrongShape
from divulge.reconstruction.known_start.difference import LayerPair

Features = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ChangedLayer:
    """The first dense layer that training changed."""

    name: str
    pair: LayerPair
    input_shape: tuple[int, ...]
    """Of one input of the model."""
    features: Features | None
    """From inputs [m, *input_shape] to the layer's inputs; None where those are the model's own inputs."""
    feature_shape: tuple[int, ...] | None
    """(channels, height, width) of the features where they are maps."""
    frozen: bool
    """Whether what stands in front of the layer did not change."""


def changed_layer(model: nn.Module, start: nn.Module, shape: tuple[int, ...] | None) -> ChangedLayer:
    """Find the layer in both models; ``shape`` is that of one input where the model does not say it."""
    before, after = _states(start), _states(model)
    _check_same(before, after)
    calls, input_shape = _calls(model, shape)
    for name, got in calls:
        weight, bias = (f"{name}.{kind}" if name else kind for kind in ("weight", "bias"))
        if torch.equal(before[weight], after[weight]):
            continue
        _check_once(model, calls, name, got)
        pair = LayerPair(before[weight], before.get(bias), after[weight], after.get(bias))
        own = got.shape[1:] == torch.Size([math.prod(input_shape)]) and torch.equal(got, _probe(input_shape, got))
        front = tuple(_front(model, input_shape, name))
        frozen = own or all(torch.equal(before[key], after[key]) for key in after if key.startswith(front))
        features = None if own else features_of(model, name)
        return ChangedLayer(name, pair, input_shape, features, None if own else _map_shape(model, input_shape, got),
                            frozen)  # fmt: skip
    raise InvalidInput(
        "No dense layer of the model has other weights than the start: the two are the same, or only biases or other "
        "layers were trained, whose differences do not hold the inputs."
    )


def _check_once(model: nn.Module, calls: list[tuple[str, Tensor]], name: str, got: Tensor) -> None:
    """Refuse a layer whose weights see more than one vector of an input: its difference is a sum over all of them."""
    weight = model.get_submodule(name).weight
    sharing = [other for other, _ in calls if model.get_submodule(other).weight is weight]
    if len(sharing) > 1:
        raise UnsupportedModel(
            f"The weights of layer {name!r} are used {len(sharing)} times for each input ({', '.join(sharing)}), so "
            "that their difference mixes the inputs of all uses."
        )
    if got.ndim > 2:
        raise UnsupportedModel(
            f"Layer {name!r} is applied to {math.prod(got.shape[1:-1])} vectors of each input (tokens or places), so "
            "that its difference holds the span of all of them. The attack takes dense layers that see an input once."
        )


def _states(model: nn.Module) -> dict[str, Tensor]:
    if not isinstance(model, nn.Module):
        raise UnsupportedModel(f"A known start needs torch modules; got {type(model).__name__}.")
    return {
        key: value.detach().to(torch.float64).cpu()
        for key, value in model.state_dict().items()
        if value.is_floating_point()
    }


def _check_same(before: dict[str, Tensor], after: dict[str, Tensor]) -> None:
    if before.keys() != after.keys():
        odd = sorted(before.keys() ^ after.keys())[0]
        raise InvalidInput(
            f"The start is of another architecture than the model: only one of them has the parameter {odd!r}."
        )
    for key, value in after.items():
        if value.shape != before[key].shape:
            raise InvalidInput(
                f"The start is of another architecture than the model: {key!r} has shape {tuple(before[key].shape)} in "
                f"the start and {tuple(value.shape)} in the model."
            )
        for where, tensor in (("start", before[key]), ("model", value)):
            if not bool(torch.isfinite(tensor).all()):
                raise UnsupportedModel(f"The {where} holds NaN or infinite weights in {key!r}.")


def _probe(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Two inputs of random numbers, flat."""
    drawn = torch.randn(2, math.prod(shape), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return drawn.to(like)


def _calls(model: nn.Module, shape: tuple[int, ...] | None) -> tuple[list[tuple[str, Tensor]], tuple[int, ...]]:
    """The dense layers in the order in which they are called, with the input of each, and the model's input shape."""
    last: Exception | None = None
    for candidate in _shapes(model, shape):
        found: list[tuple[str, Tensor]] = []
        try:
            _run(model, _probe(candidate, _reference(model)).reshape(2, *candidate), found)
        except (RuntimeError, ValueError, IndexError) as error:
            last = error
            continue
        if not found:
            raise UnsupportedModel("The model has no dense layer, whose difference could hold the span of its inputs.")
        return found, candidate
    fault = "" if last is None else f": {str(last).splitlines()[0]}"
    raise WrongShape(f"The model could not be run; give the shape of one input{fault}.")


def _shapes(model: nn.Module, shape: tuple[int, ...] | None) -> list[tuple[int, ...]]:
    """Shapes of one input to try: the declared one, the given one, and the widths of the dense layers."""
    declared: Any = getattr(model, "input_shape", None)
    tried = [] if declared is None else [tuple(int(extent) for extent in declared)]
    dense = [layer.in_features for layer in model.modules() if isinstance(layer, nn.Linear)]
    if shape is not None:
        if len(shape) not in (1, 2, 3) or min(shape) < 1:
            raise WrongShape(f"shape is (height, width) or (channels, height, width) of one input, not {shape}.")
        tried += [tuple(shape), (math.prod(shape),)]
    return tried + [(width,) for width in dict.fromkeys(dense)]


def _reference(model: nn.Module) -> Tensor:
    parameter = next(model.parameters(), None)
    if parameter is None:
        raise UnsupportedModel("The model has no parameters.")
    return parameter


def _run(model: nn.Module, X: Tensor, found: list[tuple[str, Tensor]]) -> Tensor:
    """Run the model; the inputs of its dense layers are added to ``found``."""
    handles = [
        layer.register_forward_pre_hook(lambda _, given, name=name: found.append((name, given[0].detach())))
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear)
    ]
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            answer: Tensor = model(X)
    finally:
        model.train(was_training)
        for handle in handles:
            handle.remove()
    return answer


def _front(model: nn.Module, input_shape: tuple[int, ...], name: str) -> list[str]:
    """Prefixes of the parameters and statistics that are used before the layer is reached."""
    seen: list[str] = []
    handles = [
        layer.register_forward_pre_hook(lambda _, __, other=other: seen.append(other))
        for other, layer in model.named_modules()
        if other and (layer._parameters or layer._buffers)
    ]
    try:
        _run(model, _probe(input_shape, _reference(model)).reshape(2, *input_shape), [])
    finally:
        for handle in handles:
            handle.remove()
    return [f"{other}." for other in seen[: seen.index(name)]] if name in seen else []


class _Stop(Exception):
    """The layer was reached."""


def features_of(model: nn.Module, name: str) -> Features:
    """The function from inputs to what the layer gets. It can be differentiated."""
    frozen = copy.deepcopy(model).float().eval().requires_grad_(False)
    layer = frozen.get_submodule(name)
    caught: list[Tensor] = []

    def catch(_: nn.Module, given: tuple[Tensor, ...]) -> None:
        caught.append(given[0])
        raise _Stop

    layer.register_forward_pre_hook(catch)

    def features(X: Tensor) -> Tensor:
        caught.clear()
        with suppress(_Stop):
            frozen(X)
        return caught[0].flatten(1)

    return features


def _map_shape(model: nn.Module, input_shape: tuple[int, ...], got: Tensor) -> tuple[int, ...] | None:
    """The shape of the last feature maps that have as many numbers as the layer has inputs."""
    shapes: list[tuple[int, ...]] = []
    handles = [
        layer.register_forward_hook(lambda _, __, out: shapes.append(tuple(out.shape[1:])))
        for layer in model.modules()
        if not list(layer.children())
    ]
    try:
        _run(model, _probe(input_shape, _reference(model)).reshape(2, *input_shape), [])
    finally:
        for handle in handles:
            handle.remove()
    maps = [shape for shape in shapes if len(shape) == 3 and math.prod(shape) == math.prod(got.shape[1:])]
    return maps[-1] if maps else None

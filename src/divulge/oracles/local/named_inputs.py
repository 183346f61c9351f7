"""Modules that take whole numbers, or several inputs, as modules that take one row of real numbers.

An attack asks with rows of real numbers. ``TokenIds`` rounds each to the nearest whole number that the embedding behind
it knows. ``NamedInputs`` cuts a row into parts by name, and hands them over as keyword arguments, as one dictionary, or
in order, whichever the module takes.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from divulge.core.errors import InvalidInput
from divulge.oracles.arguments import checked_shape

WHOLE_NUMBERS = "The model takes whole numbers, which have no gradient to show; choose value or label access."
_MOST_INPUTS = 6  # whose number formats are found by trying


class TokenIds(nn.Module):
    """A module behind the nearest whole numbers from 0 up to its vocabulary."""

    values_only = WHOLE_NUMBERS

    def __init__(self, module: nn.Module, vocabulary: int) -> None:
        super().__init__()
        self.module = module
        self.vocabulary = vocabulary
        if (declared := getattr(module, "input_shape", None)) is not None:
            self.input_shape = declared

    def forward(self, X: Tensor) -> Any:
        return self.module(whole(X, self.vocabulary))


def whole(X: Tensor, vocabulary: int) -> Tensor:
    """The nearest whole numbers that an embedding of this size knows."""
    return X.round().clamp(0, vocabulary - 1).long()


def vocabulary_of(module: nn.Module) -> int | None:
    """How many whole numbers the embedding knows that a module starts with; None if it starts with another layer."""
    if isinstance(module, TokenIds):
        return module.vocabulary
    first = next((layer for layer in module.modules() if not any(layer.children())), None)
    return first.num_embeddings if isinstance(first, nn.Embedding | nn.EmbeddingBag) else None


class NamedInputs(nn.Module):
    """A module of several inputs behind one flat row: ``signature`` has the name and the shape of each part."""

    def __init__(self, module: nn.Module, signature: Mapping[str, Sequence[int]]) -> None:
        super().__init__()
        if not signature:
            raise InvalidInput('input_shape= names no input; write {"name": (3,), ...}.')
        self.module = module
        self.signature = {str(name): checked_shape(shape) for name, shape in signature.items()}
        self.input_shape = (sum(math.prod(shape) for shape in self.signature.values()),)
        self.by = _calling(module, list(self.signature))
        self.whole = self._whole_inputs()
        if self.whole:
            self.values_only = WHOLE_NUMBERS

    def parts(self, X: Tensor, whole: Sequence[str]) -> dict[str, Tensor]:
        """The inputs by name, with the named ones as whole numbers."""
        sizes = [math.prod(shape) for shape in self.signature.values()]
        cut = torch.split(X.reshape(len(X), -1), sizes, dim=1)
        named = zip(self.signature.items(), cut, strict=True)
        shaped = {name: part.reshape(len(X), *shape) for (name, shape), part in named}
        return {name: part.round().clamp(min=0).long() if name in whole else part for name, part in shaped.items()}

    def forward(self, X: Tensor) -> Any:
        return self._called(self.parts(X, self.whole))

    def _called(self, parts: dict[str, Tensor]) -> Any:
        if self.by == "name":
            return self.module(**parts)
        return self.module(parts) if self.by == "dictionary" else self.module(*parts.values())

    def _whole_inputs(self) -> tuple[str, ...]:
        """The inputs that the module takes as whole numbers: the fewest with which it answers two rows of zeros."""
        parameter = next((p for p in self.module.parameters() if p.is_floating_point()), torch.zeros(()))
        X = torch.zeros(2, self.input_shape[0], dtype=parameter.dtype, device=parameter.device)
        names = list(self.signature)[:_MOST_INPUTS]
        fault = ""
        modes = [(layer, layer.training) for layer in self.module.modules()]
        self.module.eval()
        try:
            for chosen in itertools.chain.from_iterable(
                itertools.combinations(names, count) for count in range(len(names) + 1)
            ):
                try:
                    with torch.no_grad():
                        self._called(self.parts(X, chosen))
                    return chosen
                except Exception as error:  # the user's code; another choice may fit
                    fault = fault or next(iter(str(error).splitlines()), type(error).__name__)
        finally:
            for layer, mode in modes:
                layer.training = mode
        taken = ", ".join(f"{name} {shape}" for name, shape in self.signature.items())
        raise InvalidInput(f"The model does not take the inputs {taken}: {fault}.")


def _calling(module: nn.Module, names: list[str]) -> str:
    """How a module takes several inputs: by "name", as a "dictionary", or in "order"."""
    parameters = inspect.signature(module.forward).parameters.values()
    if all(name in {p.name for p in parameters} for name in names):
        return "name"
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in places if p.default is p.empty]
    several = any(p.kind is p.VAR_POSITIONAL for p in parameters) or len(places) >= len(names) > 1
    return "dictionary" if len(required) <= 1 and not several else "order"


def with_row_inputs(module: nn.Module, input_shape: object) -> nn.Module:
    """The module as one that takes rows of real numbers, whatever it takes itself."""
    if isinstance(input_shape, Mapping):
        return NamedInputs(module, input_shape)
    vocabulary = vocabulary_of(module)
    if vocabulary is None or isinstance(module, TokenIds):
        return module
    if next((p.dtype for p in module.parameters() if p.is_floating_point()), None) in (torch.float16, torch.bfloat16):
        module = module.float()  # half precision does not hold every token's number
    return TokenIds(module, vocabulary)


def shape_to_pass(module: nn.Module) -> str:
    """How to tell the shape of an input, for a message: by name where the module must be given several."""
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):  # a module of compiled code
        parameters = {}.values()
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [one.name for one in parameters if one.default is one.empty and one.kind in places]
    if len(names) < 2:
        return "input_shape=(...) as one example has it"
    wanted = ", ".join(f'"{name}": (3,)' for name in names)
    return f"input_shape={{{wanted}}}, with the shape of each"

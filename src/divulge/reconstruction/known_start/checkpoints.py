"""Weights, adapters and updates over a start: the model that they make of it.

What is released need not be a whole model: a file of weights, the weights of an adapter alone, or what a client sends
in federated learning, which is a change or a gradient. A gradient is the difference of one step, up to its sign and
size, which the attack does not need.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

from torch import Tensor, nn

from divulge.core.errors import InvalidInput, UnsupportedModel, WrongShape

ADAPTER = "lora_"
"""What peft puts into the names of an adapter's parameters."""


def applied(start: nn.Module, tensors: Mapping[str, Tensor], *, update: bool = False) -> nn.Module:
    """The start with these tensors in the place of its own, or added to its own if they are an ``update``.

    Tensors that are not given stay as they are. With an update the model is in double precision, because the sum would
    be rounded otherwise.

    Parameters
    ----------
    start : nn.Module
        The model before training, in whose names the tensors are given.
    tensors : mapping of str to Tensor
        Weights, or changes of weights.
    update : bool, default False
        Whether they are changes.

    Returns
    -------
    nn.Module
        In evaluation mode.

    Raises
    ------
    InvalidInput
        A tensor belongs to no parameter of the start, or there are none.
    UnsupportedModel
        They are an adapter that the start does not hold.
    """
    if not isinstance(start, nn.Module):
        raise UnsupportedModel(f"A known start needs torch modules; got {type(start).__name__}.")
    model = copy.deepcopy(start)
    model = model.double() if update else model
    held = model.state_dict()
    _check_names(held, tensors)
    for name, tensor in tensors.items():
        if tensor.shape != held[name].shape:
            raise WrongShape(
                f"{name!r} has shape {tuple(tensor.shape)} in the file and {tuple(held[name].shape)} in the start."
            )
        value = tensor.to(held[name])
        held[name].copy_(held[name] + value if update else value)
    return model.eval()


def _check_names(held: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    odd = sorted(set(tensors) - set(held))
    if not tensors:
        raise InvalidInput("The file holds no tensors.")
    if odd and all(ADAPTER in name for name in tensors):
        raise UnsupportedModel(
            f"The file holds an adapter ({odd[0]!r}), and the start holds none: the adapter began at random numbers "
            "that the start does not tell. Its first matrix gives its inputs away to whoever has them: give a start "
            "that holds the adapter as it was before training."
        )
    if odd:
        raise InvalidInput(f"The start has no parameter {odd[0]!r}, which the file holds.")

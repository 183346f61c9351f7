"""The shape of one input of a torch module, as far as the module states it."""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from divulge.core.errors import UnsupportedModel
from divulge.oracles.arguments import checked_shape

_SEQUENCES = (nn.RNNBase, nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.Transformer)
_PICTURES = {nn.Conv1d: "(channels, length)", nn.Conv2d: "(channels, height, width)",
             nn.Conv3d: "(channels, depth, height, width)"}  # fmt: skip


def candidate_shapes(module: nn.Module) -> list[tuple[int, ...]]:
    """Shapes that one input may have, the most likely first.

    That is the module's own ``input_shape``; otherwise what its linear and normalising layers take, in the order in
    which they are declared, since the order in which they run is not known.
    """
    declared = getattr(module, "input_shape", None)
    if declared is not None:
        return [checked_shape(declared)]
    shapes: dict[tuple[int, ...], None] = {}
    for layer in module.modules():
        if not shapes:
            _refuse_open_shape(layer)
        taken = _taken_by(layer)
        if taken is not None:
            shapes.setdefault(checked_shape(taken))
    if not shapes:
        raise UnsupportedModel("The model has no linear layer that tells its input width; pass input_shape=(...).")
    return list(shapes)[:8]


def _taken_by(layer: nn.Module) -> tuple[int, ...] | None:
    if isinstance(layer, nn.Linear):
        return (layer.in_features,)
    if isinstance(layer, _BatchNorm):
        return (layer.num_features,)
    if isinstance(layer, nn.Unflatten) and layer.dim == 1:
        return (math.prod(layer.unflattened_size),)
    if isinstance(layer, nn.LayerNorm):
        return tuple(layer.normalized_shape)
    weight = getattr(layer, "weight", None)
    if getattr(layer, "original_name", None) == "Linear" and isinstance(weight, Tensor):  # a scripted layer
        return (int(weight.shape[1]),)
    return None


def _refuse_open_shape(layer: nn.Module) -> None:
    """Refuse to guess where the first layer leaves the size of an input open."""
    name = getattr(layer, "original_name", type(layer).__name__)
    for kind, form in _PICTURES.items():
        if isinstance(layer, kind) or name == kind.__name__:
            raise UnsupportedModel(
                f"A convolutional model does not say how large its pictures are; pass input_shape={form}."
            )
    if isinstance(layer, _SEQUENCES) or name in ("LSTM", "GRU", "RNN", "MultiheadAttention"):
        raise UnsupportedModel(
            f"A model that starts with {name} does not say how long its sequences are; pass "
            "input_shape=(steps, features)."
        )
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag) or name in ("Embedding", "EmbeddingBag"):
        raise UnsupportedModel(
            "The model takes whole numbers (it starts with an embedding) and does not say how many; pass the number "
            "that one input has, such as input_shape=(16,)."
        )

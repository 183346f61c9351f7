"""Tensors of a network or a file of weights whose rows are training rows: a memory of examples, or prototypes.

Weights are no records by themselves, so this needs the training inputs to compare with.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from divulge.contents.comparison import TrainingRows, found_by_comparing
from divulge.contents.result import Holding
from divulge.core.errors import InvalidInput


def holdings(tensors: Mapping[str, Tensor], known: TrainingRows | None) -> list[Holding]:
    """The tensors of which rows are training rows; none without training inputs."""
    if known is None:
        return []
    arrays = {
        name: t.detach().cpu().to(torch.float64).numpy()
        for name, t in tensors.items()
        if isinstance(t, Tensor) and t.ndim > 1 and t.numel() // max(1, len(t)) == known.width and not t.is_complex()
    }
    found = [found_by_comparing(name, array, known) for name, array in arrays.items()]
    return [holding for holding in found if holding is not None]


def in_file(path: Path) -> dict[str, Any]:
    """The tensors of a safetensors file."""
    from safetensors.torch import load_file

    try:
        return dict(load_file(path))
    except Exception as error:  # a damaged file can fail in many ways; all mean the same to the user
        raise InvalidInput(f"{path} does not hold readable safetensors: {error}.") from error

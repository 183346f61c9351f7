"""Where the single output of a torch module decides: at zero as a logit, or at one half as a share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from divulge.oracles.local.plain_layers import last_layer

_SIZES, _ROWS_A_SIZE = (1.0, 1e3, 1e9), 4
"""Lengths of the rows that show whether an output stays between 0 and 1."""


def threshold_of(
    module: nn.Module, tensor_of: Callable[[Any], Tensor], shape: tuple[int, ...], answer: Tensor
) -> float:  # fmt: skip
    """One half for a share, which stays in [0, 1] however large a row is; otherwise 0.

    ``answer`` is what the module gives for rows of zeros, ``tensor_of`` takes the tensor out of any answer.
    """
    last = last_layer(module)
    if isinstance(last, nn.Sigmoid):
        return 0.5
    if answer[0].numel() != 1 or isinstance(last, nn.Linear) or not 0 <= float(answer.reshape(-1)[0]) <= 1:
        return 0.0
    draw = torch.Generator().manual_seed(0)
    sizes = torch.tensor(_SIZES).repeat(_ROWS_A_SIZE).reshape(-1, *[1] * len(shape))
    rows = (sizes * torch.randn(len(sizes), *shape, generator=draw)).to(answer)
    with torch.no_grad():
        try:
            shown = tensor_of(module(rows))
        except Exception:  # of the module's own code: it says nothing of these rows
            return 0.0
    return 0.5 if bool(((shown >= 0) & (shown <= 1)).all()) else 0.0

"""Several networks as one: the mean of their logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Ensemble(nn.Module):
    """The mean of its members' outputs. It can be saved if all members can."""

    def __init__(self, members: Sequence[nn.Module], input_shape: Sequence[int]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.input_shape = tuple(input_shape)
        specs = [getattr(member, "spec", None) for member in members]
        self.spec = {"architecture": "ensemble", "members": specs, "shape": list(input_shape)} if all(specs) else None

    def forward(self, X: Tensor) -> Tensor:
        return torch.stack([member(X) for member in self.members]).mean(dim=0)

"""The finish of a copy from answers in float32 or of few decimals: all its weights fitted to many answers at once.

Kinks tell each weight to a multiple of the error of single answers. A least-squares fit to more answers than there are
weights averages these errors. Rows that take no part in the fit say whether it has helped.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from divulge.extraction.attack_space import AttackSpace
from divulge.extraction.layers.deep_copy import DeepCopy
from divulge.extraction.layers.polish import parameters, polish
from divulge.extraction.verification import row_size

EQUATIONS_A_PARAMETER = 6
"""Answers that each weight is fitted to."""


def fitted(space: AttackSpace, copy: DeepCopy, X: Tensor, truth: Tensor, generator: torch.Generator) -> DeepCopy:
    """The copy with its weights fitted to answers [n, k] at some of the rows [n, d], if the other rows agree better."""
    count = min(len(X) // 2, EQUATIONS_A_PARAMETER * parameters(copy.stack) // truth.shape[1])
    pick = torch.randperm(len(X), generator=generator)
    rows, others = pick[:count], pick[count:]
    better = replace(copy, stack=polish(copy.stack, X[rows].numpy(), truth[rows].numpy()))
    off = [space.differences(truth[others], one.value(X[others])) / row_size(X[others]) for one in (copy, better)]
    return better if float(off[1].square().mean()) < float(off[0].square().mean()) else copy

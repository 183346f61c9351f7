"""Answers whose squares leave the range of float64 are refused in a sentence, and never called exact."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import divulge
from divulge.core.errors import UnsupportedModel

ATTACKS = [
    ("gradient", lambda oracle: divulge.extraction.from_gradients(oracle)),
    ("value", lambda oracle: divulge.extraction.from_values(oracle)),
    ("value", lambda oracle: divulge.extraction.worst_case(oracle, epsilon=1e-2)),
]


@pytest.mark.parametrize("factor", [1e200, 1e-200])
@pytest.mark.parametrize(("access", "attack"), ATTACKS, ids=["gradients", "values", "worst case"])
def test_answers_that_cannot_be_squared_are_refused(factor, access, attack):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 1)).double()
    model[2].weight.data *= factor
    model[2].bias.data *= factor
    with pytest.raises(UnsupportedModel, match="Multiply its outputs"):
        attack(divulge.oracle(model, access=access))

"""Answers whose squares leave the range of float64 are refused in a sentence, and never called exact."""

from __future__ import annotations

import pytest
import torch
from experiments.random_functions import outcome
from torch import nn

import divulge
from divulge.core.errors import UnsupportedModel

ATTACKS = [
    ("gradient", lambda oracle: divulge.extraction.from_gradients(oracle)),
    ("value", lambda oracle: divulge.extraction.from_values(oracle)),
    ("value", lambda oracle: divulge.extraction.worst_case(oracle, epsilon=1e-2)),
    ("gradient", lambda oracle: divulge.extraction.deep_from_gradients(oracle)),
    ("gradient", lambda oracle: divulge.extraction.softmax_regression(oracle)),
]


@pytest.mark.parametrize("factor", [1e200, 1e-200])
@pytest.mark.parametrize(("access", "attack"), ATTACKS, ids=["gradients", "values", "worst case", "deep", "softmax"])
def test_answers_that_cannot_be_squared_are_refused(factor, access, attack):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 1)).double()
    model[2].weight.data *= factor
    model[2].bias.data *= factor
    with pytest.raises(UnsupportedModel, match="Multiply its outputs"):
        attack(divulge.oracle(model, access=access))


@pytest.mark.parametrize(("kind", "seed"), [("huge", 5), ("overflowing", 4), ("overflowing", 14)])
def test_answers_at_the_edge_of_double_precision_are_refused_and_not_taken_for_log_probabilities(kind, seed):
    # all answers of the first are about -1e199, whose exponentials sum to 0; gradients of the others overflow float32
    assert outcome(seed, "from_gradients", kind=kind, limit=60.0).state == "refused"

"""Where a single output decides: at one half if it is a share, by its layers or by what it answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import divulge
from divulge.auditing.opening import open_target
from divulge.auditing.options import AuditOptions
from divulge.oracles import Access


class Functional(nn.Module):
    """A sigmoid in the forward pass, as many networks have it."""

    def __init__(self, last: str) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(4, 1), last

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        out = self.layer(X)
        return {"sigmoid": torch.sigmoid, "tanh": torch.tanh, "relu": torch.relu, "none": lambda one: one}[self.last](
            out
        )


@pytest.mark.parametrize(("last", "threshold"), [("sigmoid", 0.5), ("tanh", 0.0), ("relu", 0.0), ("none", 0.0)])
def test_a_sigmoid_in_the_forward_pass_decides_at_one_half(last: str, threshold: float) -> None:
    model = Functional(last)
    oracle = divulge.oracle(model, access="label")
    X = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    assert oracle.threshold == threshold
    assert torch.equal(oracle.label(X), (model(X)[:, 0] > threshold).long())


@pytest.mark.parametrize(
    ("guard", "access"), [("", "value"), ("round:3", "value"), ("", "label"), ("label", None), ("label", "label")]
)
def test_an_audit_decides_at_one_half_where_a_function_answers_shares(guard: str, access: Access | None) -> None:
    weights = np.array([1.0, -2.0, 0.5])
    rows = np.random.default_rng(0).normal(size=(300, 3))

    def share(X: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-X @ weights))

    labels = (share(rows) > 0.5).astype(int)
    target = open_target(share, (rows, labels), AuditOptions(guard=guard, access=access))
    assert target.oracle("label").label(rows).tolist() == labels.tolist()
    logits = open_target(lambda X: X @ weights, (rows, labels), AuditOptions(guard=guard, access=access))
    assert logits.oracle("label").label(rows).tolist() == labels.tolist()

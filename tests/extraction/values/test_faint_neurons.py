"""Neurons that errors of a fit have made."""

from __future__ import annotations

import torch

from divulge.extraction.relu_network import NetworkEstimate


def test_faint_neurons_are_dropped_with_half_of_their_affine_function_kept_and_others_stay() -> None:
    """The second neuron is faint. The third is as faint in its weights, and switches a million lengths away."""
    A = torch.eye(3).double()
    b = torch.tensor([0.3, -0.2, 1e6]).double()
    W = torch.tensor([[1.0, 1e-12, 1e-12]]).double()
    whole = NetworkEstimate(A, b, W, torch.zeros(1, 3).double(), torch.zeros(1).double(), torch.zeros(3).double())
    fewer = whole.without_faint(1e-10)
    assert fewer.width == 2
    assert torch.equal(fewer.b, b[[0, 2]])
    X = torch.randn(500, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).numpy()
    assert abs(whole(X) - fewer(X)).max() < 1e-11
    assert whole.without_faint(0.0).width == 3

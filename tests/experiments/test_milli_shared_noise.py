"""A student averaged over known points: its values are its own, its gradients those of the mean."""

from __future__ import annotations

import pytest
import torch
from experiments.papers.milli_shared_noise import Averaged, SharedNoise, points

import divulge
from divulge import models


def _network(seed: int) -> torch.nn.Module:
    return models.build("one-hidden", shape=(6,), outputs=3, width=8, seed=seed, dtype=torch.float64).eval()


def test_the_target_shows_its_values_and_the_mean_of_its_gradients() -> None:
    model, noise = _network(0), points(4, 6, 2.0, seed=1)
    X = torch.randn(5, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    plain = divulge.oracle(model, access="gradient")
    values, gradients = SharedNoise(divulge.oracle(model, access="gradient"), noise).gradient(X)
    assert torch.equal(values, plain.value(X))
    expected = torch.stack([plain.gradient(X + z)[1] for z in noise]).mean(dim=0)
    assert torch.allclose(gradients, expected)
    assert not torch.allclose(gradients, plain.gradient(X)[1])


def test_a_student_with_the_target_s_weights_matches_it() -> None:
    model, noise = _network(0), points(4, 6, 2.0, seed=1)
    X = torch.randn(5, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    values, gradients = SharedNoise(divulge.oracle(model, access="gradient"), noise).gradient(X)
    student = Averaged(model, noise).double()
    rows = X.clone().requires_grad_()
    out = student(rows)
    (slope,) = torch.autograd.grad(out[:, 0].sum(), rows)
    assert torch.allclose(out, values, atol=1e-6)
    assert torch.allclose(slope, gradients[:, 0], atol=1e-6)


def test_values_pull_at_the_student_itself_and_not_at_its_mean() -> None:
    student = Averaged(_network(3), points(4, 6, 2.0, seed=1)).double()
    X = torch.randn(5, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    weights = list(student.inner.parameters())
    through = torch.autograd.grad(student(X.clone().requires_grad_()).square().sum(), weights)
    direct = torch.autograd.grad(student.inner(X).square().sum(), weights)
    for ours, theirs in zip(through, direct, strict=True):
        assert ours.numpy() == pytest.approx(theirs.numpy(), abs=1e-9)

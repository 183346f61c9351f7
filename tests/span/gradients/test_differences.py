"""Differences of values are gradients, with the error that their own test says they have."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from divulge.oracles import TorchOracle
from divulge.span.gradients.differences import calibrate, check_directions, gradient_from, stencil_rows, uncalibrated

from ..networks import network

EPS = torch.finfo(torch.float64).eps


def true_gradient(model: torch.nn.Module, x: Tensor) -> Tensor:
    return torch.autograd.functional.jacobian(lambda z: model(z[None])[0], x)


@pytest.mark.parametrize(("activation", "scheme"), [("relu", "forward"), ("tanh", "central"), ("softplus", "central")])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_calibrated_stencil_is_as_good_as_it_says(activation: str, scheme: str, seed: int) -> None:
    model = network([30, 8, 12, 3], seed, activation=activation)
    oracle = TorchOracle(model, access="value")
    generator = torch.Generator().manual_seed(seed)
    stencil = calibrate(oracle.value, 30, eps=EPS, scale=1.0, generator=generator)
    assert stencil.scheme == scheme
    assert stencil.relative_error < 1e-8
    point, checks = torch.randn(30, generator=generator, dtype=torch.float64), check_directions(30, seed)
    rows = stencil_rows(point, stencil, checks)
    assert len(rows) == stencil.rows_per_gradient(30)
    estimate = gradient_from(oracle.value(rows), stencil, checks)
    error = (estimate.gradient - true_gradient(model, point)).abs().max()
    assert float(error) < 20 * stencil.error
    assert estimate.mismatch < 8 * stencil.error
    assert torch.allclose(estimate.value, model(point[None])[0].detach(), atol=1e-8)


def test_a_kink_inside_the_stencil_shows_in_the_mismatch() -> None:
    def bent(rows: Tensor) -> Tensor:  # kink at half a step along the first coordinate
        return (torch.relu(rows[:, :1] - 5e-5) + rows.sum(dim=1, keepdim=True)).double()

    stencil = calibrate(lambda rows: rows.sum(dim=1, keepdim=True), 10, eps=EPS, scale=1.0,
                        generator=torch.Generator().manual_seed(0))  # fmt: skip
    stencil = type(stencil)("forward", 1e-4, stencil.error)
    checks, point = check_directions(10, 3), torch.zeros(10, dtype=torch.float64)
    clean = gradient_from(stencil_rows(point, stencil, checks).sum(dim=1, keepdim=True), stencil, checks)
    kinked = gradient_from(bent(stencil_rows(point, stencil, checks)), stencil, checks)
    assert clean.mismatch < 1e-10
    assert kinked.mismatch > 1e-3


def test_noise_is_measured() -> None:
    generator = torch.Generator().manual_seed(1)

    def noisy(rows: Tensor) -> Tensor:
        noise = torch.randn(len(rows), 1, generator=generator, dtype=torch.float64)
        return rows.sum(dim=1, keepdim=True) + 1e-3 * noise

    stencil = calibrate(noisy, 12, eps=EPS, scale=1.0, generator=torch.Generator().manual_seed(2))
    assert stencil.step >= 0.1
    assert 1e-4 < stencil.error < 2e-2


def test_the_stencil_fixed_in_advance_balances_rounding_and_curvature() -> None:
    stencil = uncalibrated(EPS, 2.0)
    assert stencil.scheme == "central"
    assert stencil.step == pytest.approx(2 * EPS ** (1 / 3))
    assert stencil.rows_per_gradient(10) == len(
        stencil_rows(torch.zeros(10, dtype=torch.float64), stencil, check_directions(10, 0))
    )

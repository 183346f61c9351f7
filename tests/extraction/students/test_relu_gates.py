"""Gates change nothing but the derivative of a gradient, and that by the stated rule; the losses are what they say."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import divulge
from divulge.extraction import by_training
from divulge.extraction.students.answers import logit_answers
from divulge.extraction.students.matching_loss import normalised
from divulge.extraction.students.relu_gates import Gates
from divulge.extraction.students.student import picture_shape
from divulge.oracles.outputs import outputs_shown

SEEDS = range(3)


def picture_network(seed: int) -> nn.Module:
    return divulge.models.build(
        "two-conv", shape=(1, 9, 10), outputs=3, filters=[3, 4], dense=6, seed=seed, dtype=torch.float64
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_values_and_gradients_are_those_of_the_hard_network(seed: int) -> None:
    """Also where windows do not divide the picture evenly (9 x 10)."""
    network = picture_network(seed)
    X = torch.randn(5, 1, 9, 10, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()
    plain = network(X)
    with Gates(3.0):
        gated = network(X)
    torch.testing.assert_close(gated, plain)
    wanted = torch.autograd.grad(plain.square().sum(), X)[0]
    torch.testing.assert_close(torch.autograd.grad(gated.square().sum(), X, create_graph=True)[0], wanted)


@pytest.mark.parametrize("sharpness", [0.5, 3.0])
def test_the_derivative_of_a_gradient_sees_the_smooth_gate(sharpness: float) -> None:
    a = torch.linspace(-2, 2, 9, dtype=torch.float64).requires_grad_()
    with Gates(sharpness):
        (slope,) = torch.autograd.grad(functional.relu(a).sum(), a, create_graph=True)
    assert torch.equal(slope, (a > 0).double())
    (curve,) = torch.autograd.grad(slope.sum(), a)
    soft = torch.sigmoid(sharpness * a)
    torch.testing.assert_close(curve, (sharpness * soft * (1 - soft)).detach())


def test_every_way_to_write_a_relu_is_gated_and_odd_pools_stay_as_they_are() -> None:
    a = torch.randn(2, 1, 6, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()
    for relu in (torch.relu, functional.relu, nn.ReLU(), Tensor.relu):
        with Gates(1.0):
            (slope,) = torch.autograd.grad(relu(a).sum(), a, create_graph=True)
        assert slope.requires_grad
    for options in ({"stride": 1}, {"padding": 1}, {"ceil_mode": True}, {"dilation": 2}):
        plain = functional.max_pool2d(a, 2, **options)
        with Gates(1.0):
            assert torch.equal(functional.max_pool2d(a, 2, **options), plain)
    with Gates(1.0):
        assert functional.max_pool2d(a, (2, 3)).shape == (2, 1, 3, 2)


@pytest.mark.parametrize("output", ["logits", "probabilities", "log-probabilities"])
@pytest.mark.parametrize("classes", ["all", "predicted"])
def test_the_target_itself_has_no_loss_whatever_it_shows(output: str, classes: str) -> None:
    network = divulge.models.build("one-hidden", shape=(7,), outputs=4, width=9, seed=2, dtype=torch.float64)
    X = torch.randn(12, 7, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    values, gradients = divulge.oracle(network, access="gradient", output=output).gradient(X)
    assert outputs_shown(values) == output
    answers = logit_answers(X, values, gradients, outputs=output, classes=classes)  # type: ignore[arg-type]
    for combinations in (None, 2):
        loss = normalised(answers, gradients=1.0, values=1.0, combinations=combinations, sharpness=1.0)
        assert float(loss(network, answers, torch.Generator().manual_seed(0)).detach()) < 1e-20
    other = divulge.models.build("one-hidden", shape=(7,), outputs=4, width=9, seed=5, dtype=torch.float64)
    assert float(loss(other, answers, torch.Generator().manual_seed(0)).detach()) > 0.1


def test_random_combinations_estimate_the_whole_loss() -> None:
    target, student = (
        divulge.models.build("one-hidden", shape=(7,), outputs=4, width=9, seed=seed, dtype=torch.float64)
        for seed in (0, 1)
    )
    X = torch.randn(12, 7, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    answers = logit_answers(X, *divulge.oracle(target, access="gradient").gradient(X), outputs="logits")
    whole, some = (
        normalised(answers, gradients=1.0, values=0.0, combinations=count, sharpness=1.0) for count in (None, 1)
    )
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack([some(student, answers, generator).detach() for _ in range(400)])
    spread = float(draws.std()) / 20
    assert abs(float(draws.mean() - whole(student, answers, generator))) < 4 * spread


@pytest.mark.slow
def test_a_residual_network_with_batch_norm_can_be_a_student() -> None:
    target = divulge.models.build("one-hidden", shape=(64,), outputs=3, width=8, seed=0)
    oracle = divulge.oracle(target, access="gradient")
    assert picture_shape(oracle) == (1, 8, 8)
    stolen = by_training(oracle, {"architecture": "resnet18", "width": 1 / 32}, "gaussian", queries=6, steps=3)
    assert stolen.queries == 6
    assert stolen.check(oracle, 4) < 1e3

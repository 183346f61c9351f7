"""Steps are those of torch.optim, and damped least squares finds what scipy finds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import least_squares

from divulge.core.optim import AnnealedAdam, Descent, levenberg_marquardt


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("options", "theirs"),
    [
        ({"optimiser": "sgd"}, lambda x: torch.optim.SGD(x, lr=0.1)),
        ({"optimiser": "sgd", "momentum": 0.9}, lambda x: torch.optim.SGD(x, lr=0.1, momentum=0.9)),
        ({"optimiser": "adam", "weight_decay": 0.01}, lambda x: torch.optim.Adam(x, lr=0.1, weight_decay=0.01)),
        ({"optimiser": "adamw", "weight_decay": 0.01}, lambda x: torch.optim.AdamW(x, lr=0.1, weight_decay=0.01)),
        ({"optimiser": "rmsprop", "momentum": 0.9}, lambda x: torch.optim.RMSprop(x, lr=0.1, momentum=0.9)),
        (
            {"optimiser": "sgd", "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
            lambda x: torch.optim.SGD(x, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
        ),
    ],
    ids=["sgd", "momentum", "adam", "adamw", "rmsprop", "nesterov"],
)
def test_steps_are_those_of_torch_to_the_last_digit(options, theirs, dtype):
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(5, 3, generator=generator, dtype=dtype)
    ours, reference = start.clone().requires_grad_(), start.clone().requires_grad_()
    descent, optimiser = Descent([ours], learning_rate=0.1, **options), theirs([reference])
    for step in range(20):
        rate = 0.1 * 0.5 * (1 + math.cos(math.pi * step / 20))
        descent.learning_rate = optimiser.param_groups[0]["lr"] = rate
        for x, clear in ((ours, descent.clear), (reference, optimiser.zero_grad)):
            clear()
            (x.sin() * x.exp()).sum().backward()
        descent.step()
        optimiser.step()
    assert torch.equal(ours, reference)


def test_a_tensor_without_a_gradient_stays_where_it_is():
    x = torch.ones(2, requires_grad=True)
    Descent([x], optimiser="adam", learning_rate=1.0).step()
    assert torch.equal(x, torch.ones(2))


def test_annealed_adam_is_adam_with_a_shorter_memory():
    ours, reference = torch.ones(4, dtype=torch.float64), torch.ones(4, dtype=torch.float64)
    mine = AnnealedAdam([(ours.requires_grad_(), 0.1)])
    theirs = torch.optim.Adam([reference.requires_grad_()], lr=0.1, betas=(0.9, 0.99))
    weights = torch.arange(1.0, 5.0, dtype=torch.float64)
    for _ in range(10):
        for x in (ours, reference):
            (weights * x**4).sum().backward()
        mine.step(1.0)
        theirs.step()
        theirs.zero_grad()
    assert ours.grad is None
    assert torch.allclose(ours, reference, rtol=1e-12)


def _curve(start, **limits):
    t = np.linspace(0, 3, 30)
    y = 2 * np.exp(-1.3 * t) + 0.01 * np.sin(50 * t)

    def evaluate(p):
        residual = y - p[0] * np.exp(-p[1] * t)
        return float(residual @ residual), residual

    def propose(p, residual, damping):
        J = np.stack([np.exp(-p[1] * t), -p[0] * t * np.exp(-p[1] * t)], axis=1)
        normal = J.T @ J
        return p + np.linalg.solve(normal + damping * np.diag(np.diag(normal)), J.T @ residual)

    fit = levenberg_marquardt(
        np.array(start), evaluate, propose, damping=1e-3, eased=lambda d: d / 10, raised=lambda d: d * 10, **limits
    )
    reference = least_squares(lambda p: y - p[0] * np.exp(-p[1] * t), start, method="lm")
    return fit, reference


@pytest.mark.parametrize("start", [(1.0, 1.0), (5.0, 0.1), (0.1, 3.0)])
def test_the_fit_is_that_of_scipy(start):
    fit, reference = _curve(start, proposals=100, settled=1e-14)
    assert fit.point == pytest.approx(reference.x, rel=1e-5)
    assert fit.cost <= fit.start_cost
    assert fit.cost == pytest.approx(2 * reference.cost, rel=1e-8)


def test_limits_end_the_search():
    assert _curve((5.0, 0.1), steps=2)[0].steps == 2
    assert _curve((5.0, 0.1), proposals=0)[0].steps == 0
    never = levenberg_marquardt(
        3.0, lambda x: (abs(x), None), lambda x, _, damping: x + damping, damping=1.0, eased=lambda d: d,
        raised=lambda d: 2 * d, tries=4,
    )  # fmt: skip
    assert (never.point, never.steps) == (3.0, 0)
    asked = []

    def no_step(x, _, damping):
        asked.append(damping)

    levenberg_marquardt(3.0, lambda x: (x, None), no_step, damping=1.0, eased=lambda d: d, raised=lambda d: 10 * d,
                        most_damping=500.0)  # fmt: skip
    assert asked == [1.0, 10.0, 100.0, 1000.0]


def test_a_cost_that_is_not_finite_is_never_taken():
    fit = levenberg_marquardt(1.0, lambda x: (math.nan if x > 1 else x, None), lambda x, _, damping: x + 1, damping=1.0,
                              eased=lambda d: d, raised=lambda d: d, proposals=3)  # fmt: skip
    assert fit.point == 1.0

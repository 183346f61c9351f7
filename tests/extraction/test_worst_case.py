"""Worst-case learning: a small mean square error on networks that exact extraction was not made for."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import divulge
from divulge.core.errors import BudgetExhausted, InvalidInput
from divulge.extraction import worst_case
from divulge.extraction.printed.chen_worst_case import (
    Printed,
    bounded_least_squares,
    get_bias,
    get_gradient,
    get_neurons,
)
from divulge.extraction.worst_case import grid_for
from divulge.models import MLP, ReluNetwork


def network(kind: str, inputs: int, width: int, seed: int, size: float = 0.0) -> ReluNetwork:
    rng = np.random.default_rng(seed)
    s = rng.choice([-1.0, 1.0], size=width)
    if kind == "random":
        W, b = rng.normal(size=(width, inputs)) / np.sqrt(inputs), 0.5 * rng.normal(size=width)
    elif kind == "clusters":  # neurons within ``size`` of few centres, of either sign and facing either way
        centres = width // 5
        owner, facing = rng.integers(centres, size=width), rng.choice([-1.0, 1.0], size=width)
        W = (rng.normal(size=(centres, inputs))[owner] + size * rng.normal(size=(width, inputs))) / np.sqrt(inputs)
        b = 0.5 * rng.normal(size=centres)[owner] + size * rng.normal(size=width)
        W, b = W * facing[:, None], b * facing
    else:  # bumps: zero outside slabs of width ``size``
        n = width // 3
        a = rng.normal(size=(n, inputs))
        a /= np.linalg.norm(a, axis=1, keepdims=True)
        o = rng.normal(size=n)
        W, b = np.concatenate([a, a, 2 * a]), np.concatenate([-o, -o - size, -2 * o - size])
        s = np.concatenate([np.ones(2 * n), -np.ones(n)])
    return ReluNetwork(*(torch.from_numpy(part) for part in (W, b, s[None])))


def true_error(stolen, target, inputs: int) -> float:
    X = torch.randn(4000, inputs, generator=torch.Generator().manual_seed(77), dtype=torch.float64)
    with torch.no_grad():
        truth = target(X)
        return float(((stolen.model(X) - truth) ** 2).mean() / truth.var())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "size"), [("random", 0.0), ("clusters", 1e-2), ("clusters", 1e-4), ("clusters", 1e-6), ("bumps", 0.3)]
)
@pytest.mark.parametrize("seed", range(2))
def test_the_error_is_tiny_at_few_queries(kind, size, seed):
    target = network(kind, 10, 20, seed, size)
    oracle = divulge.oracle(target, access="value")
    stolen = worst_case(oracle, epsilon=1e-3, seed=seed)
    assert true_error(stolen, target, 10) <= 1e-8
    assert stolen.relative_error <= 1e-8
    assert stolen.queries <= 50 * 20 * 10
    assert stolen.interval[0] <= stolen.squared_error <= stolen.interval[1]
    assert stolen.as_dict()["relative_error"] == stolen.relative_error


@pytest.mark.slow
def test_clusters_become_few_neurons():
    stolen = worst_case(divulge.oracle(network("clusters", 20, 50, 1, 1e-6), access="value"), seed=1)
    assert stolen.width < 40


def test_random_networks_come_out_exact():
    stolen = worst_case(divulge.oracle(network("random", 20, 30, 3), access="value"), seed=0)
    assert stolen.exact
    assert stolen.reason == ""


def test_a_finer_epsilon_looks_more_closely():
    assert grid_for(1e-2) <= grid_for(1e-5) < grid_for(1e-8)
    target = network("bumps", 10, 9, 0, 0.1)
    stolen = worst_case(divulge.oracle(target, access="value"), epsilon=1e-6, seed=0)
    assert true_error(stolen, target, 10) <= 1e-6


def test_a_smooth_function_is_not_taken_for_a_relu_network():
    torch.manual_seed(0)
    stolen = worst_case(divulge.oracle(MLP([8, 6, 1], activation="tanh").double(), access="value"), seed=0)
    assert not stolen.exact
    assert "not a ReLU network" in stolen.reason


def test_a_budget_that_ends_leaves_something():
    with pytest.raises(BudgetExhausted) as caught:
        worst_case(divulge.oracle(network("random", 20, 30, 3), access="value", budget=700), seed=0)
    assert caught.value.partial is not None


def test_bad_parameters_are_said():
    oracle = divulge.oracle(network("random", 5, 3, 0), access="value")
    for options in (
        {"epsilon": 0.0},
        {"epsilon": 2.0},
        {"method": "x"},
        {"checks": 3},
        {"grid": 1},
        {"method": "paper"},
    ):
        with pytest.raises(InvalidInput):
            worst_case(oracle, **options)


# -- as printed -------------------------------------------------------------------------------------------------------


def asker(target: ReluNetwork):
    def ask(rows):
        with torch.no_grad():
            return target(torch.from_numpy(rows)).numpy()

    return ask


def test_get_gradient_and_get_bias_tell_the_affine_piece():
    target = network("random", 6, 5, 1)
    ask, rng = asker(target), np.random.default_rng(0)
    x0, v = rng.normal(size=6), rng.normal(size=6)
    A, b, W = (part.detach().numpy() for part in (target.A, target.b, target.W))
    on = A @ x0 + b > 0
    gradient = get_gradient(ask, x0[None], 1e-6, rng)[0][0]
    np.testing.assert_allclose(gradient, W[:, on] @ A[on], atol=1e-8)
    intercept = get_bias(ask, x0, v, np.array([-1e-6]), np.array([1e-6]))[0]
    np.testing.assert_allclose(intercept, ask(x0[None])[0], atol=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_get_neurons_lists_every_neuron(seed):
    target = network("random", 6, 4, 2)
    w, b, pieces = get_neurons(asker(target), 6, Printed(4, 0.1, 300.0, 10_000), np.random.default_rng(seed))
    A, c = target.A.detach().numpy(), target.b.detach().numpy()
    for row, bias in zip(A, c, strict=True):
        wanted = np.append(row, -bias)  # the paper's sigma(<w, x> - b)
        assert np.linalg.norm(np.column_stack([w, b]) - wanted, axis=1).min() < 1e-4
    assert 5 <= pieces <= 9  # the linear pieces, and the intervals that hold a kink


def test_the_filter_of_equation_5_drops_neurons_that_are_too_large():
    target = network("random", 6, 4, 2)
    every, kept = (
        get_neurons(asker(target), 6, Printed(4, 0.1, 20.0, 4000, bounds), np.random.default_rng(0))[0]
        for bounds in (None, (0.3, 10.0))
    )
    assert 0 < len(kept) < len(every)
    assert np.linalg.norm(kept, axis=1).max() <= 4 * 0.3 < np.linalg.norm(every, axis=1).max()


def test_the_weights_of_equation_7_stay_within_their_norm():
    rng = np.random.default_rng(0)
    features, values = rng.normal(size=(60, 8)), rng.normal(size=(60, 2))
    free = np.linalg.lstsq(features, values, rcond=None)[0]
    np.testing.assert_allclose(bounded_least_squares(features, values, np.inf), free, atol=1e-12)
    limit = 0.5 * np.linalg.norm(free, axis=0).min()
    held = bounded_least_squares(features, values, limit)
    np.testing.assert_allclose(np.linalg.norm(held, axis=0), limit, rtol=1e-6)
    # at the constrained minimum the gradient points along the weights
    gradient = features.T @ (features @ held - values)
    cosine = (gradient * held).sum(axis=0) / np.linalg.norm(gradient, axis=0) / np.linalg.norm(held, axis=0)
    np.testing.assert_allclose(cosine, -1, atol=1e-6)


@pytest.mark.slow
def test_the_printed_algorithm_learns_a_small_network():
    target = network("random", 6, 4, 2)
    options = {"method": "paper", "width": 4, "seed": 0}
    stolen = worst_case(divulge.oracle(target, access="value"), **options, bounds=(3.0, 3.0))
    assert stolen.method == "paper"
    assert true_error(stolen, target, 6) < 1e-10
    short = worst_case(divulge.oracle(target, access="value"), **options, tau=0.5, grid=60)
    assert true_error(short, target, 6) > 1e-4  # a line cut off so early misses neurons

"""Exact extraction from values: what it promises on random and trained networks, and how it says no."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import divulge
from divulge.core.errors import BudgetExhausted, InvalidInput, NonFiniteAnswer
from divulge.extraction import from_values, match_neurons
from divulge.models import MLP, ReluNetwork
from divulge.oracles.base import Oracle
from divulge.oracles.guards import Rounded

DOUBLE = torch.float64


class Answers(Oracle):
    """An oracle for a plain function of rows."""

    def __init__(self, function, inputs: int, outputs: int = 1, budget: int | None = None) -> None:
        super().__init__(input_dim=inputs, output_dim=outputs, budget=budget)
        self.function = function

    def _value(self, X: Tensor) -> Tensor:
        with torch.no_grad():
            return self.function(X)


def random_network(inputs: int, width: int, seed: int, *, outputs: int = 1, rank: int | None = None) -> ReluNetwork:
    g = torch.Generator().manual_seed(seed)
    A = torch.randn(width, inputs, generator=g, dtype=DOUBLE) / inputs**0.5
    if rank is not None:
        left = torch.randn(width, rank, generator=g, dtype=DOUBLE)
        A = left @ torch.randn(rank, inputs, generator=g, dtype=DOUBLE) / (rank * inputs) ** 0.5
    return ReluNetwork(
        A, 0.5 * torch.randn(width, generator=g, dtype=DOUBLE), torch.randn(outputs, width, generator=g, dtype=DOUBLE)
    )


def trained_on_digits(width: int, samples: int, start: float, seed: int) -> ReluNetwork:
    """Odd against even, from small weights to a wide margin: neurons condense to few directions."""
    X, y = load_digits(return_X_y=True)
    chosen = np.random.default_rng(seed).permutation(len(X))[:samples]
    rows = torch.tensor(X[chosen] / 16.0)
    rows = torch.cat([rows - rows.mean(dim=0), torch.ones(samples, 1, dtype=DOUBLE)], dim=1)
    sign = torch.tensor(2.0 * (y[chosen] % 2) - 1)
    g = torch.Generator().manual_seed(seed)
    W = torch.randn(width, 65, generator=g, dtype=DOUBLE) * start / 8
    v = torch.randn(width, generator=g, dtype=DOUBLE).sign() * W.norm(dim=1)
    for _ in range(3000):
        z = rows @ W.T
        margin = sign * (z.relu() @ v)
        if margin.min() > 12:
            break
        pull = torch.softmax(-margin, dim=0) * sign
        on = (z > 0).to(DOUBLE)
        step_W, step_v = (on * v * pull[:, None]).T @ rows, z.relu().T @ pull
        W, v = W + 0.05 * step_W, v + 0.05 * step_v
    return ReluNetwork(W[:, :64], W[:, 64], v[None])


@pytest.mark.parametrize("seed", range(4))
def test_recovers_random_networks_at_little_more_than_one_value_a_parameter(seed):
    oracle = divulge.oracle(random_network(100, 32, seed), access="value")
    stolen = from_values(oracle, seed=seed)
    assert stolen.exact
    assert stolen.width == 32
    assert stolen.verified_points >= 32
    assert stolen.smallest_gap is not None
    assert stolen.smallest_gap > 0
    assert stolen.queries < 1.2 * 33 * 101
    assert stolen.check(oracle, 500) < 2e-9 * stolen.scale


def test_every_neuron_is_the_targets_own():
    target = random_network(30, 12, 5)
    stolen = from_values(divulge.oracle(target, access="value"), seed=1)
    matched = match_neurons(stolen.model, target)
    assert matched.found() == 12


@pytest.mark.parametrize("seed", range(3))
def test_recovers_more_neurons_than_inputs(seed):
    oracle = divulge.oracle(random_network(10, 40, seed), access="value")
    stolen = from_values(oracle, seed=seed)
    assert stolen.exact
    assert stolen.width == 40


@pytest.mark.slow
@pytest.mark.parametrize("start", [0.1, 0.002])
def test_recovers_trained_networks_however_condensed(start):
    for seed in range(2):
        oracle = divulge.oracle(trained_on_digits(64, 10, start, seed), access="value")
        stolen = from_values(oracle, seed=seed)
        assert stolen.exact
        assert stolen.width == 64
        assert stolen.check(oracle, 200) < 1e-6 * stolen.scale


def test_several_outputs_share_their_kinks():
    oracle = divulge.oracle(random_network(40, 20, 3, outputs=5), access="value")
    stolen = from_values(oracle, seed=0)
    assert stolen.exact
    assert stolen.width == 20
    assert stolen.check(oracle, 200) < 1e-8 * stolen.scale


@pytest.mark.slow
def test_a_first_layer_of_low_rank_costs_less_without_being_told():
    oracle = divulge.oracle(random_network(200, 60, 1, rank=8), access="value")
    stolen = from_values(oracle, seed=0)
    assert stolen.exact
    assert stolen.facts["rank"] == 8
    assert stolen.queries < 0.5 * 61 * 201


def test_a_known_span_is_searched_alone():
    target = random_network(80, 12, 1, rank=4)
    rows = target.A.detach()[:4]
    oracle = divulge.oracle(target, access="value")
    stolen = from_values(oracle, seed=0, span=rows)
    assert stolen.exact
    assert stolen.queries < 600
    wrong = from_values(oracle, seed=0, span=torch.eye(80, dtype=DOUBLE)[:4])
    assert not wrong.exact
    for nonsense in ("all", torch.zeros(3, 7)):
        with pytest.raises(InvalidInput):
            from_values(oracle, span=nonsense)


def test_a_float32_network_comes_out_to_its_own_precision():
    for seed in range(2):
        oracle = divulge.oracle(random_network(30, 8, seed).float(), access="value")
        stolen = from_values(oracle, seed=seed)
        assert not stolen.exact
        assert "float32" in stolen.reason
        assert stolen.width == 8
        assert stolen.check(oracle, 200) < 1e-5 * stolen.scale


@pytest.mark.slow
@pytest.mark.parametrize("decimals", [6, 3])
def test_rounded_answers_are_noticed_and_the_achievable_precision_stated(decimals):
    for seed in range(3):
        target = random_network(20, 8, seed)
        stolen = from_values(Answers(lambda X, f=target: torch.round(f(X), decimals=decimals), 20), seed=seed)
        assert not stolen.exact
        assert f"rounded to multiples of {10.0**-decimals:g}" in stolen.reason
        if decimals == 6:
            assert stolen.width == 8
            assert stolen.worst_error < 1e-5 * stolen.scale


@pytest.mark.slow
def test_noisy_answers_are_noticed():
    target = random_network(20, 8, 3)
    g = torch.Generator().manual_seed(0)
    stolen = from_values(Answers(lambda X: target(X) + 1e-4 * torch.randn(len(X), 1, generator=g), 20), seed=0)
    assert not stolen.exact
    assert "differently each time" in stolen.reason


def test_constant_and_linear_functions_have_no_neurons():
    w = torch.linspace(-1, 1, 12, dtype=DOUBLE)[:, None]
    stolen = from_values(Answers(lambda X: X @ w + 2, 12), seed=0)
    assert stolen.exact
    assert stolen.width == 0
    for constant in (lambda X: 0 * X[:, :1] + 3, lambda X: 0 * X[:, :1]):
        stolen = from_values(Answers(constant, 12), seed=0)
        assert stolen.width == 0
        assert not stolen.exact
        assert "constant" in stolen.reason


@pytest.mark.parametrize("inputs", [1, 2])
def test_one_and_two_inputs(inputs):
    assert from_values(divulge.oracle(random_network(inputs, 6, 3), access="value"), seed=0).exact


@pytest.mark.slow
@pytest.mark.parametrize(
    ("activation", "word"), [("sigmoid", "sigmoid"), ("tanh", "tanh"), ("elu", "ELU"), ("softplus", "softplus")]
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_smooth_networks_are_named_not_mangled(activation, word, dtype):
    torch.manual_seed(1)
    stolen = from_values(divulge.oracle(MLP([20, 16, 1], activation=activation).to(dtype), access="value"), seed=0)
    assert not stolen.exact
    assert "not piecewise linear" in stolen.reason
    assert word in stolen.reason


def test_two_hidden_layers_are_recognised():
    torch.manual_seed(2)
    stolen = from_values(divulge.oracle(MLP([20, 8, 8, 1]).double(), access="value"), seed=0, layers=1)
    assert not stolen.exact
    assert "more than one hidden layer" in stolen.reason


def test_dead_and_duplicate_neurons_are_merged_and_said():
    target = random_network(20, 8, 3)
    A, b, W = (part.detach().clone() for part in (target.A, target.b, target.W))
    A[1], b[1] = A[0], b[0]  # a duplicate
    A[2], b[2] = -2 * A[3], -2 * b[3]  # the same hyperplane from the other side
    W[0, 5] = 0.0  # never heard
    stolen = from_values(divulge.oracle(ReluNetwork(A, b, W), access="value"), seed=0, width=8)
    assert stolen.exact
    assert stolen.width == 5
    assert any("share a hyperplane" in note for note in stolen.notes)


@pytest.mark.parametrize("width", [4, 12])
def test_a_wrong_width_is_noted_and_does_no_harm(width):
    stolen = from_values(divulge.oracle(random_network(20, 8, 3), access="value"), seed=0, width=width)
    assert stolen.exact
    assert stolen.width == 8
    assert any(f"given as {width}" in note for note in stolen.notes)


@pytest.mark.parametrize("budget", [100, 150, 250])
def test_a_budget_that_ends_leaves_the_partial_copy_and_its_error(budget):
    oracle = divulge.oracle(random_network(20, 8, 3), access="value", budget=budget)
    with pytest.raises(BudgetExhausted) as caught:
        from_values(oracle, seed=0)
    partial = caught.value.partial
    assert not partial.exact
    assert np.isfinite(partial.worst_error)
    assert partial.ledger.total == oracle.ledger.total <= budget


def test_nan_half_way_leaves_the_partial_copy():
    target = random_network(20, 8, 3)
    asked = 0

    def fails(X: Tensor) -> Tensor:
        nonlocal asked
        asked += len(X)
        return target(X) * (float("nan") if asked > 200 else 1.0)

    with pytest.raises(NonFiniteAnswer) as caught:
        from_values(Answers(fails, 20), seed=0)
    assert caught.value.partial.width == 8


def test_a_seed_fixes_everything():
    target = random_network(20, 8, 3)
    runs = [from_values(divulge.oracle(target, access="value"), seed=4) for _ in range(2)]
    assert runs[0].queries == runs[1].queries
    assert torch.equal(runs[0].model.A, runs[1].model.A)


def test_bad_parameters_are_said():
    oracle = divulge.oracle(nn.Linear(3, 1), access="value")
    for options in ({"width": -1}, {"method": "magic"}):
        with pytest.raises(InvalidInput):
            from_values(oracle, **options)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("digits", "single"), [(6, False), (8, False), (4, True)])
def test_a_rounding_oracle_is_detected_and_the_precision_stated(digits, single, seed):
    model = random_network(20, 8, seed)
    oracle = Rounded(divulge.oracle(model.float() if single else model), digits)
    stolen = from_values(oracle, seed=seed)
    assert not stolen.exact
    assert f"multiples of {10.0**-digits:g}" in stolen.reason
    assert "standard deviation" in stolen.reason
    if digits >= 6:
        assert stolen.worst_error < 100 * 10.0**-digits


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("width", [0.03, 0.01])
def test_a_bump_that_no_check_hit_is_given_away_by_its_rounding(width, seed):
    base = random_network(20, 12, seed)
    g = torch.Generator().manual_seed(seed)
    a = torch.randn(1, 20, generator=g, dtype=DOUBLE)
    a = a / a.norm()
    b = 0.5 * torch.randn(1, generator=g, dtype=DOUBLE) - torch.tensor([0, 0.5, 1]).double() * width
    tent = torch.tensor([[1.0, -2.0, 1.0]]).double() * 2 / width
    W = torch.cat([base.W / 12**0.5, tent], dim=1)
    target = ReluNetwork(torch.cat([base.A, a.repeat(3, 1)]), torch.cat([base.b, b]), W)
    stolen = from_values(divulge.oracle(target), seed=seed)
    inside = torch.randn(200, 20, generator=g, dtype=DOUBLE)
    inside = inside + (width / 2 - inside @ a[0] - b[0])[:, None] * a
    with torch.no_grad():
        off = float((stolen.model(inside) - target(inside)).abs().max())
    assert not stolen.exact or off < 1e-6


def test_more_checks_state_a_smaller_gap():
    few, many = (from_values(divulge.oracle(random_network(20, 8, 0)), checks=n) for n in (32, 1000))
    assert (few.verified_points, many.verified_points) == (32, 1000)
    assert many.smallest_gap < few.smallest_gap / 3
    with pytest.raises(InvalidInput):
        from_values(divulge.oracle(random_network(20, 8, 0)), checks=3)


def test_nothing_is_said_about_the_depth_of_a_model_whose_answers_are_rounded() -> None:
    torch.manual_seed(0)
    model = MLP([6, 12, 12, 1]).double()
    seen = []
    for decimals in (1, 2, 3):
        stolen = from_values(Rounded(divulge.oracle(model), decimals), seed=0)
        assert not stolen.exact
        seen.append(stolen.reason)
    assert not [reason for reason in seen if "hidden layer" in reason]

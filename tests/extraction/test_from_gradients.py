"""Exact extraction from gradients: what it promises on random and trained networks, and how it says no."""

from __future__ import annotations

import pytest
import torch
from experiments.deep_targets import function
from sklearn.datasets import load_digits
from torch import Tensor, nn

import divulge
from divulge.core.errors import BudgetExhausted, InvalidInput, NonFiniteAnswer
from divulge.extraction import from_gradients, match_neurons
from divulge.models import MLP, ReluNetwork
from divulge.oracles.guards import Noisy, Rounded


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def network(inputs: int, width: int, seed: int, *, outputs: int = 1, bias: float = 0.5) -> ReluNetwork:
    return ReluNetwork(
        normal(width, inputs, seed=seed) / inputs**0.5,
        bias * normal(width, seed=seed + 1000),
        normal(outputs, width, seed=seed + 2000) / width**0.5,
    )


def with_neurons(model: ReluNetwork, A: Tensor, b: Tensor, W: Tensor) -> ReluNetwork:
    return ReluNetwork(
        torch.cat([model.A, A]), torch.cat([model.b, b]), torch.cat([model.W, W], dim=1), model.P, model.q
    )


def extract(model: nn.Module, seed: int = 0, **options):
    return from_gradients(divulge.oracle(model, access="gradient"), seed=seed, **options)


# -- what is promised -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_every_neuron_of_a_random_784_128_network_at_fewer_than_three_gradients_each(seed):
    model = network(784, 128, seed)
    stolen = extract(model, seed)
    assert stolen.exact
    assert stolen.width == 128
    assert stolen.ledger.gradient <= 2.9 * 128 + 16
    assert match_neurons(stolen.model, model).worst < 1e-7


@pytest.mark.slow
@pytest.mark.parametrize(("inputs", "width", "outputs"), [(784, 128, 10), (100, 60, 5), (64, 32, 3), (20, 16, 2)])
@pytest.mark.parametrize("seed", range(2))
def test_several_outputs_tell_all_neurons_from_the_same_few_gradients(inputs, width, outputs, seed):
    model = network(inputs, width, seed, outputs=outputs)
    stolen = extract(model, seed)
    assert stolen.exact
    assert stolen.width == width
    assert stolen.ledger.gradient <= 50  # 35, and a few more where a neuron was off at all of these
    assert match_neurons(stolen.model, model).worst < 1e-7


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inputs", "width", "outputs", "bias"),
    [(20, 16, 1, 0.5), (20, 16, 1, 0.0), (20, 100, 1, 0.5), (64, 32, 5, 0.5), (1, 12, 1, 0.5), (3, 40, 2, 30.0)],
)
@pytest.mark.parametrize("seed", range(3))
def test_copies_agree_to_a_billionth_whatever_the_shape(inputs, width, outputs, bias, seed):
    model = network(inputs, width, seed, outputs=outputs, bias=bias)
    oracle = divulge.oracle(model, access="gradient")
    stolen = from_gradients(oracle, seed=seed)
    assert stolen.exact
    assert stolen.width == width
    assert stolen.check(oracle, 500) <= 1e-9 * stolen.scale
    assert stolen.verified_points == 6000


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_recovers_a_network_trained_on_digits(seed):
    X, y = load_digits(return_X_y=True)
    torch.manual_seed(seed)
    model = MLP([64, 32, 10])
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    rows, labels = torch.tensor(X, dtype=torch.float32) / 16, torch.tensor(y)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(rows), labels).backward()
        optimiser.step()
    model = model.double()
    stolen = extract(model, seed)
    assert stolen.exact
    with torch.no_grad():
        assert torch.allclose(stolen.model(rows.double()), model(rows.double()), atol=1e-9)


def test_the_same_seed_asks_the_same_and_finds_the_same():
    first, second = (extract(network(30, 20, 1), seed=7) for _ in range(2))
    assert first.ledger == second.ledger
    assert torch.equal(first.model.A, second.model.A)


def test_queries_go_out_in_few_batches():
    model = network(50, 64, 0)
    oracle = divulge.oracle(model, access="gradient")
    calls = []
    asked = oracle.gradient
    oracle.gradient = lambda X: (calls.append(len(X)), asked(X))[1]  # type: ignore[method-assign]
    stolen = from_gradients(oracle)
    assert stolen.exact
    assert len(calls) < stolen.ledger.gradient / 3


# -- degenerate networks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slope", [0.0, 1.0])
@pytest.mark.parametrize("constant", [0.0, 3.0])
def test_linear_and_constant_functions_have_no_neurons(slope, constant):
    nothing = torch.zeros(0, 20, dtype=torch.float64)
    model = ReluNetwork(
        nothing,
        nothing[:, 0],
        nothing.reshape(1, 0),
        slope * normal(1, 20, seed=0),
        torch.full((1,), constant).double(),
    )
    stolen = extract(model)
    assert stolen.width == 0
    assert stolen.exact == (slope != 0)  # constant answers prove nothing
    assert slope != 0 or "constant" in stolen.reason


def test_dead_neurons_leave_no_trace_and_are_said():
    model = with_neurons(
        network(20, 12, 3),
        normal(2, 20, seed=9),
        torch.tensor([-1e9, 0.0]).double(),
        torch.tensor([[1.0, 0.0]]).double(),
    )
    stolen = extract(model, width=14)
    assert stolen.exact
    assert stolen.width == 12
    assert "dead" in stolen.notes[0]


@pytest.mark.parametrize("factor", [1.0, 3.0, -0.7])
def test_duplicate_and_antipodal_neurons_are_merged_and_said(factor):
    base = network(20, 12, 3)
    stolen = extract(with_neurons(base, factor * base.A[:2], factor * base.b[:2], base.W[:, :2] * 0.6), width=14)
    assert stolen.exact
    assert stolen.width == 12
    assert "merged" in stolen.notes[0]


def test_a_width_that_is_too_small_is_said():
    stolen = extract(network(20, 12, 3), width=5)
    assert stolen.exact
    assert "more than the 5" in stolen.notes[0]


@pytest.mark.slow
def test_tiny_weights_beside_large_ones_are_found():
    base = network(20, 12, 4)
    model = with_neurons(base, normal(3, 20, seed=1), normal(3, seed=2), 1e-6 * normal(1, 3, seed=3))
    stolen = extract(model)
    assert stolen.exact
    assert stolen.width == 15


def with_bump(seed: int, width: float) -> ReluNetwork:
    """A network and a tent of height one that is zero outside a slab."""
    normal_vector = normal(1, 20, seed=seed + 50)
    A = (normal_vector / normal_vector.norm()).repeat(3, 1)
    b = 0.5 * normal(1, seed=seed + 60) - torch.tensor([0, 0.5, 1]).double() * width
    tent = torch.tensor([[1.0, -2.0, 1.0]]).double() * 2 / width
    return with_neurons(network(20, 16, seed), A, b, tent)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("width", [0.3, 0.03, 0.003])
def test_a_bump_that_cancels_outside_a_slab_is_found_even_if_it_is_narrower_than_points_can_hit(width, seed):
    stolen = extract(with_bump(seed, width), seed)
    assert stolen.exact
    assert stolen.width == 19


def test_more_checks_state_a_smaller_gap():
    few, many = (extract(network(20, 16, 0), checks=checks).smallest_gap for checks in (100, 4000))
    assert many < few / 5


# -- what it is not ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("activation", "name"),
    [("sigmoid", "sigmoid or tanh"), ("tanh", "sigmoid or tanh"), ("elu", "ELU"), ("softplus", "softplus")],
)
@pytest.mark.parametrize("seed", range(3))
def test_smooth_networks_are_named_and_not_mangled(activation, name, seed):
    torch.manual_seed(seed)
    stolen = extract(MLP([20, 16, 2], activation=activation).double(), seed)
    assert not stolen.exact
    assert name in stolen.reason
    assert stolen.queries < 100


@pytest.mark.parametrize("seed", range(3))
def test_deeper_networks_are_recognised(seed):
    torch.manual_seed(seed)
    stolen = extract(MLP([20, 16, 16, 1]).double(), seed, layers=1)
    assert not stolen.exact
    assert "more than one hidden layer" in stolen.reason


@pytest.mark.slow
def test_leaky_units_and_hard_tanh_are_relu_networks_too():
    torch.manual_seed(0)
    leaky = nn.Sequential(nn.Linear(20, 16), nn.LeakyReLU(), nn.Linear(16, 2)).double()
    clipped = nn.Sequential(nn.Linear(20, 16), nn.Hardtanh(), nn.Linear(16, 2)).double()
    assert [(s.exact, s.width) for s in (extract(leaky), extract(clipped))] == [(True, 16), (True, 32)]


# -- oracles that answer badly ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("digits", [8, 6])
def test_a_rounding_oracle_is_detected_and_the_precision_stated(digits):
    oracle = Rounded(divulge.oracle(network(20, 12, 5), access="gradient"), digits)
    stolen = from_gradients(oracle)
    assert not stolen.exact
    assert stolen.width == 12
    assert f"multiples of {10.0**-digits:g}" in stolen.reason
    assert stolen.worst_error < 1e3 * 10.0**-digits


def test_a_noisy_oracle_is_detected():
    stolen = from_gradients(Noisy(divulge.oracle(network(20, 12, 5), access="gradient"), 1e-6))
    assert not stolen.exact
    assert "noisy" in stolen.reason
    assert stolen.worst_error < 1e-2 * stolen.scale


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_float32_answers_degrade_with_a_measured_error(seed):
    oracle = divulge.oracle(network(64, 16, seed).float(), access="gradient")
    stolen = from_gradients(oracle, seed=seed)
    assert not stolen.exact
    assert stolen.width == 16
    assert stolen.worst_error < 1e-4 * stolen.scale
    assert "precision" in stolen.reason


class BreaksDown(nn.Module):
    input_shape = (20,)

    def __init__(self, after: int) -> None:
        super().__init__()
        self.inner, self.after, self.asked = network(20, 12, 5), after, 0

    def forward(self, X: Tensor) -> Tensor:
        self.asked += len(X)
        return self.inner(X) * (float("nan") if self.asked > self.after else 1.0)


def test_nan_half_way_keeps_what_was_found():
    with pytest.raises(NonFiniteAnswer) as caught:
        extract(BreaksDown(70))  # some of them when the oracle is built
    assert 0 < caught.value.partial.width <= 12
    assert not caught.value.partial.exact


@pytest.mark.parametrize("budget", [0, 20, 40, 48, 60])
def test_a_budget_that_ends_in_the_middle_returns_the_partial_network(budget):
    oracle = divulge.oracle(network(20, 12, 5), access="gradient", budget=budget)
    with pytest.raises(BudgetExhausted) as caught:
        from_gradients(oracle)
    partial = caught.value.partial
    assert oracle.ledger.total <= budget
    assert partial.ledger.total == oracle.ledger.total
    assert not partial.exact
    assert (partial.width > 0) == (budget >= 40)


def test_a_budget_that_covers_fewer_checks_states_a_wider_gap():
    enough, scarce = (
        from_gradients(divulge.oracle(network(20, 12, 5), access="gradient", budget=budget)) for budget in (None, 150)
    )
    assert enough.exact
    assert scarce.exact
    assert scarce.verified_points < 120
    assert scarce.smallest_gap > 3 * enough.smallest_gap


@pytest.mark.parametrize("options", [{"method": "magic"}, {"width": -1}, {"checks": 3}])
def test_options_are_checked_at_the_door(options):
    with pytest.raises(InvalidInput):
        extract(network(5, 3, 0), **options)


def test_answers_that_are_mostly_one_bias_are_not_taken_for_single_precision():
    """All units are off at nearly all typical inputs, where the answer is a quarter, a number of any format."""
    g = torch.Generator().manual_seed(3)
    A = torch.randn(6, 10, generator=g, dtype=torch.float64)
    A = A / A.norm(dim=1, keepdim=True)
    W = torch.randn(1, 6, generator=g, dtype=torch.float64)
    model = ReluNetwork(A, torch.full((6,), -4.0, dtype=torch.float64), W, q=torch.tensor([0.25]).double())
    stolen = from_gradients(divulge.oracle(model, access="gradient", input_shape=(10,)), seed=0)
    assert stolen.exact, stolen.reason


def test_what_is_far_off_is_not_blamed_on_precise_answers():
    """A pairwise maximum inside a network that is constant at nearly all typical inputs, in float64."""
    model, inputs = function(40_011)
    stolen = from_gradients(divulge.oracle(model, access="gradient", input_shape=(inputs,)), seed=0)
    assert not stolen.exact
    assert "precision" not in stolen.reason

"""What every oracle promises: checked rows, an exact ledger, a budget that is never exceeded."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import divulge
from divulge.core.errors import (
    AccessDenied,
    BudgetExhausted,
    EmptyBatch,
    InvalidInput,
    NonFiniteAnswer,
    NonFiniteInput,
    NotDeterministic,
    TargetError,
    UnknownAccess,
    UnsupportedModel,
    WrongShape,
)
from divulge.models import MLP
from divulge.oracles.base import decide
from divulge.oracles.ledger import Ledger, Spent
from divulge.oracles.rows import in_batches


def small(access="gradient", **options):
    torch.manual_seed(0)
    return divulge.oracle(MLP([4, 8, 3]).double(), access=access, **options)


# -- bad rows ---------------------------------------------------------------------------------------------------------


class Opaque(nn.Module):
    """A model that is not a chain of layers, so its oracle checks the rows in the general way."""

    def __init__(self):
        super().__init__()
        self.inner = MLP([4, 8, 3])

    def forward(self, X):
        return self.inner(X)


@pytest.mark.parametrize("make", [lambda: MLP([4, 8, 3]), Opaque, lambda: MLP([4, 8, 3], activation="tanh")])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("ask", ["value", "gradient", "label"])
def test_non_finite_rows_are_refused_and_cost_nothing(make, bad, ask):
    oracle = divulge.oracle(make(), access="gradient", input_shape=(4,), batch_size=2)
    X = np.zeros((5, 4))
    X[3, 2] = bad
    with pytest.raises(NonFiniteInput, match="1 of"):
        getattr(oracle, ask)(X)
    assert oracle.ledger.total == 0


@pytest.mark.slow
@pytest.mark.parametrize("weight", [0.0, 1.0, -1.0])
@pytest.mark.parametrize("widths", [[4, 8, 1], [4, 8, 8, 2], [4, 3], [4, 1, 1]])
@pytest.mark.parametrize("activation", ["relu", "elu", "softplus", "tanh"])
@pytest.mark.parametrize("depth", [0, 1])
def test_a_non_finite_entry_is_found_whatever_the_weights_do_with_it(weight, widths, activation, depth):
    """Behind weights of one sign an infinite entry ends as a layer of zeros, and the output is as finite as ever."""
    model = MLP(widths, activation=activation)
    linears = [layer for layer in model if isinstance(layer, nn.Linear)]
    with torch.no_grad():
        linears[min(depth, len(linears) - 1)].weight[:, :2] = weight
    oracle = divulge.oracle(model, access="gradient")
    for bad in (np.inf, -np.inf, np.nan):
        for row in ([bad, 0, 0, 0], [bad, -bad, 1, bad], [0, 0, 0, bad]):
            for ask in (oracle.value, oracle.gradient, oracle.label):
                with pytest.raises(NonFiniteInput):
                    ask([[1, 1, 1, 1], row])
    assert oracle.ledger.total == 0


def test_training_on_does_not_change_an_oracle():
    model = MLP([4, 8, 1])
    oracle = divulge.oracle(model)
    before = oracle.value(torch.ones(1, 4))
    with torch.no_grad():
        model[0].weight.fill_(-1.0)
    assert torch.equal(oracle.value(torch.ones(1, 4)), before)
    with pytest.raises(NonFiniteInput):
        oracle.value([[np.inf] * 4])


def test_large_but_finite_rows_pass():
    oracle = small("value")
    assert torch.isfinite(oracle.value(np.full((10, 4), 1e300))).all()


def test_rows_that_overflow_the_number_format_are_refused():
    with pytest.raises(NonFiniteInput, match="float32"):
        divulge.oracle(MLP([4, 8, 3])).value(np.full((1, 4), 1e300))


@pytest.mark.parametrize(
    ("X", "error"),
    [
        (np.zeros((3, 5)), WrongShape),
        (np.zeros((3, 2, 3)), WrongShape),
        (np.zeros((0, 4)), EmptyBatch),
        ([], EmptyBatch),
        (np.zeros((3, 0)), EmptyBatch),
        (1.0, WrongShape),
        (torch.tensor(1.0), WrongShape),
        ([[1, 2, 3, 4], [1, 2]], WrongShape),
        ([["a", "b", "c", "d"]], InvalidInput),
        (np.zeros((1, 4), dtype=complex), InvalidInput),
        (torch.zeros(1, 4, dtype=torch.complex64), InvalidInput),
        ([[None, 1, 2, 3]], InvalidInput),
    ],
)
def test_malformed_rows_are_refused_and_cost_nothing(X, error):
    oracle = small()
    with pytest.raises(error):
        oracle.value(X)
    assert oracle.ledger.total == 0


@pytest.mark.parametrize("dtype", ["f2", "f4", ">f4", "f8", ">f8", "g", "i1", "i8", "u1", "?"])
def test_any_kind_of_number_is_taken(dtype):
    X = np.ones((2, 4), dtype=dtype)
    X.setflags(write=False)
    oracle = small()
    assert torch.equal(oracle.value(X), oracle.value(torch.ones(2, 4)))


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_sparse_rows_are_taken_too():
    sparse = pytest.importorskip("scipy.sparse")
    oracle, X = small(), torch.eye(4, dtype=torch.float64)
    for rows in (X.to_sparse(), X.float().to_sparse(), X.to_sparse_csr(), sparse.csr_matrix(X.numpy())):
        assert torch.equal(oracle.value(rows), oracle.value(X))


def test_one_row_and_pictures_are_taken_as_they_come():
    oracle = small()
    assert oracle.value(torch.zeros(4)).shape == (1, 3)
    assert oracle.value(torch.zeros(5, 2, 2)).shape == (5, 3)
    assert oracle.ledger.value == 6


def test_the_question_leaves_its_rows_alone():
    X = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    before = X.detach().clone()
    values, gradients = small().gradient(X)
    assert torch.equal(X.detach(), before)
    assert X.grad is None
    assert not values.requires_grad
    assert not gradients.requires_grad


# -- access -----------------------------------------------------------------------------------------------------------


def test_an_unknown_access_level_is_named():
    with pytest.raises(UnknownAccess, match="'logits'"):
        small("logits")


@pytest.mark.parametrize(
    ("access", "allowed"),
    [("label", {"label"}), ("value", {"label", "value"}), ("gradient", {"label", "value", "gradient"})],
)
def test_an_access_level_covers_the_ones_below_it_only(access, allowed):
    oracle = small(access)
    for kind in ("label", "value", "gradient"):
        if kind in allowed:
            getattr(oracle, kind)(torch.zeros(1, 4))
        else:
            with pytest.raises(AccessDenied, match=kind):
                getattr(oracle, kind)(torch.zeros(1, 4))
    with pytest.raises(AccessDenied):
        oracle.weights()
    assert oracle.ledger.total == len(allowed)


# -- bad answers ------------------------------------------------------------------------------------------------------


def test_a_model_that_answers_nan_is_an_error_and_the_rows_count():
    model = MLP([4, 8, 3])
    with torch.no_grad():
        model[2].bias[1] = torch.nan
    oracle = divulge.oracle(model, access="gradient")
    for ask in (oracle.value, oracle.gradient, oracle.label):
        with pytest.raises(NonFiniteAnswer, match="2 of 2 rows"):
            ask(torch.zeros(2, 4))
    assert oracle.ledger.total == 6


def test_an_infinite_weight_is_the_models_fault_not_the_rows():
    model = MLP([4, 8, 3])
    with torch.no_grad():
        model[0].weight[0, 0] = torch.inf
    with pytest.raises(NonFiniteAnswer):
        divulge.oracle(model).value(torch.ones(2, 4))


class Forgetful(nn.Module):
    def forward(self, X):
        return torch.nn.functional.dropout(X, 0.5, training=True)


def test_a_model_that_is_not_deterministic_is_found_when_asked_to_check():
    with pytest.raises(NotDeterministic):
        divulge.oracle(Forgetful(), input_shape=(40,), check_deterministic=True)
    assert divulge.oracle(Forgetful(), input_shape=(40,)).input_dim == 40
    steady = small(check_deterministic=True)
    assert steady.ledger.value == 2


def test_labels_alone_can_be_checked_too():
    assert small("label", check_deterministic=True).ledger.label == 2


# -- ledger and budget ------------------------------------------------------------------------------------------------


def test_the_budget_stops_before_the_row_that_would_exceed_it():
    oracle = small(budget=10)
    oracle.value(torch.zeros(4, 4))
    oracle.gradient(torch.zeros(5, 4))
    with pytest.raises(BudgetExhausted, match="at most 1"):
        oracle.label(torch.zeros(2, 4))
    assert (oracle.ledger.total, oracle.ledger.remaining) == (9, 1)
    oracle.label(torch.zeros(1, 4))
    assert oracle.ledger.snapshot() == Spent(value=4, gradient=5, label=1)


def test_a_budget_of_nothing_and_a_budget_below_it():
    with pytest.raises(BudgetExhausted):
        small(budget=0).value(torch.zeros(1, 4))
    for budget in (-1, 1.5, "10", True, float("nan")):
        with pytest.raises(InvalidInput, match="budget"):
            small(budget=budget)
    assert small(budget=1e4).ledger.budget == small(budget=np.int64(10_000)).ledger.budget == 10_000


def test_no_budget_has_no_end():
    assert small().ledger.remaining is None
    assert "nothing asked" in repr(small().ledger)


@pytest.mark.slow
def test_ledger_and_budget_are_exact_with_many_threads():
    oracle = small(budget=10_000)
    answered = []

    def ask(seed):
        generator = torch.Generator().manual_seed(seed)
        while True:
            rows = int(torch.randint(1, 8, (), generator=generator))
            kind = ("value", "gradient", "label")[int(torch.randint(3, (), generator=generator))]
            try:
                getattr(oracle, kind)(torch.zeros(rows, 4))
            except BudgetExhausted:
                if rows == 1:
                    return
                continue
            answered.append((kind, rows))

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert oracle.ledger.total == 10_000
    for kind in ("value", "gradient", "label"):
        assert getattr(oracle.ledger, kind) == sum(rows for asked, rows in answered if asked == kind)


@settings(max_examples=60, deadline=None)
@given(
    budget=st.integers(0, 60),
    asked=st.lists(st.tuples(st.sampled_from(["value", "gradient", "label"]), st.integers(1, 20)), max_size=12),
)
def test_the_ledger_is_the_sum_of_what_was_answered(budget, asked):
    ledger, spent = Ledger(budget), {"value": 0, "gradient": 0, "label": 0}
    for kind, rows in asked:
        if sum(spent.values()) + rows <= budget:
            ledger.charge(kind, rows)
            spent[kind] += rows
        else:
            with pytest.raises(BudgetExhausted):
                ledger.charge(kind, rows)
    assert ledger.snapshot() == Spent(**spent)
    assert ledger.remaining == budget - sum(spent.values())


def test_what_a_run_cost_is_a_difference_of_snapshots():
    ledger = Ledger()
    ledger.charge("value", 3)
    before = ledger.snapshot()
    ledger.charge("gradient", 2)
    ledger.count_request()
    spent = ledger.snapshot() - before
    assert spent == Spent(gradient=2, requests=1)
    assert before + spent == ledger.snapshot()
    assert spent.as_dict() == {"value": 0, "gradient": 2, "label": 0, "total": 2, "requests": 1}
    assert (ledger.value, ledger.gradient, ledger.label, ledger.requests) == (3, 2, 0, 1)


# -- pieces -----------------------------------------------------------------------------------------------------------


def test_a_failure_in_the_middle_says_how_many_rows_were_answered():
    def ask(rows):
        if rows[0, 0] >= 4:
            raise TargetError("no more")
        return (rows,)

    with pytest.raises(TargetError) as caught:
        in_batches(torch.arange(10.0)[:, None], 2, ask)
    assert caught.value.rows_answered == 4


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 40), size=st.integers(1, 50))
def test_batches_change_no_answer(rows, size):
    X = torch.arange(float(rows))[:, None]
    doubled, column = in_batches(X, size, lambda part: (2 * part, part[:, 0]))
    assert torch.equal(doubled, 2 * X)
    assert torch.equal(column, X[:, 0])


def test_a_decision_is_the_largest_output_or_the_side_of_the_threshold():
    assert decide(torch.tensor([[1.0, 3.0, 2.0]])).tolist() == [1]
    assert decide(torch.tensor([[0.4], [-0.1], [0.0]])).tolist() == [1, 0, 0]
    assert decide(torch.tensor([[0.4], [0.6]]), 0.5).tolist() == [0, 1]


def test_an_oracle_without_weights_or_gradients_says_so():
    from divulge.oracles.base import Oracle

    class Values(Oracle):
        def _value(self, X):
            return X

    oracle = Values(input_dim=2, output_dim=2, access="weights")
    with pytest.raises(AccessDenied, match="Values"):
        oracle.gradient([[1, 2]])
    with pytest.raises(UnsupportedModel, match="Values"):
        oracle.weights()
    with pytest.raises(UnsupportedModel, match="Values"):
        oracle._forward(torch.zeros(1, 2))
    assert oracle.ledger.total == 0
    assert oracle.eps == torch.finfo(torch.float64).eps


@pytest.mark.parametrize("attack", ["from_values", "from_gradients", "worst_case", "deep_from_gradients",
                                    "softmax_regression", "span.from_gradients", "span.from_labels"])  # fmt: skip
def test_every_attack_wants_an_oracle_and_a_seed(attack):
    package, _, name = attack.rpartition(".")
    function = getattr(getattr(divulge, package or "extraction"), name)
    model = nn.Linear(4, 3).double()
    with pytest.raises(InvalidInput, match=r"divulge\.oracle"):
        function(model)
    for seed in ("x", -1, 0.5):
        with pytest.raises(InvalidInput, match="seed"):
            function(divulge.oracle(model, access="gradient"), seed=seed)
    if attack != "span.from_labels":
        a, b = (function(divulge.oracle(model, access="gradient"), seed=seed) for seed in (3, np.int64(3)))
        assert a.ledger.total == b.ledger.total > 0

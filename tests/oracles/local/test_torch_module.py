"""A torch module behind the counter: its own values, exact gradients of every output, its own precision or double."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import divulge
from divulge import models
from divulge.auditing import TimeUp
from divulge.core.errors import InvalidInput, TargetError, UnsupportedModel
from divulge.models import MLP
from divulge.oracles.local import torch_module


def network(seed=0, widths=(6, 10, 4), **options):
    torch.manual_seed(seed)
    return MLP(widths, **options)


def direct_jacobian(model, X):
    return torch.func.vmap(torch.func.jacrev(lambda x: model(x[None])[0].reshape(-1)))(X)


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["relu", "elu", "tanh", "sigmoid", "softplus"])
@pytest.mark.parametrize("seed", range(3))
def test_values_gradients_and_labels_are_the_models_own(activation, seed):
    model = network(seed, activation=activation).double()
    oracle = divulge.oracle(model, access="gradient")
    X = torch.randn(20, 6, dtype=torch.float64)
    values, gradients = oracle.gradient(X)
    assert torch.equal(values, model(X))
    assert torch.equal(oracle.value(X), model(X))
    assert torch.equal(oracle.label(X), model(X).argmax(1))
    torch.testing.assert_close(gradients, direct_jacobian(model, X), rtol=1e-12, atol=1e-14)
    assert (oracle.input_dim, oracle.output_dim) == (6, 4)


@pytest.mark.slow
def test_a_convolutional_network_takes_flat_rows_and_pictures():
    model = models.build("two-conv", shape=(1, 8, 8), filters=(2, 3), dense=6, dtype=torch.float64).eval()
    oracle = divulge.oracle(model, access="gradient")
    X = torch.randn(5, 1, 8, 8, dtype=torch.float64)
    values, gradients = oracle.gradient(X)
    torch.testing.assert_close(values, oracle.value(X.flatten(1)))
    torch.testing.assert_close(gradients, direct_jacobian(model, X).reshape(5, 10, 64))


def test_native_answers_in_the_models_precision_and_double_in_a_copys():
    model = network()
    X = torch.randn(3, 6, dtype=torch.float64)
    native, double = divulge.oracle(model), divulge.oracle(model, precision="double")
    assert (native.value(X).dtype, native.dtype, native.eps) == (torch.float32, torch.float32, 2**-23)
    assert (double.value(X).dtype, double.eps) == (torch.float64, 2**-52)
    assert next(model.parameters()).dtype == torch.float32
    wide = network().double()
    torch.testing.assert_close(double.value(X), wide(X), rtol=1e-13, atol=1e-13)
    with pytest.raises(InvalidInput, match="'half'"):
        divulge.oracle(model, precision="half")


def test_a_model_in_training_is_asked_in_evaluation_and_left_as_it_was():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1)).train()
    divulge.oracle(model, check_deterministic=True)
    assert model.training
    model.eval()
    model[2].train()  # one forgotten layer is enough
    divulge.oracle(model, check_deterministic=True)
    assert model[2].training


def test_weights_are_a_copy():
    model = network()
    copy = divulge.oracle(model, access="weights").weights()
    with torch.no_grad():
        copy[0].weight.zero_()
    assert model[0].weight.abs().sum() > 0
    assert isinstance(copy, MLP)


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_batch_size_changes_no_answer(size):
    model = network().double()
    X = torch.randn(17, 6, dtype=torch.float64)
    whole, parts = divulge.oracle(model, access="gradient"), divulge.oracle(model, access="gradient", batch_size=size)
    for one, other in zip(whole.gradient(X), parts.gradient(X), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-14)
    torch.testing.assert_close(whole.value(X), parts.value(X), rtol=1e-13, atol=1e-14)
    assert parts.ledger.total == 34


def test_a_large_query_is_computed_in_parts_by_default(monkeypatch):
    monkeypatch.setattr(torch_module, "LIVE_NUMBERS", 1000)
    seen = []
    model = nn.Sequential(nn.Linear(6, 50), nn.ReLU(), nn.Linear(50, 1))
    model[2].register_forward_hook(lambda layer, inputs, out: seen.append(len(out)))
    oracle = divulge.oracle(model, access="gradient")
    seen.clear()
    oracle.value(torch.zeros(30, 6))
    oracle.gradient(torch.zeros(30, 6))
    assert max(seen) <= 1000 // 107
    assert sum(seen) == 60


def test_batch_size_must_be_positive():
    with pytest.raises(InvalidInput, match="batch_size"):
        divulge.oracle(network(), batch_size=0)


def test_output_shows_probabilities_with_their_own_gradients():
    model = network().double()
    X = torch.randn(9, 6, dtype=torch.float64)
    for output, last in (("probabilities", nn.Softmax(1)), ("log-probabilities", nn.LogSoftmax(1))):
        oracle = divulge.oracle(model, access="gradient", output=output)
        values, gradients = oracle.gradient(X)
        shown = nn.Sequential(model, last)
        torch.testing.assert_close(values, shown(X))
        torch.testing.assert_close(gradients, direct_jacobian(shown, X))
        assert torch.equal(oracle.label(X), model(X).argmax(1))
    with pytest.raises(InvalidInput, match="'odds'"):
        divulge.oracle(model, output="odds")


def test_one_logit_becomes_two_probabilities():
    model = network(widths=(6, 10, 1)).double()
    X = torch.randn(9, 6, dtype=torch.float64)
    oracle = divulge.oracle(model, output="probabilities")
    torch.testing.assert_close(oracle.value(X)[:, 1:], model(X).sigmoid())
    assert torch.equal(oracle.label(X), (model(X)[:, 0] > 0).long())


def test_a_single_probability_is_decided_at_one_half():
    model = nn.Sequential(network(widths=(6, 10, 1)), nn.Sigmoid())
    X = torch.randn(50, 6)
    assert torch.equal(divulge.oracle(model).label(X), (model(X)[:, 0] > 0.5).long())


def test_a_vector_of_answers_is_one_output():
    class Single(nn.Module):
        def forward(self, X):
            return X.sum(1)

    oracle = divulge.oracle(Single(), input_shape=(3,), access="gradient")
    values, gradients = oracle.gradient(torch.ones(2, 3))
    assert values.tolist() == [[3], [3]]
    assert torch.equal(gradients, torch.ones(2, 1, 3, dtype=torch.float64))


def test_a_constant_model_has_no_gradient():
    class Constant(nn.Module):
        def forward(self, X):
            return X.new_ones(len(X), 2)

    _, gradients = divulge.oracle(Constant(), input_shape=(3,), access="gradient").gradient(torch.ones(2, 3))
    assert torch.equal(gradients, torch.zeros(2, 2, 3, dtype=torch.float64))


def test_an_output_that_ignores_its_input_has_no_gradient():
    class Half(nn.Module):
        def forward(self, X):
            return torch.stack([X.sum(1), X.new_ones(len(X))], dim=1)

    _, gradients = divulge.oracle(Half(), input_shape=(3,), access="gradient").gradient(torch.ones(2, 3))
    assert gradients[:, 0].eq(1).all()
    assert gradients[:, 1].eq(0).all()


@pytest.mark.parametrize(
    ("model", "options", "error", "words"),
    [
        (nn.Conv2d(1, 2, 3), {}, UnsupportedModel, "input_shape"),
        (nn.ReLU(), {}, UnsupportedModel, "input_shape"),
        (nn.Linear(3, 2), {"input_shape": (4,)}, InvalidInput, r"\(4,\)"),
        (nn.Linear(3, 2), {"input_shape": ()}, InvalidInput, "positive"),
        (nn.Linear(3, 2), {"input_shape": (0,)}, InvalidInput, "positive"),
        (nn.Linear(3, 2), {"device": "cuda:7"}, InvalidInput, "cuda"),
        (nn.LSTM(3, 2), {"input_shape": (5, 3)}, UnsupportedModel, "tuple"),
        (nn.Sequential(nn.LazyLinear(3)), {"input_shape": (4,)}, UnsupportedModel, "lazy"),
        (nn.Linear(3, 2), {"batch_size": 2.5}, InvalidInput, "batch_size"),
        (nn.Linear(3, 2), {"input_shape": "3"}, InvalidInput, "positive"),
        (nn.Linear(3, 2), {"device": "warp"}, InvalidInput, "warp"),
    ],
)
def test_a_model_that_cannot_be_asked_says_why(model, options, error, words):
    with pytest.raises(error, match=words):
        divulge.oracle(model, **options)


def test_a_model_that_mixes_its_rows_is_refused():
    class Mean(nn.Module):
        def forward(self, X):
            return X.mean(0, keepdim=True)

    with pytest.raises(UnsupportedModel, match="one row"):
        divulge.oracle(Mean(), input_shape=(3,))


def test_a_model_that_answers_decisions_is_refused():
    class Decided(nn.Module):
        def forward(self, X):
            return X.argmax(1)

    with pytest.raises(UnsupportedModel, match="int64"):
        divulge.oracle(Decided(), input_shape=(3,))


def test_a_model_that_fails_on_a_query_costs_nothing():
    class Picky(nn.Module):
        def forward(self, X):
            if len(X) > 2:
                raise RuntimeError("too many")
            return X

    oracle = divulge.oracle(Picky(), input_shape=(3,), access="gradient")
    for ask in (oracle.value, oracle.gradient, oracle.label):
        with pytest.raises(TargetError, match="too many"):
            ask(torch.ones(5, 3))
    assert oracle.ledger.total == 0


def test_answers_come_in_the_precision_of_the_weights():
    class Widening(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 2)

        def forward(self, X):
            return self.inner(X).double()

    values, gradients = divulge.oracle(Widening(), access="gradient").gradient(torch.ones(2, 3))
    assert values.dtype == gradients.dtype == torch.float32


@pytest.mark.parametrize("make", [torch.jit.script, lambda model: torch.jit.trace(model, torch.zeros(1, 6))])
@pytest.mark.filterwarnings("ignore")
def test_a_scripted_module_is_asked_like_any_other(make):
    model = network().eval()
    X = torch.randn(5, 6)
    scripted = divulge.oracle(make(model), access="weights", input_shape=(6,))
    torch.testing.assert_close(scripted.gradient(X), divulge.oracle(model, access="gradient").gradient(X))
    torch.testing.assert_close(scripted.weights()(X), model(X))


def test_hooks_of_the_users_own_still_run():
    model, seen = network(), []
    model.register_forward_hook(lambda module, inputs, out: seen.append(len(out)))
    divulge.oracle(model).value(torch.zeros(3, 6))
    assert seen[-1] == 3


def test_a_model_that_fails_while_it_is_opened_says_why() -> None:
    class Late(nn.Module):
        def forward(self, X: torch.Tensor) -> torch.Tensor:
            raise TimeUp("3 seconds were not enough.")

    with pytest.raises(InvalidInput, match="does not take inputs of shape") as raised:
        divulge.oracle(Late(), input_shape=(3,))
    assert isinstance(raised.value.__cause__, TimeUp)  # an audit reads it: the end of the time is no wrong shape

"""Modules as people write them: functional activations, normalisation, residuals, attention, recurrence."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn
from torch.nn import functional

import divulge
from divulge.core.errors import InvalidInput, UnsupportedModel


class Functional(nn.Module):
    """The head is declared before the body, so the first declared layer is not the first that runs."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(7, 3)
        self.norm = nn.BatchNorm1d(7)
        self.body = nn.Linear(5, 7)

    def forward(self, X):
        hidden = functional.dropout(functional.gelu(self.norm(self.body(X))), 0.5, training=self.training)
        return self.head(hidden)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(5)
        self.block = nn.Sequential(nn.Linear(5, 5), nn.SiLU(), nn.Dropout(0.3))
        self.head = nn.Linear(5, 2)

    def forward(self, X):
        return self.head(X + self.block(self.norm(X)))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)
        self.head = nn.Linear(8, 2)

    def forward(self, X):
        return self.head(self.layer(X).mean(dim=1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 6, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, X):
        return self.head(self.lstm(X)[0][:, -1])


class Logits:
    def __init__(self, logits):
        self.logits = logits


class ManyOutputs(nn.Linear):
    """Answers as the transformers library does."""

    def forward(self, X):
        return Logits(super().forward(X))


CASES = [
    (Functional, None, (5,)),
    (Residual, None, (5,)),
    (Attention, (3, 8), (3, 8)),
    (Recurrent, (3, 4), (3, 4)),
    (lambda: ManyOutputs(4, 2), None, (4,)),
]


@pytest.mark.parametrize(
    ("make", "given", "shape"), CASES, ids=["functional", "residual", "attention", "lstm", "logits"]
)
def test_values_and_gradients_are_the_module_s_own_in_evaluation_mode(make, given, shape):
    torch.manual_seed(0)
    module = make().double()
    oracle = divulge.oracle(module, access="gradient", input_shape=given)
    assert oracle.input_shape == shape
    X = torch.randn(6, *shape, dtype=torch.float64, requires_grad=True)
    module.eval()
    expected = module(X)
    expected = expected.logits if isinstance(expected, Logits) else expected
    values, gradients = oracle.gradient(X.detach())
    torch.testing.assert_close(values, expected.detach())
    torch.testing.assert_close(oracle.value(X.detach()), expected.detach())
    for k in range(oracle.output_dim):
        (slope,) = torch.autograd.grad(expected[:, k].sum(), X, retain_graph=True)
        torch.testing.assert_close(gradients[:, k], slope.reshape(6, -1))


def test_the_user_s_module_keeps_its_mode_its_gradients_and_its_hooks():
    module = Functional()
    module.body.weight.requires_grad_(False)
    module.head.eval()
    before = [(part, part.training) for part in module.modules()]
    asked = [(parameter, parameter.requires_grad, parameter.grad) for parameter in module.parameters()]
    oracle = divulge.oracle(module, access="gradient")
    oracle.gradient(torch.randn(4, 5))
    assert [(part, part.training) for part in module.modules()] == before
    assert [(p, p.requires_grad, p.grad) for p in module.parameters()] == asked
    assert not any(part._forward_hooks for part in module.modules())


class Locked(Functional):
    """Holds a lock, so it cannot be copied."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


def test_a_module_that_cannot_be_copied_is_asked_in_place_and_restored():
    torch.manual_seed(0)
    module = Locked()
    oracle = divulge.oracle(module, access="gradient")
    X = torch.randn(4, 5)
    first = oracle.value(X)
    assert torch.equal(first, oracle.value(X))  # dropout is off while it is asked
    torch.testing.assert_close(oracle.gradient(X)[0], first)
    assert module.training
    assert all(part.training for part in module.modules())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in module.parameters())
    with pytest.raises(UnsupportedModel, match="cannot be copied"):
        divulge.oracle(module, precision="double")
    with pytest.raises(UnsupportedModel, match="cannot be copied"):
        divulge.oracle(module, access="weights").weights()


def test_a_model_whose_rows_depend_on_each_other_is_refused():
    mixing = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 1))
    with pytest.raises(UnsupportedModel, match="in the company of other rows"):
        divulge.oracle(mixing)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (Recurrent(), r"LSTM does not say.*input_shape=\(steps, features\)"),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()), r"input_shape=\(channels, height, width\)"),
        (nn.Sequential(nn.Conv1d(3, 4, 3), nn.Flatten()), r"input_shape=\(channels, length\)"),
        (nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(12, 2)), "takes whole numbers"),
        (nn.LSTM(4, 2), "LSTM"),
    ],
)
def test_a_model_that_leaves_its_input_open_says_what_to_pass(module, words):
    with pytest.raises(UnsupportedModel, match=words):
        divulge.oracle(module)


def test_a_tuple_of_outputs_is_refused_with_the_line_to_write():
    with pytest.raises(UnsupportedModel, match=r"lambda X: model\(X\)\[0\], input_shape="):
        divulge.oracle(nn.LSTM(4, 2, batch_first=True), input_shape=(3, 4))


def test_what_the_values_mean_is_stated():
    body = nn.Linear(4, 3)
    kinds = {
        "scores": (body, None),
        "logits": (body, "logits"),
        "probabilities": (body, "probabilities"),
        "log-probabilities": (body, "log-probabilities"),
    }
    for kind, (module, output) in kinds.items():
        assert divulge.oracle(module, output=output).output_kind == kind
    assert divulge.oracle(nn.Sequential(body, nn.Softmax(dim=1))).output_kind == "probabilities"
    assert divulge.oracle(nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())).output_kind == "probabilities"
    assert divulge.oracle(nn.Sequential(body, nn.LogSoftmax(dim=1))).output_kind == "log-probabilities"
    from divulge.oracles import Rounded

    assert Rounded(divulge.oracle(body, output="logits"), 2).output_kind == "logits"


@pytest.mark.parametrize("shape", [(10**12,), (2**20, 2**20), (10**4000,)])
def test_an_input_too_large_to_hold_is_refused_before_memory_goes(shape):
    with pytest.raises(InvalidInput, match="divulge handles at most"):
        divulge.oracle(lambda X: X.sum(1), input_shape=shape)


def test_a_network_that_makes_pictures_of_flat_rows_takes_flat_rows():
    net = nn.Sequential(nn.Unflatten(1, (1, 6, 5)), nn.Conv2d(1, 2, 3), nn.SiLU(), nn.Flatten(), nn.Linear(24, 3))
    oracle = divulge.oracle(net)
    assert oracle.input_shape == (30,)
    assert oracle.value(torch.zeros(4, 30)).shape == (4, 3)

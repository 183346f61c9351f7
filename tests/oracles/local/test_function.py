"""Any function on arrays: numpy or torch is found out by asking, and gradients come from the user or from autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import divulge
from divulge.core.errors import AccessDenied, BadAnswer, InvalidInput, TargetError

W = np.arange(6.0).reshape(3, 2)


def in_numpy(X):
    assert isinstance(X, np.ndarray)
    return np.tanh(X @ W)


def in_torch(X):
    return torch.tanh(X @ torch.from_numpy(W))


def in_lists(X):
    return [[float(number) for number in row] for row in np.tanh(X @ W)]


def in_a_list_of_tensors(X):
    return [torch.tanh(row @ torch.from_numpy(W)) for row in torch.as_tensor(X)]


def in_single_precision(X):
    return torch.tanh(X @ torch.from_numpy(W).float())


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (in_numpy, torch.float64),
        (in_torch, torch.float64),
        (in_lists, torch.float64),
        (in_a_list_of_tensors, torch.float64),
        (in_single_precision, torch.float32),
    ],
)
def test_values_and_labels_are_the_functions_own(function, dtype):
    oracle = divulge.oracle(function, input_shape=(3,))
    X = np.random.default_rng(0).standard_normal((7, 3))
    expected = np.tanh(X @ W)
    np.testing.assert_allclose(oracle.value(X), expected, rtol=1e-5 if dtype == torch.float32 else 1e-12)
    assert oracle.label(X).tolist() == expected.argmax(1).tolist()
    assert (oracle.dtype, oracle.output_dim, oracle.ledger.total) == (dtype, 2, 14)


def test_a_torch_function_is_differentiated():
    oracle = divulge.oracle(in_torch, input_shape=(3,), access="gradient")
    X = torch.randn(5, 3, dtype=torch.float64)
    values, gradients = oracle.gradient(X)
    expected = (1 - values**2)[:, :, None] * torch.from_numpy(W).T
    torch.testing.assert_close(gradients, expected)


def test_a_numpy_function_needs_a_gradient_of_the_users_own():
    with pytest.raises(AccessDenied, match="gradient="):
        divulge.oracle(in_numpy, input_shape=(3,), access="gradient")

    def slopes(X):
        return (1 - np.tanh(X @ W) ** 2)[:, :, None] * W.T

    oracle = divulge.oracle(in_numpy, input_shape=(3,), access="gradient", gradient=slopes, batch_size=2)
    X = torch.randn(5, 3, dtype=torch.float64)
    values, gradients = oracle.gradient(X)
    expected = divulge.oracle(in_torch, input_shape=(3,), access="gradient").gradient(X)
    torch.testing.assert_close((values, gradients), expected)
    assert oracle.ledger.gradient == 5


def test_a_function_that_works_on_both_is_differentiated_when_gradients_are_asked():
    oracle = divulge.oracle(lambda X: X**2, input_shape=(3,), access="gradient")
    assert torch.equal(oracle.gradient([[1, 2, 3]])[1][0], 2 * torch.diag(torch.tensor([1.0, 2, 3]).double()))
    with pytest.raises(AccessDenied, match="gradient="):
        divulge.oracle(np.tanh, input_shape=(3,), access="gradient")
    assert divulge.oracle(np.tanh, input_shape=(3,)).value([[0, 0, 0]]).tolist() == [[0, 0, 0]]


def test_a_torch_function_that_detaches_gives_no_gradients():
    with pytest.raises(AccessDenied, match="gradient="):
        divulge.oracle(lambda X: in_torch(X).detach(), input_shape=(3,), access="gradient")


def test_a_gradient_function_of_one_output_may_leave_its_dimension_out():
    oracle = divulge.oracle(lambda X: (X**2).sum(1), input_shape=(3,), access="gradient", gradient=lambda X: 2 * X)
    values, gradients = oracle.gradient([[1, 2, 3]])
    assert values.tolist() == [[14]]
    assert gradients.tolist() == [[[2, 4, 6]]]


def test_pictures_reach_the_function_in_their_shape():
    oracle = divulge.oracle(lambda X: X[:, 0, 1, :], input_shape=(1, 2, 2))
    assert oracle.value([[1, 2, 3, 4]]).tolist() == [[3, 4]]
    assert oracle.input_dim == 4


def test_a_bare_number_is_a_width():
    assert divulge.oracle(in_numpy, input_shape=3).input_shape == (3,)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "input_shape"),
        ({"input_shape": (4,)}, r"\(2, 4\)"),
        ({"input_shape": (3,), "access": "weights"}, "no weights"),
        ({"input_shape": (3,), "output": "logits"}, "output="),
        ({"input_shape": (3,), "device": "cpu"}, "device="),
    ],
)
def test_what_a_function_cannot_do_is_said(options, words):
    with pytest.raises(InvalidInput, match=words):
        divulge.oracle(in_numpy, **options)


def test_a_function_that_answers_in_single_precision_cannot_be_asked_in_double():
    with pytest.raises(InvalidInput, match="float32"):
        divulge.oracle(in_single_precision, input_shape=(3,), precision="double")
    assert divulge.oracle(in_numpy, input_shape=(3,), precision="double").dtype == torch.float64


@pytest.mark.parametrize("function", [lambda X: X.sum(), lambda X: None, lambda X: X[:1], lambda X: 1 / 0, lambda: 0])
def test_a_function_that_does_not_answer_each_row_is_refused(function):
    with pytest.raises(InvalidInput, match="one answer for each"):
        divulge.oracle(function, input_shape=(3,))


def test_a_function_that_changes_its_mind_about_its_shape_is_an_error_and_costs_nothing():
    oracle = divulge.oracle(lambda X: np.zeros((len(X), 1 if len(X) > 2 else 2)), input_shape=(3,))
    with pytest.raises(BadAnswer, match=r"\[5, 2\] was expected"):
        oracle.value(np.zeros((5, 3)))
    assert oracle.ledger.total == 0


def test_a_gradient_function_of_the_wrong_shape_is_an_error():
    oracle = divulge.oracle(in_numpy, input_shape=(3,), access="gradient", gradient=lambda X: X)
    with pytest.raises(BadAnswer, match=r"\[5, 2, 3\] was expected"):
        oracle.gradient(np.zeros((5, 3)))


def test_a_function_that_fails_half_way_keeps_count_of_what_it_answered():
    def brittle(X):
        if X.max() > 3:
            raise ConnectionError("gone")
        return X[:, 0]

    oracle = divulge.oracle(brittle, input_shape=(1,), batch_size=2)
    with pytest.raises(TargetError, match="ConnectionError: gone"):
        oracle.value(np.arange(8.0)[:, None])
    assert oracle.ledger.value == 4

"""Inputs that no known row uses, under optimisers that divide gradients by their size."""

import pytest
import torch

import divulge
from divulge.informed.inversion.training_function import training_function
from divulge.informed.inversion.unused_inputs import UnusedInputs

ADAM = {"optimiser": "adam", "learning_rate": 5e-3}


def case(uses, **options):
    """A recipe, 24 known rows with two inputs that are always zero, one more row, and the model trained on all."""
    X, y = divulge.datasets.load("iris").train
    rows = torch.cat([X.double() / X.max(), torch.zeros(len(X), 2)], dim=1)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(1))[:25]
    rows, labels = rows[order].clone(), y[order]
    rows[-1, 4] = uses
    recipe = divulge.Recipe(widths=[6, 5, 3], activation="tanh", epochs=8, precision="float64", **options)
    return recipe, rows, labels, recipe.train(rows, labels)


@pytest.mark.slow
def test_a_digit_comes_out_of_training_with_adam():
    data = divulge.datasets.load("digits").train
    order = torch.randperm(len(data.X), generator=torch.Generator().manual_seed(5))[:101]
    X, y = data.X.flatten(1).double()[order], data.y[order]
    recipe = divulge.Recipe(widths=[64, 16, 10], activation="tanh", epochs=10, precision="float64", **ADAM)
    record = divulge.informed.direct(recipe, recipe.train(X, y), X[:-1], y[:-1], labels=y[-1:], runs=40)
    guess = float((X[:-1][y[:-1] == y[-1]].mean(dim=0) - X[-1]).square().mean())
    assert record.trusted
    assert record.error(X[-1]) < 0.2 * guess
    unused = (X[:-1] == 0).all(dim=0)
    assert ((record.x[unused] != 0) == (X[-1][unused] != 0)).all()


def test_the_released_weights_say_which_of_them_the_row_uses():
    recipe, rows, labels, released = case(0.6, **ADAM)
    training = training_function(recipe, rows[:-1], labels[:-1], dtype=torch.float64)
    unused = UnusedInputs.of(training, rows[:-1])
    assert unused.inputs.tolist() == [4, 5]
    weights = torch.cat([parameter.detach().reshape(-1) for parameter in released.parameters()])
    target = (weights - training.reference)[None]
    assert not unused.left_out(target).reshape(-1)[unused.weights].any()
    low, high = unused.box(target, rows[:1], (0.0, 1.0))
    assert high[0].tolist() == [1.0] * 5 + [0.0]
    assert low[0, 4] > 0
    assert not low[0, [0, 1, 2, 3, 5]].any()


def test_plain_descent_needs_no_such_care():
    recipe, rows, labels, _ = case(0.0, learning_rate=0.1)
    training = training_function(recipe, rows[:-1], labels[:-1], dtype=torch.float64)
    assert UnusedInputs.of(training, rows[:-1]) is None

"""The group trainer ends where the recipe's own training ends, and its sweeps are that training's derivatives."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from sklearn.datasets import load_digits
from torch.nn.utils import parameters_to_vector

from divulge import Recipe
from divulge.core.errors import InvalidInput, UnsupportedModel, WrongShape
from divulge.informed.inversion import derivatives
from divulge.training.batched import model_group
from divulge.training.batched.activation_derivatives import ACTIVATIONS
from divulge.training.batched.parameter_layout import reference_weights, unflat
from divulge.training.batched.shared_setup import as_mlp, encode

BASE = {
    "widths": [20, 6, 4], "activation": "elu", "learning_rate": 0.2, "momentum": 0.9, "epochs": 25,
    "precision": "float64",
}  # fmt: skip
VARIANTS = {
    "full batch": {},
    "mini-batches": {"batch_size": 16},
    "bias in the first layer": {"bias": "first"},
    "no bias": {"bias": "none"},
    "weight decay": {"weight_decay": 0.01},
    "deep tanh": {"widths": [20, 8, 7, 4], "activation": "tanh"},
    "one layer": {"widths": [20, 4]},
    "softplus": {"activation": "softplus"},
    "relu": {"activation": "relu"},
    "squared loss": {"loss": "square", "learning_rate": 0.05, "activation": "tanh"},
    "logistic": {"loss": "logistic", "widths": [20, 6, 1]},
    "sigmoid, everything": {"activation": "sigmoid", "batch_size": 16, "weight_decay": 1e-3, "bias": "first"},
}
ADAM = {"optimiser": "adam", "learning_rate": 0.01, "momentum": 0.0}


def data(recipe, n=60):
    generator = torch.Generator().manual_seed(4)
    X = torch.rand(n, 20, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 4, (n,), generator=generator)
    Z = torch.rand(3, 20, generator=generator, dtype=torch.float64)
    zy = torch.tensor([1, 3, 0])
    return (X, y % 2, Z, zy % 2) if recipe.loss == "logistic" else (X, y, Z, zy)


def plainly(recipe, X, y, z, label, position):
    rows = torch.cat([X[:position], z[None], X[position:]])
    labels = torch.cat([y[:position], label[None], y[position:]])
    return parameters_to_vector(recipe.train(rows, labels).parameters()).detach()


@pytest.mark.slow
@pytest.mark.parametrize("position", [None, 5])
@pytest.mark.parametrize("name", [*VARIANTS, "adam", "few rows"])
def test_a_group_equals_the_plain_training(name, position):
    options = {**VARIANTS, "adam": ADAM, "few rows": {}}[name]
    recipe = Recipe(**{**BASE, **options})
    X, y, Z, zy = data(recipe, n=12 if name == "few rows" else 60)
    setup = model_group.prepare(recipe, X, y, dtype=torch.float64, position=position)
    got = model_group.train_group(setup, Z, zy) + reference_weights(setup)
    for row in range(3):
        expected = plainly(recipe, X, y, Z[row], zy[row], len(X) if position is None else position)
        assert (got[row] - expected).abs().max() <= 1e-12


@pytest.mark.slow
@pytest.mark.parametrize(("half", "tolerance"), [(False, 1e-3), (True, 3e-2)])
def test_lower_precision_stays_close(half, tolerance):
    recipe = Recipe(**BASE)
    X, y, Z, zy = data(recipe)
    exact = model_group.train_group(model_group.prepare(recipe, X, y, dtype=torch.float64), Z, zy)
    rough = model_group.train_group(model_group.prepare(recipe, X, y, dtype=torch.float32, half=half), Z, zy)
    assert ((rough.double() - exact).norm(dim=1) / exact.norm(dim=1)).max() <= tolerance


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "relu"])
def test_sweeps_are_derivatives_of_training(name):
    recipe = Recipe(**{**BASE, **VARIANTS[name]})
    X, y, Z, zy = data(recipe)
    setup = model_group.prepare(recipe, X, y, dtype=torch.float64)
    targets = encode(recipe, zy, setup.widths[-1]).T
    run = derivatives.Run(setup, Z, targets)
    generator = torch.Generator().manual_seed(9)
    dZ = torch.randn(Z.shape, generator=generator, dtype=torch.float64)
    step = 1e-6
    ahead, behind = (derivatives.Run(setup, Z + sign * step * dZ, targets).theta for sign in (1, -1))
    moved = run.forward(dZ)
    assert (moved - (ahead - behind) / (2 * step)).norm() <= 1e-7 * moved.norm()
    R = torch.randn(moved.shape, generator=generator, dtype=torch.float64)
    left, right = (moved * R).sum(dim=1), (dZ * run.backward(R)).sum(dim=1)
    assert (left - right).abs().max() <= 1e-12 * left.abs().max()


@pytest.mark.slow
def test_relu_sweeps_see_the_rows_that_cross_a_kink(monkeypatch):
    recipe = Recipe(**{**BASE, "activation": "relu", "widths": [64, 10, 10], "epochs": 60})
    digits, labels = load_digits(return_X_y=True)
    rows, y = torch.tensor(digits / 16), torch.tensor(labels)
    X, Z, dZ = rows[:400], rows[400:412], rows[500:512] - rows[400:412]
    generator = torch.Generator().manual_seed(5)
    setup = model_group.prepare(recipe, X, y[:400], dtype=torch.float64)
    targets = encode(recipe, y[400:412], 10).T
    far = 0.3  # a step as a search takes it
    moved = (
        model_group.train_encoded(setup, Z + far * dZ, targets) - model_group.train_encoded(setup, Z, targets)
    ) / far

    def off():
        run = derivatives.Run(setup, Z, targets)
        ahead = run.forward(dZ)
        R = torch.randn(ahead.shape, generator=generator, dtype=torch.float64)
        assert torch.allclose((ahead * R).sum(dim=1), (dZ * run.backward(R)).sum(dim=1), rtol=1e-9)
        return float(((ahead - moved).norm(dim=1) / moved.norm(dim=1)).median())

    spread = off()
    flat = replace(ACTIVATIONS["relu"], curvature=lambda value, slope: torch.zeros_like(value))
    monkeypatch.setitem(ACTIVATIONS, "relu", flat)
    assert spread < 0.9 * off()


def test_runs_can_be_taken_over():
    recipe = Recipe(**BASE)
    X, y, Z, zy = data(recipe)
    setup = model_group.prepare(recipe, X, y, dtype=torch.float64)
    targets = encode(recipe, zy, 4).T
    run, other = derivatives.Run(setup, Z, targets), derivatives.Run(setup, Z[1:] * 0.5, targets[1:])
    run.replace(torch.tensor([2]), other, torch.tensor([False, True]))
    expected = derivatives.Run(setup, torch.stack([Z[0], Z[1], Z[2] * 0.5]), targets)
    dZ = torch.ones_like(Z)
    assert torch.allclose(run.theta, expected.theta, atol=1e-14)
    assert torch.allclose(run.forward(dZ), expected.forward(dZ), atol=1e-13)
    assert torch.allclose(run.backward(run.theta), expected.backward(run.theta), atol=1e-13)


def test_named_architectures_are_recognised():
    recipe = Recipe(architecture={"architecture": "balle-mlp", "shape": [1, 4, 5], "outputs": 4}, epochs=3)
    plain = as_mlp(recipe)
    assert plain is not None
    assert plain.widths == (20, 10, 4)
    assert plain.activation == "elu"
    assert as_mlp(Recipe(architecture="balle-cnn")) is None


def test_what_does_not_fit_is_refused():
    recipe = Recipe(**BASE)
    X, y, Z, zy = data(recipe)
    with pytest.raises(WrongShape, match="20 features"):
        model_group.prepare(recipe, X[:, 1:], y, dtype=torch.float64)
    with pytest.raises(InvalidInput, match="position"):
        model_group.prepare(recipe, X, y, dtype=torch.float64, position=99)
    with pytest.raises(InvalidInput, match="Labels go from 0 to 3"):
        model_group.prepare(recipe, X, y + 1, dtype=torch.float64)
    with pytest.raises(UnsupportedModel, match="multilayer perceptrons"):
        model_group.prepare(Recipe(architecture="balle-cnn"), X, y, dtype=torch.float64)
    setup = model_group.prepare(Recipe(**{**BASE, **ADAM}), X, y, dtype=torch.float64)
    with pytest.raises(UnsupportedModel, match="not Adam"):
        derivatives.Run(setup, Z, encode(recipe, zy, 4).T)
    with pytest.raises(WrongShape, match="weights"):
        unflat(setup, torch.zeros(1, 5000))

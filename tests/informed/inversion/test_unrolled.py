"""Training of any network, as a function of one row, ends where the recipe's own ends and has the right derivatives."""

from __future__ import annotations

import pytest
import torch
from torch.nn.utils import parameters_to_vector

import divulge
from divulge import Recipe
from divulge.core.errors import InvalidInput, UnsupportedModel
from divulge.informed.inversion import derivatives
from divulge.informed.inversion.search import Search
from divulge.informed.inversion.training_function import mlp_training, training_function
from divulge.informed.inversion.unrolled import UnrolledTraining
from divulge.training import Privacy
from divulge.training.batched.model_group import prepare
from divulge.training.batched.shared_setup import encode

CNN = {"architecture": {"architecture": "balle-cnn", "shape": [1, 10, 10], "outputs": 3}}
MLP = {"widths": [100, 6, 3], "activation": "elu"}
BASE = {"learning_rate": 0.1, "momentum": 0.9, "epochs": 6, "precision": "float64"}
ADAM = {"optimiser": "adam", "learning_rate": 0.01, "momentum": 0.0}
VARIANTS = {
    "convolutional": {**CNN},
    "convolutional, Adam": {**CNN, **ADAM},
    "Adam, mini-batches": {**MLP, **ADAM, "batch_size": 5},
    "momentum, weight decay": {**MLP, "weight_decay": 0.01},
    "AdamW, cosine": {**MLP, **ADAM, "optimiser": "adamw", "weight_decay": 0.01, "schedule": "cosine"},
    "RMSprop": {**MLP, "optimiser": "rmsprop", "learning_rate": 0.01, "momentum": 0.5},
    "Nesterov, linear": {**MLP, "nesterov": True, "schedule": "linear"},
    "clipped": {**MLP, "privacy": Privacy(noise_multiplier=0.0, clip=0.5)},
}


def data(n=13):
    generator = torch.Generator().manual_seed(4)
    X = torch.rand(n, 100, generator=generator, dtype=torch.float64)
    return X, torch.randint(0, 3, (n,), generator=generator)


def prepared(name, position=None):
    recipe = Recipe(**{**BASE, **VARIANTS[name]})
    X, y = data()
    known = torch.arange(12)
    return (
        recipe,
        UnrolledTraining.of(recipe, X[known], y[known], dtype=torch.float64, position=position, start=None),
        X,
        y,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_it_ends_where_the_recipe_ends(name):
    recipe, training, X, y = prepared(name)
    got = training.train(X[12:], encode(recipe, y[12:], 3).T) + training.reference
    expected = parameters_to_vector(recipe.train(X, y).parameters()).detach()
    assert (got[0] - expected).abs().max() <= 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_its_sweeps_are_derivatives(name):
    recipe, training, X, y = prepared(name, position=4)
    targets = encode(recipe, y[:2], 3).T
    Z = X[:2] * 0.5 + 0.2
    run = training.run(Z, targets)
    generator = torch.Generator().manual_seed(9)
    dZ = torch.randn(Z.shape, generator=generator, dtype=torch.float64)
    step = 1e-6
    ahead, behind = (training.train(Z + sign * step * dZ, targets) for sign in (1, -1))
    moved = run.forward(dZ)
    assert (moved - (ahead - behind) / (2 * step)).norm() <= 1e-5 * moved.norm()
    R = torch.randn(moved.shape, generator=generator, dtype=torch.float64)
    left, right = (moved * R).sum(dim=1), (dZ * run.backward(R)).sum(dim=1)
    assert (left - right).abs().max() <= (1e-6 if training.by_differences else 1e-10) * left.abs().max()


def test_a_product_with_pictures_takes_one_gradient_a_step(monkeypatch):
    recipe, training, X, y = prepared("convolutional")
    run = training.run(X[:1], encode(recipe, y[:1], 3).T)
    whole, plain = UnrolledTraining._summed, []

    def summed(self, theta, rows, targets):
        if len(rows) == 12:  # the known rows
            plain.append(not torch._C._functorch.is_functorch_wrapped_tensor(theta))
        return whole(self, theta, rows, targets)

    monkeypatch.setattr(UnrolledTraining, "_summed", summed)
    for product in (lambda: run.forward(X[1:2]), lambda: run.backward(run.theta)):
        plain.clear()
        product()
        assert 0 < len(plain) <= recipe.epochs
        assert all(plain), "the gradient of the known rows was differentiated once more"


@pytest.mark.slow
def test_it_agrees_with_the_hand_written_program():
    recipe = Recipe(**{**BASE, **MLP})
    X, y = data()
    both = [
        UnrolledTraining.of(recipe, X, y, dtype=torch.float64, position=None, start=None),
        mlp_training(prepare(recipe, X, y, dtype=torch.float64)),
    ]
    Z, targets = X[:2] * 0.5, encode(recipe, y[:2], 3).T
    runs = [training.run(Z, targets) for training in both]
    assert isinstance(runs[1], derivatives.Run)
    assert (both[0].reference - both[1].reference).abs().max() <= 1e-12
    for mine, other in [
        (runs[0].theta, runs[1].theta),
        (runs[0].forward(Z), runs[1].forward(Z)),
        (runs[0].backward(runs[0].theta), runs[1].backward(runs[0].theta)),
    ]:
        assert (mine - other).abs().max() <= 1e-12 * max(1.0, float(other.abs().max()))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["convolutional", "Adam, mini-batches"])
def test_the_direct_attack_goes_through_it(name):
    recipe = Recipe(**{**BASE, **VARIANTS[name]})
    X, y = data()
    released = recipe.train(X, y)
    record = divulge.informed.direct(recipe, released, X[:12], y[:12], labels=[int(y[12])], runs=20)
    guess = float((X[:12][y[:12] == y[12]].mean(dim=0) - X[12]).square().mean())
    assert record.error(X[12]) <= 0.1 * guess


@pytest.mark.slow
def test_a_search_from_the_class_mean_is_not_repeated_from_there(monkeypatch):
    monkeypatch.setattr(Search, "near", 0.0)  # every search ends far off
    recipe = Recipe(**{**BASE, **CNN})
    X, y = data()
    record = divulge.informed.direct(recipe, recipe.train(X, y), X[:12], y[:12], labels=[int(y[12])], runs=48)
    assert record.training_runs <= 48 + 22 + 3  # the search, the unrecovered share, and the class means


@pytest.mark.slow
def test_private_training_is_inverted_through_its_clipping():
    X, y = data()
    errors = []
    for noise in (1e-4, 3.0):
        privacy = Privacy(noise_multiplier=noise, clip=0.5, noise_seed=1)
        recipe = Recipe(**{**BASE, **MLP, "privacy": privacy})
        record = divulge.informed.direct(recipe, recipe.train(X, y), X[:12], y[:12], labels=[int(y[12])], runs=20)
        errors.append(record.error(X[12]))
    guess = float((X[:12][y[:12] == y[12]].mean(dim=0) - X[12]).square().mean())
    assert errors[0] <= 0.3 * guess
    assert errors[1] >= 2 * errors[0]
    with pytest.raises(InvalidInput, match="needs the weights"):
        divulge.informed.direct(recipe, recipe.train(X, y), X[:12], y[:12], access="logits", probes=5)


def test_what_is_no_sum_over_rows_is_refused():
    recipe = Recipe(architecture={"architecture": "resnet18", "shape": [3, 8, 8], "width": 0.1}, epochs=1)
    X, y = torch.rand(4, 192), torch.arange(4)
    with pytest.raises(UnsupportedModel, match="batch normalisation"):
        training_function(recipe, X, y, dtype=torch.float32)

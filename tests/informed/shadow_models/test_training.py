"""Shadow models are the recipe's own models, kept on disk group by group."""

from __future__ import annotations

import json

import pytest
import torch
from torch.nn.utils import parameters_to_vector

from divulge import Recipe
from divulge.core.errors import InvalidInput, WrongShape
from divulge.informed import shadows
from divulge.informed import shadows as train_shadows

RECIPE = Recipe(widths=[12, 5, 3], activation="elu", learning_rate=0.2, momentum=0.9, epochs=10, precision="float64")


def data(count=40):
    generator = torch.Generator().manual_seed(2)
    X = torch.rand(count, 12, generator=generator, dtype=torch.float64)
    return X, torch.randint(0, 3, (count,), generator=generator)


def test_each_shadow_is_the_model_that_the_recipe_trains():
    X, y = data()
    found = shadows(RECIPE, X[:30], y[:30], X[30:], y[30:])
    assert found.differences.shape == (10, 12 * 5 + 5 + 5 * 3 + 3)
    for row in range(10):
        model = RECIPE.train(torch.cat([X[:30], X[30 + row : 31 + row]]), torch.cat([y[:30], y[30 + row : 31 + row]]))
        expected = parameters_to_vector(model.parameters()).detach()
        assert (found.differences[row] + found.reference - expected).abs().max() <= 1e-12
    assert found.trained == 10
    assert len(found.subset(4).X) == 4


def test_a_mini_batch_of_only_the_unknown_row_trains_as_the_recipe_does():
    X, y = data(9)
    recipe = Recipe(**{**RECIPE.as_dict(), "batch_size": 1, "epochs": 2})
    found = shadows(recipe, X[:7], y[:7], X[7:], y[7:])
    expected = parameters_to_vector(recipe.train(X[:8], y[:8]).parameters()).detach()
    assert (found.differences[0] + found.reference - expected).abs().max() <= 1e-12


def test_other_architectures_train_one_by_one():
    recipe = Recipe(
        architecture={"architecture": "balle-cnn", "shape": [1, 12, 12], "outputs": 3}, epochs=2, precision="float64"
    )
    generator = torch.Generator().manual_seed(2)
    X, y = torch.rand(9, 144, generator=generator, dtype=torch.float64), torch.arange(9) % 3
    found = shadows(recipe, X[:7], y[:7], X[7:], y[7:])
    expected = parameters_to_vector(recipe.train(X[:8], y[:8]).parameters()).detach()
    assert torch.equal(found.differences[0] + found.reference, expected) or torch.allclose(
        found.differences[0] + found.reference, expected, atol=1e-15
    )


def test_a_killed_run_goes_on_where_it_stopped(tmp_path, monkeypatch):
    module = __import__("divulge.informed.shadow_models.training", fromlist=["_Store"])
    X, y = data()
    monkeypatch.setattr("divulge.informed.inversion.training_function._ELEMENTS", 5 * 31 * 3)  # groups of three
    monkeypatch.setattr("divulge.informed.inversion.training_function._SMALLEST_GROUP", 1)
    put = module._Store.put

    def dies(store, first, rows):
        if first >= 6:
            raise KeyboardInterrupt
        put(store, first, rows)

    monkeypatch.setattr(module._Store, "put", dies)
    with pytest.raises(KeyboardInterrupt):
        train_shadows(RECIPE, X[:30], y[:30], X[30:], y[30:], folder=tmp_path)
    monkeypatch.setattr(module._Store, "put", put)
    resumed = train_shadows(RECIPE, X[:30], y[:30], X[30:], y[30:], folder=tmp_path)
    assert resumed.trained == 4
    whole = train_shadows(RECIPE, X[:30], y[:30], X[30:], y[30:])
    assert torch.equal(resumed.differences, whole.differences)
    with pytest.raises(InvalidInput, match="another recipe"):
        train_shadows(RECIPE, X[:29], y[:29], X[30:], y[30:], folder=tmp_path)
    (tmp_path / "shadows.json").write_text(json.dumps({"done": 3}))
    with pytest.raises(InvalidInput, match="damaged"):
        train_shadows(RECIPE, X[:30], y[:30], X[30:], y[30:], folder=tmp_path)


def test_what_does_not_fit_is_refused():
    X, y = data()
    with pytest.raises(WrongShape, match="shadow rows"):
        shadows(RECIPE, X[:30], y[:30], X[30:, 1:], y[30:])
    with pytest.raises(InvalidInput, match="Labels go from 0 to 2"):
        shadows(RECIPE, X[:30], y[:30] + 1, X[30:], y[30:])
    with pytest.raises(InvalidInput, match="precision"):
        shadows(RECIPE, X[:30], y[:30], X[30:], y[30:], precision="int8")  # type: ignore[arg-type]

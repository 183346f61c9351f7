"""Models that train together on parts of the same rows take the steps that each would take alone."""

from dataclasses import replace

import pytest
import torch

import divulge
from divulge.core.errors import InvalidInput
from divulge.training.batched.subsets import supported, train_on_parts


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"widths": [4, 8, 3], "momentum": 0.9, "weight_decay": 1e-3, "batch_size": 16},
        {"widths": [4, 8, 6, 3], "optimiser": "adam", "learning_rate": 1e-2},
        {"widths": [4, 8, 3], "bias": "none", "nesterov": True, "momentum": 0.5},
    ],
)
def test_each_model_equals_the_one_that_trains_alone(options):
    X, y = divulge.datasets.load("iris").train
    recipe = divulge.Recipe(epochs=5, precision="float64", **options)
    parts, seeds = [torch.arange(0, 60), torch.arange(30, 90), torch.arange(1, 120, 2)], [3, 1, 7]
    together = train_on_parts(recipe, X, y, parts, seeds)
    for model, part, seed in zip(together, parts, seeds, strict=True):
        alone = replace(recipe, seed=seed).train(X[part], y[part])
        for own, wanted in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(own, wanted, rtol=0, atol=1e-12)


def test_parts_of_two_lengths_are_refused():
    X, y = divulge.datasets.load("iris").train
    recipe = divulge.Recipe(widths=[4, 8, 3], epochs=1)
    assert supported(recipe)
    with pytest.raises(InvalidInput, match="one length"):
        train_on_parts(recipe, X, y, [torch.arange(10), torch.arange(11)], [0, 1])

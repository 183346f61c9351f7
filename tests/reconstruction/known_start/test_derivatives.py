"""The derivatives of the outputs by a layer's pre-activations."""

from __future__ import annotations

import torch
from torch import nn

from divulge import models
from divulge.reconstruction.known_start.derivatives import derivatives_of, signs


def test_they_are_the_outgoing_weights_where_units_are_on() -> None:
    before, after = (
        models.initialise(nn.Sequential(nn.Linear(5, 40), nn.ReLU(), nn.Linear(40, 2)), seed=seed) for seed in (0, 1)
    )
    derivatives = derivatives_of((before, after), "0", (5,))
    assert derivatives is not None
    X = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    found = derivatives(X)
    assert found.shape == (3, 4, 40)
    for place, model in ((slice(0, 2), before), (slice(2, 4), after)):
        on = (model[0](X) > 0).float()
        torch.testing.assert_close(found[:, place], model[2].weight.detach() * on[:, None])


def test_with_many_outputs_they_say_too_little() -> None:
    model = nn.Sequential(nn.Linear(5, 40), nn.ReLU(), nn.Linear(40, 10))
    assert derivatives_of((model, model), "0", (5,)) is None


def test_behind_an_extractor_the_features_are_the_input() -> None:
    model = models.initialise(
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 50), nn.ReLU(), nn.Linear(50, 2)),
        seed=0,
    )
    derivatives = derivatives_of((model, model), "3", (1, 4, 4))
    assert derivatives is not None
    features = torch.rand(2, 8, generator=torch.Generator().manual_seed(0))
    on = (model[3](features) > 0).float()
    torch.testing.assert_close(derivatives(features)[:, :2], model[5].weight.detach() * on[:, None])


def test_the_sign_of_an_input_follows_from_its_class() -> None:
    model = models.initialise(nn.Sequential(nn.Linear(12, 80), nn.ReLU(), nn.Linear(80, 5)), seed=0)
    draw = torch.Generator().manual_seed(0)
    X, y = torch.randn(20, 12, generator=draw), torch.randint(5, (20,), generator=draw)
    with torch.no_grad():
        wrong = nn.functional.one_hot(y, 5) - model(X).softmax(dim=1)
        A = wrong @ model[2].weight * (model[0](X) > 0)
    given = torch.where(torch.rand(20, generator=draw) < 0.5, -1.0, 1.0)
    found = signs(model, "0", (12,), (X * given[:, None]).double(), (A * given[:, None]).double())
    assert torch.equal(found, given.double())
    assert bool((signs(model[:2], "0", (12,), X.double(), A.double()) == 1).all())  # as many outputs as units

"""Training to a KKT point reaches losses that plain descent does not, and the diagnosis tells how close it is."""

from __future__ import annotations

import pytest
import torch

from divulge.core.errors import AttackFailed, InvalidInput, WrongShape
from divulge.models import MLP
from divulge.models.weight_matrices import Network, read
from divulge.training import diagnose, margin

from ..margin_targets import Target, odd_digits


@pytest.mark.slow
def test_reaches_tiny_losses_in_few_epochs_of_any_depth_and_class_count() -> None:
    X, y, _ = odd_digits(20, seed=1)
    X = X - X.mean(dim=0)
    for widths, labels in (([64, 50, 1], y), ([64, 40, 30, 1], 2 * y - 1), ([64, 50, 3], torch.arange(20) % 3)):
        trained = margin.to_margin(margin.network(widths, seed=1), X, labels, loss=1e-20)
        assert trained.loss < 1e-20
        assert trained.epochs < 2000
        assert diagnose(trained.model, X, labels).accuracy == 1


def test_a_loss_normalised_step_is_a_step_of_plain_gradient_descent() -> None:
    X, y, _ = odd_digits(6, seed=2)
    model = margin.network([64, 9, 1], first_scale=0.1, seed=0)
    stepped = margin.to_margin(model, X, y, loss=1e9, extra_epochs=1).model
    signs = 2.0 * y - 1
    loss = torch.nn.functional.softplus(-signs * model(X)[:, 0]).sum()
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    moves = [(new - old).detach() for new, old in zip(stepped.parameters(), model.parameters(), strict=True)]
    ratios = torch.cat([(-move / gradient)[gradient.abs() > 1e-6].flatten()
                        for move, gradient in zip(moves, gradients, strict=True)])  # fmt: skip
    assert float(ratios.std() / ratios.mean()) < 1e-6


@pytest.mark.slow
def test_the_residual_falls_along_the_way_to_the_kkt_point() -> None:
    X, y, _ = odd_digits(10, seed=3)
    X = X - X.mean(dim=0)
    early = margin.to_margin(margin.network([64, 100, 1], first_scale=1e-3, balanced=True), X, y, loss=0.3)
    late = margin.to_margin(early.model, X, y, loss=1e-6, extra_epochs=1000)
    first, second = (diagnose(t.model, X, y) for t in (early, late))
    assert second.layers[0] < first.layers[0]
    assert late.margin > early.margin
    assert "samples hold its weights up" in second.sentence()


def test_the_diagnosis_solves_the_stationarity_equation() -> None:
    X, y, _ = odd_digits(5, seed=4)
    model = margin.network([64, 30, 1], first_scale=0.1, seed=3)
    told = diagnose(model, X, y)
    signs = 2.0 * y - 1
    rows = []
    for x, sign in zip(X, signs, strict=True):
        gradients = torch.autograd.grad(sign * model(x[None]).sum(), list(model.parameters())[:2])
        rows.append(torch.cat([g.flatten() for g in gradients]))
    theta = torch.cat([p.detach().flatten() for p in list(model.parameters())[:2]])
    left = theta - told.multipliers @ torch.stack(rows)
    assert told.layers[0] == pytest.approx(float(left.norm() / theta.norm()), rel=1e-6)


@pytest.mark.slow
def test_the_diagnosis_does_not_depend_on_how_large_the_weights_are(target: Target) -> None:
    told = diagnose(target.model, target.X, target.y)
    network = read(target.model)
    assert network.biases[0] is not None
    larger = Network((30 * network.weights[0], 30 * network.weights[1]), (30 * network.biases[0], None)).module()
    again = diagnose(larger, target.X, target.y)
    assert again.layers == pytest.approx(told.layers, rel=1e-6)
    assert again.on_margin == told.on_margin


def test_an_untrained_model_is_far_from_a_kkt_point() -> None:
    X, y, _ = odd_digits(20, seed=5)
    assert diagnose(MLP([64, 50, 1], bias="first"), X, y).layers[0] > 0.9


def test_a_balanced_start_has_equal_norms() -> None:
    network = read(margin.network([64, 20, 1], balanced=True))
    assert torch.allclose(network.first().norm(dim=1), network.weights[1][0].abs())
    with pytest.raises(InvalidInput, match="one hidden layer"):
        margin.network([64, 20, 20, 1], balanced=True)


def test_says_what_is_wrong_with_the_data(target: Target) -> None:
    with pytest.raises(WrongShape, match="3 columns"):
        diagnose(target.model, torch.zeros(4, 3), torch.zeros(4))
    with pytest.raises(WrongShape, match="one label for each"):
        diagnose(target.model, target.X, target.y[:2])
    with pytest.raises(InvalidInput, match="-1 and 1"):
        diagnose(target.model, target.X, target.y + 7)
    with pytest.raises(InvalidInput, match="quantities"):
        diagnose(target.model, target.X, target.y + 0.5)
    with pytest.raises(InvalidInput, match="2,000 at most"):
        diagnose(target.model, target.X[:1].expand(2001, -1), target.y[:1].expand(2001))


def test_contradicting_labels_are_said_and_the_model_kept() -> None:
    X = torch.ones(2, 4)
    with pytest.raises(AttackFailed, match="different labels") as raised:
        margin.to_margin(margin.network([4, 5, 1], first_scale=0.1), X, torch.tensor([0, 1]), epochs=30)
    assert raised.value.partial.epochs == 30


def test_training_to_the_margin_is_found_with_the_other_training() -> None:
    from divulge import training

    assert training.to_margin is margin.to_margin

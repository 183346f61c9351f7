"""One hidden ReLU layer is solved from gradients at inputs that nobody chose, and only where they determine it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import divulge
from divulge.extraction import by_training
from divulge.extraction.gradients.rank_one import Space, elements
from divulge.extraction.students import solved_hidden_layer
from divulge.oracles.guards import Rounded, Smoothed

SEEDS = range(3)
STUDENT = {"architecture": "one-hidden", "width": 32}


@pytest.fixture(scope="module")
def digits() -> divulge.datasets.Dataset:
    return divulge.datasets.load("digits")


def trained(digits: divulge.datasets.Dataset, seed: int, *, precision: str = "float32") -> nn.Module:
    recipe = divulge.Recipe(
        widths=[64, 32, 10], loss="cross-entropy", optimiser="adam", learning_rate=1e-2, epochs=15, batch_size=128,
        seed=seed, precision=precision,  # type: ignore[arg-type]
    )  # fmt: skip
    return recipe.train(*digits.train)


def untrained(seed: int) -> nn.Module:
    return divulge.models.build(STUDENT, shape=(64,), outputs=10, seed=seed)


def same_labels(first: nn.Module, second: nn.Module, X: torch.Tensor) -> float:
    with torch.no_grad():
        return float((first(X).argmax(1) == second(X).argmax(1)).double().mean())


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_sixty_gaussian_gradients_rebuild_a_trained_network_exactly(
    digits: divulge.datasets.Dataset, seed: int
) -> None:
    model = trained(digits, seed)
    oracle = divulge.oracle(model, access="gradient")
    stolen = by_training(oracle, STUDENT, "gaussian", queries=60, seed=seed)
    assert stolen.exact, stolen.reason
    assert stolen.verified_points == 6
    assert stolen.queries == 60
    assert stolen.check(oracle, 200) < 1e-4 * stolen.scale
    assert same_labels(stolen.model, model, digits.test.X) > 0.995


@pytest.mark.slow
@pytest.mark.parametrize("output", ["logits", "probabilities", "log-probabilities"])
def test_twenty_pictures_give_every_neuron_that_they_switch_on(digits: divulge.datasets.Dataset, output: str) -> None:
    for seed in SEEDS:
        model = trained(digits, seed)
        oracle = divulge.oracle(model, access="gradient", output=output)
        stolen = by_training(oracle, STUDENT, digits.train.X, queries=20, seed=seed)
        assert not stolen.exact  # no query is left to verify it
        assert "none is left to verify" in stolen.reason
        assert same_labels(stolen.model, model, digits.test.X) > 0.97


@pytest.mark.slow
def test_a_float64_target_is_rebuilt_to_the_last_digits(digits: divulge.datasets.Dataset) -> None:
    model = trained(digits, 0, precision="float64")
    oracle = divulge.oracle(model, access="gradient")
    stolen = by_training(oracle, STUDENT, "gaussian", queries=60)
    assert stolen.exact
    assert stolen.check(oracle, 200) < 1e-9 * stolen.scale


@pytest.mark.slow
@pytest.mark.parametrize("sigmas", [1.0, 1000.0])
def test_smoothed_gradients_tell_every_weight(digits: divulge.datasets.Dataset, sigmas: float) -> None:
    """An average of gates keeps the form; at a thousand sigma only signs and biases are left to the values."""
    model = trained(digits, 1)
    oracle = Smoothed(divulge.oracle(model, access="gradient"), sigmas * float(digits.train.X.std()), samples=10)
    stolen = by_training(oracle, STUDENT, digits.train.X, queries=100)
    assert any("solved" in note for note in stolen.notes)
    assert same_labels(stolen.model, model, digits.test.X) > 0.95
    rows = nn.functional.normalize(stolen.model[0].weight.detach())  # type: ignore[index]
    found = (rows @ nn.functional.normalize(model[0].weight.detach()).T).abs()  # type: ignore[index]
    active = rows.norm(dim=1) > 0
    assert float(found.max(dim=1).values[active].min()) > 0.999


@pytest.mark.slow
@pytest.mark.parametrize("guarded", [False, True])
def test_a_copy_that_is_right_where_it_was_asked_is_not_called_exact(
    digits: divulge.datasets.Dataset, guarded: bool
) -> None:
    for seed in SEEDS:
        plain = divulge.oracle(trained(digits, seed), access="gradient")
        stolen = by_training(Rounded(plain, 4) if guarded else plain, STUDENT, digits.train.X, queries=100, seed=seed)
        assert not stolen.exact or stolen.check(plain, 200) < 1e-3 * stolen.scale


def test_neurons_that_are_always_on_together_become_a_linear_map(digits: divulge.datasets.Dataset) -> None:
    """A softmax regression seen by a student with a hidden layer: all of it is linear, and is copied as such."""
    linear = divulge.models.build("softmax", shape=(64,), outputs=10, seed=5)
    oracle = divulge.oracle(linear, access="gradient")
    stolen = by_training(oracle, STUDENT, digits.train.X, queries=20)
    assert same_labels(stolen.model, linear, digits.test.X) > 0.995


def test_what_the_queries_do_not_determine_is_not_solved(digits: divulge.datasets.Dataset) -> None:
    model = untrained(0)
    student = untrained(7)
    draw = torch.Generator().manual_seed(0)

    def answers(target: nn.Module, n: int) -> divulge.extraction.students.answers.Answers:
        X = torch.randn(n, 64, generator=draw, dtype=torch.float64)
        values, gradients = divulge.oracle(target, access="gradient").gradient(X)
        return divulge.extraction.students.answers.logit_answers(
            X, values.double(), gradients.double(), outputs="logits"
        )

    assert solved_hidden_layer.solve(student, answers(model, 4), draw) is None  # 40 equations
    deeper = divulge.models.build({"architecture": "mlp", "widths": [64, 48, 48, 10]}, seed=1)
    assert solved_hidden_layer.solve(student, answers(deeper, 60), draw) is None  # not of this width
    waisted = divulge.models.build({"architecture": "mlp", "widths": [64, 16, 48, 10]}, seed=1)
    assert solved_hidden_layer.solve(student, answers(waisted, 60), draw) is None  # as narrow, and yet not of this form
    narrow = divulge.models.build("one-hidden", shape=(64,), outputs=10, width=16, seed=1)
    assert solved_hidden_layer.solve(narrow, answers(model, 60), draw) is None
    wide = divulge.models.build("one-hidden", shape=(64,), outputs=10, width=40, seed=1)
    got = solved_hidden_layer.solve(wide, answers(model, 60), draw)
    assert got is not None
    with torch.no_grad():
        X = digits.test.X
        assert float((got(X.double()) - model(X)).abs().max()) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("rounded", [True, False])
def test_planted_rank_one_matrices_are_found_in_a_mixed_basis(rounded: bool) -> None:
    for seed in SEEDS:
        draw = torch.Generator().manual_seed(seed)
        g = torch.rand(24, 20, generator=draw, dtype=torch.float64)
        g = (g > 0.5).double() if rounded else g
        v = torch.randn(24, 6, generator=draw, dtype=torch.float64)
        planted = nn.functional.normalize((g[:, :, None] * v[:, None, :]).flatten(1))
        basis = torch.linalg.qr(planted.T).Q.reshape(20, 6, 24)
        found_g, found_v = elements(Space(basis), 1e-9 if rounded else 1e-6, draw)
        assert len(found_g) == 24
        found = nn.functional.normalize((found_g[:, :, None] * found_v[:, None, :]).flatten(1))
        assert float((found @ planted.T).abs().max(dim=0).values.min()) > 1 - 1e-6


def test_only_plain_students_of_one_hidden_layer_are_solved() -> None:
    assert solved_hidden_layer.fits(untrained(0))
    assert not solved_hidden_layer.fits(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)))
    assert not solved_hidden_layer.fits(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2, bias=False)))
    assert not solved_hidden_layer.fits(nn.Linear(4, 3))

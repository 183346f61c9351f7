"""A recipe trains the same model every time, and what it minimises is what its module says."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from divulge import datasets, models
from divulge.core.errors import EmptyBatch, InvalidInput, NonFiniteInput, UntrustedFile, WrongShape
from divulge.core.optim import Descent
from divulge.core.progress import listening
from divulge.training import Privacy, Recipe, TrainingDiverged, evaluate, labels_of, loss_of


@pytest.fixture(scope="module")
def digits() -> datasets.Dataset:
    return datasets.load("digits").subset(200)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


# -- repeatable -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_size": 32, "momentum": 0.9, "precision": "float64"},
        {"optimiser": "adam", "learning_rate": 0.01, "weight_decay": 1e-3, "activation": "softplus"},
        {"initial_scale": 1e-3, "bias": "first"},
        {"loss": "square", "activation": "tanh", "bias": "none"},
    ],
)
def test_training_twice_gives_the_same_bits(digits: datasets.Dataset, options: dict[str, object]) -> None:
    recipe = Recipe(widths=[64, 16, 10], epochs=5, **options)
    state = torch.get_rng_state()
    first = recipe.train(*digits.train)
    torch.manual_seed(1)  # what others do to the global state must not matter
    again = Recipe(**recipe.as_dict()).train(*digits.train)
    assert torch.equal(weights(first), weights(again))
    assert weights(first).dtype == recipe.dtype
    other = Recipe(widths=[64, 16, 10], epochs=5, seed=1, **options).train(*digits.train)
    assert not torch.equal(weights(first), weights(other))
    torch.set_rng_state(state)


def test_no_global_random_state_is_touched(digits: datasets.Dataset) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    Recipe(widths=[64, 8, 10], epochs=2, batch_size=50).train(*digits.train)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("seed", range(3))
def test_a_float64_run_matches_one_written_by_hand(digits: datasets.Dataset, seed: int) -> None:
    """ELU, cross-entropy, momentum, weight decay and mini-batches, with every derivative written out in numpy."""
    recipe = Recipe(
        widths=[64, 12, 10], activation="elu", learning_rate=0.2, momentum=0.9, weight_decay=1e-3, epochs=6,
        batch_size=64, precision="float64", seed=seed,
    )  # fmt: skip
    X, y = (part.numpy() for part in digits.train)
    X = X.astype(np.float64)
    start = [parameter.detach().numpy().copy() for parameter in recipe.initial_model().parameters()]
    W1, b1, W2, b2 = start
    velocity = [np.zeros_like(part) for part in start]
    for index in recipe.batches(len(X)):
        rows, labels = X[index.numpy()], y[index.numpy()]
        pre = rows @ W1.T + b1
        hidden = np.where(pre > 0, pre, np.expm1(np.minimum(pre, 0)))
        logits = hidden @ W2.T + b2
        shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
        delta = (shifted / shifted.sum(axis=1, keepdims=True) - np.eye(10)[labels]) / len(rows)
        below = (delta @ W2) * np.where(pre > 0, 1.0, hidden + 1)
        gradients = [below.T @ rows, below.sum(axis=0), delta.T @ hidden, delta.sum(axis=0)]
        for place, (parameter, gradient) in enumerate(zip(start, gradients, strict=True)):
            velocity[place] = 0.9 * velocity[place] + gradient + 1e-3 * parameter
            parameter -= 0.2 * velocity[place]
    trained = [parameter.detach().numpy() for parameter in recipe.train(*digits.train).parameters()]
    assert max(np.abs(a - b).max() for a, b in zip(trained, start, strict=True)) < 1e-12


@pytest.mark.parametrize("optimiser", ["sgd", "adam", "adamw", "rmsprop"])
@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.0), (0.5, 0.1)])
def test_the_steps_are_those_of_torch(optimiser: str, momentum: float, decay: float) -> None:
    recipe = Recipe(widths=[3, 2], optimiser=optimiser, momentum=momentum, weight_decay=decay, learning_rate=0.03)
    generator = torch.Generator().manual_seed(0)
    ours, theirs = models.build("mlp", widths=[5, 4, 3], seed=1), models.build("mlp", widths=[5, 4, 3], seed=1)
    descent, reference = recipe.descent(ours.parameters()), recipe.optimiser_for(theirs)
    for _ in range(20):
        descent.clear()
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            mine.grad = torch.randn(mine.shape, generator=generator)
            other.grad = mine.grad.clone()
        descent.step()
        reference.step()
    assert torch.equal(weights(ours), weights(theirs))


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_a_schedule_is_that_of_torch(digits, schedule: str) -> None:
    recipe = Recipe(widths=[64, 10], schedule=schedule, epochs=6, learning_rate=0.5, precision="float64")
    X, y = recipe.prepare(*digits.train)
    theirs = recipe.initial_model()
    optimiser = torch.optim.SGD(theirs.parameters(), lr=0.5)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=6)
    linear = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, total_iters=6)
    if schedule == "cosine":
        optimiser.param_groups[0]["lr"] = 0.5
    for _ in range(6):
        optimiser.zero_grad()
        recipe.loss_of(theirs(X), y).backward()
        optimiser.step()
        (cosine if schedule == "cosine" else linear).step()
    assert (weights(theirs) - weights(recipe.train(*digits.train))).abs().max() < 1e-14


def test_nesterov_without_momentum_is_refused() -> None:
    for options in ({}, {"optimiser": "adam", "momentum": 0.9}):
        with pytest.raises(InvalidInput, match="nesterov"):
            Recipe(widths=[3, 2], nesterov=True, **options)


def test_a_tensor_without_gradient_stays() -> None:
    still = torch.ones(2)
    Descent([still], optimiser="sgd", learning_rate=1.0).step()
    assert still.tolist() == [1, 1]


def test_batches_depend_on_seed_and_size_only() -> None:
    recipe = Recipe(widths=[4, 2], batch_size=4, epochs=3, seed=5)
    batches = list(recipe.batches(10))
    assert [len(batch) for batch in batches] == [4, 4, 2] * 3
    assert recipe.steps(10) == len(batches)
    for epoch in range(3):
        assert sorted(torch.cat(batches[3 * epoch : 3 * epoch + 3]).tolist()) == list(range(10))
    other = Recipe(widths=[9, 9, 2], batch_size=4, epochs=1, seed=5, learning_rate=7.0, optimiser="adam")
    assert all(torch.equal(a, b) for a, b in zip(other.batches(10), batches[:3], strict=True))
    assert not torch.equal(batches[0], batches[3])
    whole = Recipe(widths=[4, 2], epochs=2)
    assert [batch.tolist() for batch in whole.batches(3)] == [[0, 1, 2]] * 2
    assert whole.steps(3) == 2


def test_a_start_replaces_the_initial_model_and_is_not_changed(digits: datasets.Dataset) -> None:
    recipe = Recipe(widths=[64, 10], epochs=2)
    start = recipe.initial_model()
    before = weights(start).clone()
    twice = recipe.train(*digits.train, start=recipe.train(*digits.train, start=start))
    assert torch.equal(weights(start), before)
    four = Recipe(widths=[64, 10], epochs=4).train(*digits.train)
    assert torch.equal(weights(twice), weights(four))  # without momentum, two and two are four


# -- the initial model ------------------------------------------------------------------------------------------------


def test_initial_weights_have_the_promised_spread() -> None:
    model = Recipe(widths=[300, 200, 100, 1], initial_scale=[1e-4, None, 0.5], loss="logistic").initial_model()
    first, second, third = models.weighted_layers(model.requires_grad_(False))
    assert float(first.weight.std()) == pytest.approx(1e-4, rel=0.02)
    assert float(first.bias.std()) == pytest.approx(1e-4, rel=0.2)
    assert float(second.weight.std()) == pytest.approx(1 / math.sqrt(3 * 200), rel=0.02)
    assert float(second.weight.abs().max()) <= 1 / math.sqrt(200)
    assert float(third.weight.std()) == pytest.approx(0.5, rel=0.3)


def test_float32_starts_are_float64_starts_rounded() -> None:
    single = Recipe(widths=[7, 5, 2], seed=9).initial_model()
    double = Recipe(widths=[7, 5, 2], seed=9, precision="float64").initial_model()
    assert torch.equal(weights(single), weights(double).float())


def test_more_scales_than_layers_are_refused() -> None:
    with pytest.raises(InvalidInput, match="3 initial scales but 2 layers"):
        Recipe(widths=[3, 3, 2], initial_scale=[1.0, 1.0, 1.0]).initial_model()


# -- losses -----------------------------------------------------------------------------------------------------------


def test_losses_are_the_formulas_of_the_module() -> None:
    z = torch.tensor([[0.3], [-2.0], [60.0], [-800.0]], dtype=torch.float64)
    y = torch.tensor([1, 0, 0, 1])
    expected = [*torch.log1p(torch.exp(torch.tensor([-0.3, -2.0], dtype=torch.float64))).tolist(), 60.0, 800.0]
    for labels in (y, 2 * y - 1, y.double()):
        assert loss_of("logistic", z, labels, "none").tolist() == pytest.approx(expected, rel=1e-15)
    k = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.tensor([0, 2, 1, 1])
    by_hand = -(k - k.logsumexp(dim=1, keepdim=True))[range(4), labels]
    assert torch.allclose(loss_of("cross-entropy", k, labels, "none"), by_hand, atol=1e-15)
    soft = torch.eye(3, dtype=torch.float64)[labels]
    assert torch.allclose(loss_of("cross-entropy", k, soft, "none"), by_hand, atol=1e-15)
    assert torch.allclose(loss_of("square", k, labels, "none"), (k - soft).square().sum(1) / 2)
    assert torch.allclose(loss_of("square", k, soft), (k - soft).square().sum() / 8)
    assert torch.allclose(loss_of("square", k, soft, "sum"), (k - soft).square().sum() / 2)
    assert loss_of("square", z[:1], torch.tensor([1.3])).item() == pytest.approx(0.5)


def test_losses_run_under_vmap() -> None:
    outputs = torch.randn(5, 4, 1, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([0, 1, 1, 0])
    recipe = Recipe(widths=[2, 1], loss="logistic")
    together = torch.func.vmap(lambda z: recipe.loss_of(z, targets))(outputs)
    assert torch.allclose(together, torch.stack([recipe.loss_of(z, targets) for z in outputs]))


# -- what it learns ---------------------------------------------------------------------------------------------------


def test_digits_are_learnt(digits: datasets.Dataset) -> None:
    data = datasets.load("digits")
    recipe = Recipe(widths=[64, 64, 10], learning_rate=0.1, momentum=0.9, batch_size=64, epochs=15)
    steps = []
    with listening(steps.append):
        model = recipe.train(*data.train)
    assert not model.training
    assert evaluate(model, *data.test).accuracy > 0.93
    assert steps[-1].done == steps[-1].total == recipe.steps(len(data.train.y))


@pytest.mark.slow
def test_a_convolutional_network_takes_flat_rows(digits: datasets.Dataset) -> None:
    architecture = {"architecture": "two-conv", "shape": [1, 8, 8], "filters": [8, 16], "dense": 32}
    recipe = Recipe(architecture=architecture, epochs=20, optimiser="adam", learning_rate=0.01, batch_size=20)
    model = recipe.train(*digits.train)
    assert evaluate(model, *digits.train).accuracy > 0.8


def test_minus_one_and_zero_are_the_same_label(digits: datasets.Dataset) -> None:
    X, y = digits.binary().train
    recipe = Recipe(widths=[64, 8, 1], loss="logistic", epochs=3)
    assert torch.equal(weights(recipe.train(X, y)), weights(recipe.train(X, 2 * y - 1)))
    scored = evaluate(recipe.train(X, y), X, 2 * y - 1)
    assert scored == evaluate(recipe.train(X, y), X, y)


def test_regression_has_a_loss_and_no_accuracy() -> None:
    data = datasets.load("diabetes")
    recipe = Recipe(widths=[10, 1], loss="square", learning_rate=0.1, epochs=500)
    model = recipe.train(data.train.X, data.train.y / 100)
    scored = evaluate(model, data.test.X, data.test.y / 100, loss="square")
    assert scored.accuracy is None
    assert scored.loss < float((data.test.y / 100).var()) / 2


def test_labels_of_outputs() -> None:
    assert labels_of(torch.tensor([[-1.0], [2.0]])).tolist() == [0, 1]
    assert labels_of(torch.tensor([[0.0, 1.0], [3.0, 1.0]])).tolist() == [1, 0]


def test_numpy_arrays_will_do(digits: datasets.Dataset) -> None:
    recipe = Recipe(widths=[64, 10], epochs=2)
    X, y = digits.train
    assert torch.equal(weights(recipe.train(X.numpy(), y.numpy())), weights(recipe.train(X, y)))


def test_a_recipe_with_privacy_trains_privately(digits: datasets.Dataset) -> None:
    options = {"widths": [64, 10], "epochs": 5, "learning_rate": 0.5}
    noise = Privacy(noise_multiplier=0.0, clip=1e6, noise_seed=0)
    plain, unclipped = (Recipe(**options, privacy=privacy).train(*digits.train) for privacy in (None, noise))
    assert torch.allclose(weights(plain), weights(unclipped), atol=1e-5)  # no clipping and no noise change nothing
    private = Recipe(**options, privacy=Privacy(noise_multiplier=1.0, noise_seed=0))
    assert torch.equal(weights(private.train(*digits.train)), weights(private.train(*digits.train)))
    assert not torch.allclose(weights(plain), weights(private.train(*digits.train)), atol=1e-3)
    with pytest.raises(InvalidInput, match="runs on the CPU"):
        private.train(*digits.train, device="cuda")


# -- on disk ----------------------------------------------------------------------------------------------------------


def test_a_saved_recipe_comes_back_equal(tmp_path: Path) -> None:
    recipe = Recipe(
        widths=np.array([4, 3, 2]), initial_scale=(0.1, None), batch_size=np.int64(5), learning_rate=np.float32(0.5),
        privacy=Privacy(noise_multiplier=2.0, clip=0.5, noise_seed=3),
    )  # fmt: skip
    assert recipe.save(tmp_path / "model") == tmp_path / "model" / "recipe.json"
    assert Recipe.load(tmp_path / "model") == recipe
    assert Recipe.load(tmp_path / "model" / "recipe.json").privacy == recipe.privacy


def test_a_recipe_that_names_code_is_refused_unless_trusted(tmp_path: Path) -> None:
    recipe = Recipe(architecture={"architecture": "os:getcwd"})
    recipe.save(tmp_path)
    with pytest.raises(UntrustedFile, match="asks to import and run os:getcwd"):
        Recipe.load(tmp_path)
    assert Recipe.load(tmp_path, trust_code=True) == recipe


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "is not there"),
        ("{", "does not hold a recipe"),
        ("[1]", "does not hold a recipe"),
        ('{"widths": [2, 2], "speed": 3}', "does not hold a recipe"),
        ('{"widths": [2, 2], "epochs": -1}', "epochs is a whole number"),
        ('{"widths": [2, 2], "privacy": {"clip": 1}}', "does not hold a recipe"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused(tmp_path: Path, content: str | None, told: str) -> None:
    path = tmp_path / "recipe.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InvalidInput, match=told):
        Recipe.load(path)


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "either widths"),
        ({"widths": [2, 2], "architecture": "softmax"}, "either widths"),
        ({"widths": [2, 0]}, "a width is a whole number"),
        ({"widths": [2, 2.5]}, "a width is a whole number"),
        ({"widths": [2, 2], "activation": "gelu"}, "activation is one of relu"),
        ({"widths": [2, 2], "loss": "hinge"}, "loss is one of"),
        ({"widths": [2, 2], "bias": "last"}, "bias is one of"),
        ({"widths": [2, 2], "optimiser": "lbfgs"}, "optimiser is one of"),
        ({"widths": [2, 2], "precision": "float16"}, "precision is one of"),
        ({"widths": [2, 2], "learning_rate": 0}, "learning_rate is a number above 0"),
        ({"widths": [2, 2], "learning_rate": math.nan}, "learning_rate"),
        ({"widths": [2, 2], "momentum": -0.1}, "momentum is a number at least 0"),
        ({"widths": [2, 2], "weight_decay": "big"}, "weight_decay"),
        ({"widths": [2, 2], "epochs": 1.5}, "epochs"),
        ({"widths": [2, 2], "batch_size": 0}, "batch_size"),
        ({"widths": [2, 2], "seed": -1}, "seed"),
        ({"widths": [2, 2], "seed": 2**32}, "seed"),
        ({"widths": [2, 2], "initial_scale": 0.0}, "initial_scale"),
        ({"widths": [2, 2], "loss": "logistic"}, "needs one output"),
        ({"widths": [2, 2], "privacy": {"noise_multiplier": -1}}, "noise_multiplier"),
    ],
)
def test_a_recipe_that_makes_no_sense_is_refused(options: dict[str, object], told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        Recipe(**options)


X4 = torch.zeros(4, 3)
Y4 = torch.tensor([0, 1, 0, 1])


@pytest.mark.parametrize(
    ("options", "X", "y", "error", "told"),
    [
        ({"widths": [3, 2]}, torch.zeros(0, 3), torch.zeros(0).long(), EmptyBatch, "no rows"),
        ({"widths": [3, 2]}, torch.zeros(3), torch.zeros(3).long(), WrongShape, "come as"),
        ({"widths": [3, 2]}, X4, Y4[:3], WrongShape, "4 rows but targets of shape"),
        ({"widths": [3, 2]}, X4, torch.tensor(1), WrongShape, "4 rows but targets of shape"),
        ({"widths": [3, 2]}, [["a"]], [0], InvalidInput, "arrays of numbers"),
        ({"widths": [3, 2]}, [[1.0, 2.0], [3.0]], [0, 1], InvalidInput, "arrays of numbers"),
        ({"widths": [3, 2]}, X4 / 0, Y4, NonFiniteInput, "NaN or infinite"),
        ({"widths": [5, 2]}, X4, Y4, WrongShape, r"takes inputs of shape \(5,\)"),
        ({"widths": [3, 2]}, X4, Y4 + 1, InvalidInput, "Labels go from 0 to 1"),
        ({"widths": [3, 2]}, X4, Y4.float(), InvalidInput, "whole-number labels"),
        ({"widths": [3, 1]}, X4, Y4, InvalidInput, "needs an output a class"),
        ({"widths": [3, 2], "loss": "square"}, X4, torch.zeros(4, 3), WrongShape, "do not fit 2 outputs"),
        ({"widths": [3, 1], "loss": "logistic"}, X4, Y4 + 1, InvalidInput, "labels 0 and 1, or -1 and 1"),
        ({"architecture": "softmax", "loss": "logistic"}, torch.zeros(4, 784), Y4, InvalidInput, "the model has 10"),
    ],
)
def test_data_that_does_not_fit_is_refused(
    options: dict[str, object], X: Tensor, y: Tensor, error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        Recipe(**options).train(X, y)


def test_diverging_training_says_so(digits: datasets.Dataset) -> None:
    with pytest.raises(TrainingDiverged, match="rate below 1e"):
        Recipe(widths=[64, 32, 10], learning_rate=1e30, loss="square", epochs=50).train(*digits.train)


def test_a_lone_last_row_is_refused_where_batches_are_normalised(digits: datasets.Dataset) -> None:
    architecture = {"architecture": "resnet18", "shape": [1, 8, 8], "width": 0.03}
    with pytest.raises(InvalidInput, match="leave one row over"):
        Recipe(architecture=architecture, batch_size=199).train(*digits.train)


def test_evaluation_refuses_nothing_and_unequal_lengths() -> None:
    model = Recipe(widths=[3, 2]).initial_model()
    for X, y in ((X4[:0], Y4[:0]), (X4, Y4[:2])):
        with pytest.raises(WrongShape, match="as many targets as rows"):
            evaluate(model, X, y)

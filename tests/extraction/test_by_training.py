"""What learning a copy promises: gradients teach more than values, every way to ask works, bad input is said."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import divulge
from divulge.core.errors import AccessDenied, AttackFailed, BudgetExhausted, InvalidInput, NonFiniteInput, WrongShape
from divulge.extraction import by_training
from divulge.extraction.by_training import Options, gather
from divulge.oracles.guards import Guard, LabelOnly, Rounded, Smoothed

STUDENT = {"architecture": "mlp", "widths": [64, 32, 32, 10]}
"""Two hidden layers, so that it is fitted; one hidden layer is solved, which test_hidden_student.py is about."""
QUICK = 200
SEEDS = range(3)


@pytest.fixture(scope="module")
def digits() -> divulge.datasets.Dataset:
    return divulge.datasets.load("digits")


@pytest.fixture(scope="module")
def target(digits: divulge.datasets.Dataset) -> nn.Module:
    recipe = divulge.Recipe(
        widths=[64, 32, 32, 10],
        loss="cross-entropy",
        optimiser="adam",
        learning_rate=1e-2,
        epochs=25,
        batch_size=128,
        seed=0,
    )
    return recipe.train(*digits.train)


def agreement(copy: nn.Module, target: nn.Module, X: Tensor) -> float:
    with torch.no_grad():
        return float((copy(X).argmax(1) == target(X).argmax(1)).float().mean())


def learned(target: nn.Module, digits: divulge.datasets.Dataset, **options: object) -> float:
    """Agreement on unseen pictures of a copy made from 10 queries."""
    output = options.pop("output", None)
    oracle = divulge.oracle(target, access="gradient", output=output)  # type: ignore[arg-type]
    options = {"queries": 10, "steps": QUICK, **options}
    stolen = by_training(oracle, STUDENT, digits.train.X, **options)  # type: ignore[arg-type]
    assert stolen.queries == options["queries"]
    return agreement(stolen.model, target, digits.test.X)


@pytest.mark.slow
def test_ten_gradients_teach_far_more_than_ten_values(target: nn.Module, digits: divulge.datasets.Dataset) -> None:
    gradients = [learned(target, digits, seed=seed) for seed in SEEDS]
    values = [learned(target, digits, match="values", seed=seed) for seed in SEEDS]
    printed = [learned(target, digits, match="values", method="paper", seed=seed) for seed in SEEDS]
    assert min(gradients) > 0.9
    assert min(gradients) > max(values) + 0.1
    assert min(gradients) > max(printed) + 0.1


@pytest.mark.slow
def test_gradients_alone_are_enough_once_the_values_set_the_level(
    target: nn.Module, digits: divulge.datasets.Dataset
) -> None:
    assert min(learned(target, digits, match="gradients", seed=seed) for seed in SEEDS) > 0.93


@pytest.mark.slow
def test_the_printed_loss_learns_too(target: nn.Module, digits: divulge.datasets.Dataset) -> None:
    assert learned(target, digits, method="paper") > 0.75


@pytest.mark.slow
@pytest.mark.parametrize("output", ["probabilities", "log-probabilities"])
def test_probabilities_tell_as_much_as_logits(target: nn.Module, digits: divulge.datasets.Dataset, output: str) -> None:
    """... and the copy shows what the target shows."""
    oracle = divulge.oracle(target, access="gradient", output=output)
    stolen = by_training(oracle, STUDENT, digits.train.X, queries=10, steps=QUICK)
    assert stolen.facts["target_output"] == output
    assert agreement(stolen.model, target, digits.test.X) > 0.85
    shown = stolen.model(digits.test.X)
    whole = shown.exp() if output == "log-probabilities" else shown
    torch.testing.assert_close(whole.sum(dim=1), torch.ones(len(whole)))


@pytest.mark.parametrize("output", ["logits", "probabilities", "log-probabilities"])
@pytest.mark.parametrize("match", ["gradients", "values"])
def test_the_printed_loss_takes_whatever_is_shown(
    target: nn.Module, digits: divulge.datasets.Dataset, output: str, match: str
) -> None:
    assert learned(target, digits, method="paper", match=match, output=output, steps=20) >= 0


@pytest.mark.slow
def test_the_predicted_class_alone_still_helps(target: nn.Module, digits: divulge.datasets.Dataset) -> None:
    for output in ("logits", "probabilities"):
        values = learned(target, digits, queries=20, match="values", output=output)
        assert learned(target, digits, queries=20, classes="predicted", output=output) > max(0.7, values)


@pytest.mark.slow
def test_smoothed_and_rounded_explanations_leak_as_well(target: nn.Module, digits: divulge.datasets.Dataset) -> None:
    raw = divulge.oracle(target, access="gradient")
    sigma = float(digits.train.X.std())
    for guarded in (Smoothed(raw, sigma / 4, samples=10), Rounded(raw, 2)):
        stolen = by_training(guarded, STUDENT, digits.train.X, queries=20, steps=QUICK)
        assert agreement(stolen.model, target, digits.test.X) > 0.85


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS[:2])
def test_gradients_that_tell_nothing_of_the_values_do_not_mislead(
    target: nn.Module, digits: divulge.datasets.Dataset, seed: int
) -> None:
    """Such as those that SmoothGrad averages over points far away from the query."""

    class Elsewhere(Guard):
        def _gradient(self, X: Tensor) -> tuple[Tensor, Tensor]:
            values, gradients = super()._gradient(X)
            return values, gradients.flip(2)

    oracle = Elsewhere(divulge.oracle(target, access="gradient"))
    led = by_training(oracle, STUDENT, digits.train.X, queries=50, steps=QUICK, seed=seed)
    values = learned(target, digits, queries=50, match="values", seed=seed)
    assert agreement(led.model, target, digits.test.X) > values - 0.1
    assert any("how the values differ" in note for note in led.notes)


@pytest.mark.slow
def test_absolute_gradients_are_recognised_and_still_leak(target: nn.Module, digits: divulge.datasets.Dataset) -> None:
    from divulge.oracles.guards.explained import Explained

    saliency = Explained(divulge.oracle(target, access="gradient"))
    stolen = by_training(saliency, STUDENT, digits.train.X, queries=50, steps=QUICK)
    assert any("absolute" in note for note in stolen.notes)
    assert agreement(stolen.model, target, digits.test.X) > 0.7
    by_training(saliency, STUDENT, digits.train.X, queries=10, steps=5, combinations=2)


@pytest.mark.slow
def test_integrated_gradients_are_recognised_and_undone(target: nn.Module, digits: divulge.datasets.Dataset) -> None:
    """They are the mean gradient on the way from zero, times the input: hidden only where the input is zero."""
    from divulge.oracles.guards.explained import Explained

    oracle = divulge.oracle(target, access="gradient")
    explained = Explained(oracle, "integrated-gradients", steps=20)
    copies = [by_training(one, STUDENT, digits.train.X, queries=20, steps=QUICK) for one in (oracle, explained)]
    raw, undone = (agreement(copy.model, target, digits.test.X) for copy in copies)
    assert any("integrated gradients" in note for note in copies[1].notes)
    assert not any("integrated gradients" in note for note in copies[0].notes)
    assert undone > max(0.85, raw - 0.1)


@pytest.mark.slow
def test_a_linear_layer_is_not_solved_from_gradients_that_are_partly_hidden(digits: divulge.datasets.Dataset) -> None:
    from divulge.oracles.guards.explained import Explained

    linear = divulge.models.build("softmax", shape=(64,), outputs=10, seed=3)
    explained = Explained(divulge.oracle(linear, access="gradient"), "integrated-gradients", steps=5)
    assert not by_training(explained, "softmax", digits.train.X, queries=12, steps=5).exact
    assert by_training(explained, "softmax", "gaussian", queries=12).exact


@pytest.mark.slow
def test_gaussian_inputs_need_no_data(target: nn.Module, digits: divulge.datasets.Dataset) -> None:
    oracle = divulge.oracle(target, access="gradient")
    stolen = by_training(oracle, STUDENT, "gaussian", queries=60, steps=400)
    assert agreement(stolen.model, target, digits.test.X) > 0.85
    assert stolen.facts["held_out_queries"] == 6
    assert stolen.verified_points == 6
    assert not stolen.exact


@pytest.mark.slow
def test_chosen_queries_ensembles_and_self_training_run_and_learn(
    target: nn.Module, digits: divulge.datasets.Dataset
) -> None:
    assert learned(target, digits, choose="k-means", steps=100) > 0.8
    assert learned(target, digits, choose="active", queries=20, steps=100) > 0.75
    assert learned(target, digits, ensemble=2, unlabelled=digits.train.X[:500], steps=100) > 0.8


def test_convolutions_learn_gradients_in_small_batches_and_for_longer_the_more_there_are(
    target: nn.Module, digits: divulge.datasets.Dataset
) -> None:
    oracle = divulge.oracle(target, access="gradient")
    student = {"architecture": "two-conv", "filters": [2, 2], "dense": 4}
    few, many, asked = (
        gather(oracle, student, digits.train.X, options).fitter.settings
        for options in (Options(queries=10), Options(queries=160), Options(queries=160, steps=7, batch_size=5))
    )
    assert few.batch_size == 10
    assert many.batch_size < 160 / 4
    assert many.steps > 2 * few.steps
    assert (asked.steps, asked.batch_size) == (7, 5)


def test_a_copy_says_what_it_misses_of_the_gradients(target: nn.Module, digits: divulge.datasets.Dataset) -> None:
    oracle, X = divulge.oracle(target, access="gradient"), digits.train.X[:10]
    stolen = by_training(oracle, STUDENT, X, steps=50)
    wanted = oracle.gradient(X)[1]
    missed = divulge.oracle(stolen.model, access="gradient").gradient(X)[1] - wanted
    share = float(missed.square().sum() / wanted.square().sum())
    assert stolen.facts["gradient_error_on_queries"] == pytest.approx(share, rel=1e-3)
    assert stolen.facts["gradient_error_on_held_out_queries"] is None


@pytest.mark.slow
def test_another_architecture_learns_too(target: nn.Module, digits: divulge.datasets.Dataset) -> None:
    oracle = divulge.oracle(target, access="gradient")
    student = {"architecture": "two-conv", "filters": [8, 8], "dense": 32}
    stolen = by_training(oracle, student, digits.train.X, queries=40, steps=420, learning_rate=6e-3)
    with torch.no_grad():
        copied = stolen.model(digits.test.X.reshape(-1, 1, 8, 8)).argmax(1)
    assert float((copied == target(digits.test.X).argmax(1)).float().mean()) > 0.7
    assert stolen.check(oracle, 10) > 0


def test_no_student_starts_from_the_weights_that_the_target_started_from(digits: divulge.datasets.Dataset) -> None:
    """A seed shared by target and attack would hand over the initial weights, which no attacker has."""
    for seed in range(4):
        untrained = divulge.models.build("one-hidden", shape=(64,), outputs=10, seed=seed)
        oracle = divulge.oracle(untrained, access="gradient")
        stolen = by_training(oracle, "one-hidden", digits.train.X, queries=10, steps=1, learning_rate=1e-12, seed=seed)
        assert not torch.allclose(stolen.model[0].weight, untrained[0].weight, atol=1e-3)  # type: ignore[index]


def test_the_same_seed_gives_the_same_copy(target: nn.Module, digits: divulge.datasets.Dataset) -> None:
    state = torch.random.get_rng_state()
    oracle = divulge.oracle(target, access="gradient")
    first, second, other = (
        by_training(oracle, STUDENT, digits.train.X, queries=10, steps=5, combinations=1, seed=seed)
        for seed in (0, 0, 1)
    )
    same = zip(first.model.parameters(), second.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in same)
    assert not torch.equal(next(first.model.parameters()), next(other.model.parameters()))
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("output", ["logits", "probabilities", "log-probabilities"])
def test_a_softmax_regression_is_solved_from_one_gradient(digits: divulge.datasets.Dataset, output: str) -> None:
    model = divulge.models.build("softmax", shape=(64,), outputs=10, seed=3, dtype=torch.float64)
    oracle = divulge.oracle(model, access="gradient", output=output)
    stolen = by_training(oracle, "softmax", digits.train.X[:1])
    assert stolen.queries == 1
    assert not stolen.exact  # nothing has verified it
    layer = next(layer for layer in stolen.model.modules() if isinstance(layer, nn.Linear))
    truth = model[0].weight.detach()  # type: ignore[index]
    free = layer.weight.detach() - truth
    free = free - free.mean(dim=0) if output != "logits" else free  # what softmax cannot see
    assert float(free.abs().max()) < 1e-9
    verified = by_training(oracle, "softmax", digits.train.X[:3])
    assert verified.exact
    assert verified.verified_points == 2
    assert verified.check(oracle, 50) < 1e-9


@pytest.mark.slow
def test_a_linear_student_of_another_network_is_fitted(target: nn.Module, digits: divulge.datasets.Dataset) -> None:
    oracle = divulge.oracle(target, access="gradient")
    stolen = by_training(oracle, "softmax", digits.train.X, queries=30, steps=QUICK)
    assert not stolen.exact
    assert agreement(stolen.model, target, digits.test.X) > 0.8


@pytest.mark.slow
def test_a_single_output_is_learned(digits: divulge.datasets.Dataset) -> None:
    """A two-class model with one logit, shown as it is or as a probability."""
    model = divulge.models.build("one-hidden", shape=(64,), outputs=1, width=16, seed=1)
    X = digits.train.X
    shown = nn.Sequential(model, nn.Sigmoid())
    for one in (model, shown):
        oracle = divulge.oracle(one, access="gradient", input_shape=(64,))
        stolen = by_training(oracle, {"architecture": "one-hidden", "width": 16}, X, queries=40, steps=QUICK)
        with torch.no_grad():
            error = (stolen.model(digits.test.X) - one(digits.test.X)).std() / one(digits.test.X).std()
        assert float(error) < 0.3
        by_training(oracle, {"architecture": "one-hidden", "width": 16}, X, queries=5, steps=5, method="paper")
        by_training(oracle, {"architecture": "one-hidden", "width": 16}, X, queries=5, steps=5, classes="predicted")


def test_the_copy_is_saved_and_read_again(target: nn.Module, digits: divulge.datasets.Dataset, tmp_path) -> None:  # type: ignore[no-untyped-def]
    oracle = divulge.oracle(target, access="gradient", output="probabilities")
    stolen = by_training(oracle, STUDENT, digits.train.X, queries=10, steps=5)
    again = divulge.oracle(str(stolen.save(tmp_path)), output="probabilities")
    torch.testing.assert_close(again.value(digits.test.X), stolen.model(digits.test.X).detach())


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_budget_that_ends_keeps_the_copy_learned_so_far(target: nn.Module, digits: divulge.datasets.Dataset) -> None:
    for choose in ("random", "active"):
        oracle = divulge.oracle(target, access="gradient", budget=20)
        with pytest.raises(BudgetExhausted, match="20") as stopped:
            by_training(oracle, STUDENT, digits.train.X, queries=39, choose=choose, steps=QUICK)  # type: ignore[arg-type]
        partial = stopped.value.partial
        assert partial.queries == oracle.ledger.total
        assert 0 < partial.queries <= 20
        assert agreement(partial.model, target, digits.test.X) > 0.8
    with pytest.raises(BudgetExhausted):
        by_training(divulge.oracle(target, access="gradient", budget=0), STUDENT, digits.train.X, queries=20)


def test_gradients_that_are_all_zero_are_said(target: nn.Module, digits: divulge.datasets.Dataset) -> None:
    frozen = divulge.oracle(
        lambda X: target(torch.as_tensor(X, dtype=torch.float32)).detach().double().numpy(),
        access="gradient", input_shape=(64,), gradient=lambda X: torch.zeros(len(X), 10, 64).numpy(),
    )  # fmt: skip
    with pytest.raises(AttackFailed, match="zero") as failed:
        by_training(frozen, STUDENT, digits.train.X, queries=50, steps=50)
    assert failed.value.partial.facts["match"] == "values"


def test_a_student_that_does_not_fit_is_refused(target: nn.Module, digits: divulge.datasets.Dataset) -> None:
    oracle = divulge.oracle(target, access="gradient")
    for student in (nn.Linear(63, 10), nn.Linear(64, 9), {"architecture": "one-hidden", "outputs": 3}):
        with pytest.raises(WrongShape, match="student"):
            by_training(oracle, student, digits.train.X, queries=20)
    broken = nn.Sequential(nn.Linear(64, 5), nn.Linear(6, 10))
    with pytest.raises(WrongShape, match="does not take"):
        by_training(oracle, broken, digits.train.X, queries=20)
    assert oracle.ledger.total == 0


def test_an_oracle_that_shows_too_little_is_refused(target: nn.Module, digits: divulge.datasets.Dataset) -> None:
    labels = LabelOnly(divulge.oracle(target, access="gradient"))
    values = divulge.oracle(target, access="value")
    with pytest.raises(AccessDenied, match="label access"):
        by_training(labels, STUDENT, digits.train.X, queries=20)
    with pytest.raises(AccessDenied, match="values"):
        by_training(values, STUDENT, digits.train.X, queries=20)
    by_training(values, STUDENT, digits.train.X, queries=20, match="values", steps=5)
    assert values.ledger.value == 20


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"queries": 9}, "fewer than"),
        ({"queries": 10_000}, "to choose from"),
        ({"match": "labels"}, "match is one of"),
        ({"method": "other"}, "method is one of"),
        ({"classes": "some"}, "classes is one of"),
        ({"choose": "best"}, "choose is one of"),
        ({"target_output": "odds"}, "target_output is one of"),
        ({"ensemble": 0}, "ensemble is a whole number"),
        ({"steps": -1}, "steps is a whole number"),
        ({"hold_out": 1.0}, "hold_out"),
        ({"target_output": "probabilities", "steps": 1}, "said to show probabilities"),
        ({"target_output": "log-probabilities", "steps": 1}, "said to show log-probabilities"),
        ({"inputs": "uniform"}, "gaussian"),
        ({"inputs": "gaussian", "queries": None}, "queries="),
        ({"steps": 50, "learning_rate": 1e30}, "diverged"),
    ],
)
def test_options_that_make_no_sense_are_said(
    target: nn.Module, digits: divulge.datasets.Dataset, options: dict[str, object], sentence: str
) -> None:
    oracle = divulge.oracle(target, access="gradient")
    inputs = options.pop("inputs", digits.train.X)
    options = {"queries": 20, **options}
    with pytest.raises((InvalidInput, AttackFailed), match=sentence):
        by_training(oracle, STUDENT, inputs, **options)  # type: ignore[arg-type]


def test_inputs_that_are_not_numbers_are_refused(target: nn.Module, digits: divulge.datasets.Dataset) -> None:
    oracle = divulge.oracle(target, access="gradient")
    with pytest.raises(NonFiniteInput):
        by_training(oracle, STUDENT, torch.full((20, 64), torch.nan))
    with pytest.raises(WrongShape):
        by_training(oracle, STUDENT, torch.zeros(20, 65))

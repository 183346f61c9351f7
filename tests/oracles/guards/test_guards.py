"""Guards: what each lets through, that they stack, and that a client's row counts once however many it passes."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

import divulge
from divulge.core.errors import (
    AccessDenied,
    BudgetExhausted,
    InvalidInput,
    NonFiniteAnswer,
    NonFiniteInput,
    TargetError,
)
from divulge.models import MLP
from divulge.oracles.guards import Guard, LabelOnly, Noisy, Rounded, Smoothed, TopK, guard
from divulge.oracles.ledger import Spent

X = torch.randn(40, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def target(access="gradient", budget=None, outputs=4, **options):
    torch.manual_seed(0)
    return divulge.oracle(MLP([6, 12, outputs]).double(), access=access, budget=budget, **options)


# -- Rounded ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("digits", [0, 1, 3, 6])
def test_rounded_shows_so_many_decimals_and_no_more(digits):
    plain, rounded = target(), Rounded(target(), digits)
    for exact, shown in zip(plain.gradient(X), rounded.gradient(X), strict=True):
        assert (exact - shown).abs().max() <= 0.5 * 10.0**-digits + 1e-12
        scaled = shown * 10**digits
        torch.testing.assert_close(scaled, scaled.round(), rtol=0, atol=1e-9)
    assert torch.equal(rounded.value(X), rounded.gradient(X)[0])
    assert torch.equal(rounded.label(X), plain.label(X))
    assert rounded.eps == 10.0**-digits


def test_rounding_finer_than_the_number_format_changes_nothing():
    torch.manual_seed(0)
    single = divulge.oracle(MLP([6, 12, 4]))
    assert torch.equal(Rounded(single, 12).value(X), single.value(X))
    assert Rounded(single, 12).eps == single.eps


# -- Noisy ------------------------------------------------------------------------------------------------------------


def test_noise_has_the_deviation_it_says_on_values_and_gradients():
    plain = target()
    rows = X.repeat(100, 1)
    values, gradients = Noisy(target(), 0.1, seed=3).gradient(rows)
    exact, slopes = plain.gradient(rows)
    for error in (values - exact, gradients - slopes):
        n = error.numel()
        assert abs(float(error.mean())) < 5 * 0.1 / n**0.5
        assert abs(float(error.std()) - 0.1) < 5 * 0.1 / (2 * n) ** 0.5


def test_noise_is_fresh_for_every_question_and_repeated_by_its_seed():
    noisy = Noisy(target(), 0.1, seed=3)
    first, second = noisy.value(X), noisy.value(X)
    assert not torch.equal(first, second)
    again = Noisy(target(), 0.1, seed=3)
    assert torch.equal(again.value(X), first)
    assert not torch.equal(Noisy(target(), 0.1, seed=4).value(X), first)
    with pytest.raises(divulge.core.errors.NotDeterministic):
        noisy.check_deterministic()


def test_labels_are_decided_on_noisy_values():
    wild = Noisy(target(), 100.0).label(X.repeat(50, 1))
    assert torch.bincount(wild, minlength=4).min() > 300
    assert torch.equal(Noisy(target(), 1e-9).label(X), target().label(X))


def test_a_label_only_model_gets_no_noise():
    assert torch.equal(Noisy(target("label"), 100.0).label(X), target().label(X))


def test_noise_keeps_to_the_number_format():
    torch.manual_seed(0)
    values, gradients = Noisy(divulge.oracle(MLP([6, 12, 4]), access="gradient"), 0.1).gradient(X)
    assert values.dtype == gradients.dtype == torch.float32


def test_no_noise_is_no_change():
    assert torch.equal(Noisy(target(), 0.0).value(X), target().value(X))


# -- Smoothed ---------------------------------------------------------------------------------------------------------


def test_smoothgrad_is_the_mean_gradient_around_the_point():
    """For f(x) = x'Ax the mean of the gradient over x + z is the gradient at x, with variance 4 sigma^2 A A' / N."""
    A = torch.diag(torch.arange(1.0, 7.0, dtype=torch.float64))
    oracle = divulge.oracle(lambda rows: (rows @ A * rows).sum(1), input_shape=(6,), access="gradient")
    sigma, samples = 0.5, 64
    values, gradients = Smoothed(oracle, sigma, samples, seed=5).gradient(X)
    exact_values, exact = oracle.gradient(X)
    assert torch.equal(values, exact_values)
    error = (gradients - exact)[:, 0] / (2 * sigma * A.diagonal() / samples**0.5)
    assert abs(float(error.mean())) < 5 / error.numel() ** 0.5
    assert abs(float(error.std()) - 1) < 5 / (2 * error.numel()) ** 0.5


def test_smoothgrad_of_a_linear_model_is_its_gradient():
    oracle = divulge.oracle(nn.Linear(6, 3).double(), access="gradient")
    torch.testing.assert_close(Smoothed(oracle, 2.0, 7).gradient(X), oracle.gradient(X))


def test_one_sample_without_noise_is_the_plain_gradient():
    torch.testing.assert_close(Smoothed(target(), 0.0, 1).gradient(X), target().gradient(X))


def test_smoothgrad_costs_the_client_one_row_and_the_owner_many():
    smoothed = Smoothed(target(budget=40), 0.1, 25)
    smoothed.gradient(X)
    assert smoothed.ledger.snapshot() == Spent(gradient=40)
    assert smoothed.cost == Spent(value=40, gradient=1000)
    with pytest.raises(BudgetExhausted):
        smoothed.gradient(X[:1])


@pytest.mark.parametrize("at_once", [1, 30, 100])
def test_smoothgrad_in_parts_is_the_same_mean(at_once, monkeypatch):
    monkeypatch.setattr("divulge.oracles.guards.smoothed.ROWS_AT_ONCE", at_once)
    oracle = divulge.oracle(nn.Linear(6, 3).double(), access="gradient")
    smoothed = Smoothed(oracle, 1.0, 11)
    torch.testing.assert_close(smoothed.gradient(X), oracle.gradient(X))
    assert smoothed.cost.gradient == 440


def test_a_failure_behind_smoothgrad_costs_the_client_nothing():
    class Failing(Guard):
        def _gradient(self, rows):
            error = TargetError("gone", partial="raw answers")
            error.rows_answered = 999
            raise error

    smoothed = Smoothed(Failing(target()), 0.1, 25)
    with pytest.raises(TargetError) as caught:
        smoothed.gradient(X)
    assert caught.value.partial is None
    assert smoothed.ledger.total == 0


# -- LabelOnly and TopK -----------------------------------------------------------------------------------------------


def test_label_only_answers_labels_only():
    guarded = LabelOnly(target())
    assert torch.equal(guarded.label(X), target().label(X))
    for ask in (guarded.value, guarded.gradient):
        with pytest.raises(AccessDenied):
            ask(X)
    assert guarded.ledger.snapshot() == Spent(label=40)


@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("output", ["logits", "probabilities"])
def test_top_k_shows_the_largest_outputs_and_nothing_of_the_others(k, output):
    plain, top = target(output=output), TopK(target(output=output), k)
    values, gradients = plain.gradient(X)
    shown, slopes = top.gradient(X)
    largest = values.topk(k, dim=1)
    torch.testing.assert_close(shown.gather(1, largest.indices), largest.values)
    assert torch.equal(top.label(X), plain.label(X))
    assert torch.equal(shown.argmax(1), values.argmax(1))
    hidden = torch.ones_like(values, dtype=torch.bool).scatter_(1, largest.indices, False)
    expected = torch.zeros_like(values) if output == "probabilities" else (largest.values[:, -1:] - 1).expand_as(values)
    assert torch.equal(shown[hidden], expected[hidden])
    assert slopes[hidden].eq(0).all()
    assert torch.equal(slopes[~hidden], gradients[~hidden])
    assert torch.equal(top.value(X), shown)


# -- all of them ------------------------------------------------------------------------------------------------------

EVERY = ["round:3", "noise:0.01", "smoothgrad:0.1:5", "label", "top:2", "noise:0.01,round:3,top:2", "saliency"]


@pytest.mark.parametrize("text", EVERY)
def test_a_row_counts_once_however_many_guards_it_passes(text):
    oracle = target("weights", budget=100)
    guarded = guard(text)(oracle)
    asked = 0
    for kind in ("label", "value", "gradient"):
        if guarded.allows(kind):
            getattr(guarded, kind)(X[:10])
            asked += 10
            assert getattr(guarded.ledger, kind) == 10
    assert guarded.ledger is oracle.ledger
    assert guarded.ledger.total == asked
    assert guarded.cost.total >= asked
    with pytest.raises(BudgetExhausted):
        guarded.label(torch.zeros(101 - asked, 6))
    with pytest.raises(AccessDenied):
        guarded.weights()


@pytest.mark.parametrize("text", EVERY)
def test_guards_refuse_bad_rows_like_any_oracle(text):
    guarded = guard(text)(target())
    with pytest.raises(NonFiniteInput):
        guarded.label([[float("nan")] * 6])
    assert guarded.ledger.total == 0


@pytest.mark.parametrize("text", ["round:3", "noise:0.01", "smoothgrad:0.1:5", "top:2"])
def test_a_model_that_answers_nan_is_found_behind_a_guard(text):
    model = MLP([6, 12, 4])
    with torch.no_grad():
        model[2].bias[0] = torch.nan
    guarded = guard(text)(divulge.oracle(model, access="gradient"))
    for ask in (guarded.value, guarded.gradient, guarded.label):
        with pytest.raises(NonFiniteAnswer):
            ask(X)


def test_the_order_of_guards_is_the_order_of_their_names():
    text_made = guard("noise:0.1,round:2", seed=7)(target())
    by_hand = Rounded(Noisy(target(), 0.1, seed=7), 2)
    assert torch.equal(text_made.value(X), by_hand.value(X))
    assert isinstance(text_made, Rounded)
    assert isinstance(text_made.oracle, Noisy)
    assert text_made.eps == 0.1


def test_a_stack_costs_its_owner_what_the_model_computed():
    stack = Rounded(Smoothed(Noisy(target(), 0.1), 0.1, 5), 3)
    stack.gradient(X)
    assert stack.cost == Spent(value=40, gradient=200)
    assert stack.ledger.total == 40


def test_guards_count_exactly_with_many_threads():
    guarded = guard("noise:0.1,round:2")(target(budget=2000))
    failures = []

    def ask():
        try:
            while True:
                guarded.value(X[:3])
        except BudgetExhausted:
            failures.append(1)

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(failures) == 6
    assert guarded.ledger.total == 1998
    assert guarded.cost.value == 1998


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no guard ''"),
        ("blur:3", "'blur:3'"),
        ("round", "'round'"),
        ("round:2:3", "'round:2:3'"),
        ("round:two", "numbers"),
        ("round:-1", "0 to 16"),
        ("noise:-1", "zero or more"),
        ("noise:nan", "zero or more"),
        ("smoothgrad:1:0", "at least one"),
        ("smoothgrad:inf", "zero or more"),
        ("top:0", "between 1"),
        ("top:5", "between 1"),
        ("label:1", "'label:1'"),
        ("round:2,", "no guard ''"),
        ("saliency:absolute", "'saliency:absolute'"),
        ("integrated-gradients:0", "at least one"),
    ],
)
def test_a_guard_that_makes_no_sense_says_what_would(text, words):
    with pytest.raises(InvalidInput, match=words):
        guard(text)(target())


def test_a_guard_stands_in_front_of_an_oracle():
    with pytest.raises(InvalidInput, match="Linear"):
        Rounded(nn.Linear(2, 1), 3)


def test_a_plain_guard_passes_everything_on():
    torch.testing.assert_close(Guard(target()).gradient(X), target().gradient(X))
    assert torch.equal(Guard(target()).value(X), target().value(X))


# -- where noise comes from -------------------------------------------------------------------------------------------


def test_without_a_seed_the_noise_comes_from_a_secret_source_and_is_gaussian():
    rows = X.repeat(200, 1)
    first, second = Noisy(target(), 0.1, seed=None), Noisy(target(), 0.1, seed=None)
    assert first.secret
    errors = [(guard.value(rows) - target().value(rows)) / 0.1 for guard in (first, second)]
    assert not torch.equal(*errors)
    for error in errors:
        n = error.numel()
        assert abs(float(error.mean())) < 5 / n**0.5
        assert abs(float(error.std()) - 1) < 5 / (2 * n) ** 0.5
        assert abs(float((error.abs() < 1.959964).double().mean()) - 0.95) < 5 * (0.05 * 0.95 / n) ** 0.5


def test_fixed_noise_is_the_same_for_the_same_input_and_not_for_another():
    guarded = Noisy(target(), 0.1, seed=None, fixed=True)
    values, gradients = guarded.gradient(X)
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(0))
    assert torch.equal(guarded.value(X), values)
    assert torch.equal(guarded.value(X[order]), values[order])  # whatever rows it comes with
    assert torch.equal(guarded.gradient(X[order])[1], gradients[order])
    assert torch.equal(guarded.label(X), values.argmax(1))
    repeated = torch.stack([guarded.value(X[:1]) for _ in range(20)]).mean(0)
    torch.testing.assert_close(repeated, values[:1], rtol=0, atol=1e-12)  # asking again averages nothing away
    noise = values - target().value(X)
    assert len(noise.unique()) == noise.numel()
    assert not torch.equal(Noisy(target(), 0.1, seed=None, fixed=True).value(X), values)


def test_fixed_noise_with_a_seed_is_repeatable_and_treats_both_zeros_alike():
    first, second = (Noisy(target(), 0.1, seed=7, fixed=True) for _ in range(2))
    assert torch.equal(first.value(X), second.value(X))
    assert not torch.equal(first.value(X), Noisy(target(), 0.1, seed=8, fixed=True).value(X))
    zero = torch.zeros(1, 6, dtype=torch.float64)
    assert torch.equal(first.value(zero), first.value(-zero))


def test_fixed_noise_by_name():
    guarded = guard("noise:0.1:fixed", seed=None)(target())
    assert guarded.fixed
    assert torch.equal(guarded.value(X), guarded.value(X))
    with pytest.raises(InvalidInput, match=r"noise:SIGMA\[:fixed\]"):
        guard("noise:0.1:frozen")

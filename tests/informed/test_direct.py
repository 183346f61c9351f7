"""Inverting training gives back the unknown row, and says so when it cannot."""

from __future__ import annotations

import pytest
import torch
from sklearn.datasets import load_digits

import divulge
from divulge import Recipe
from divulge.core import progress
from divulge.core.errors import AttackFailed, InvalidInput, NonFiniteInput, WrongShape
from divulge.informed import NotReproduced
from divulge.informed.inversion.doubled_rows import DoubledRows
from divulge.informed.inversion.label_guess import LabelGuess
from divulge.informed.inversion.training_function import training_function
from divulge.informed.released_view import released_view

DIGITS, DIGIT = load_digits(return_X_y=True)
X = torch.tensor(DIGITS / 16, dtype=torch.float32)
y = torch.tensor(DIGIT)
KNOWN = slice(0, 120)
RECIPE = Recipe(widths=[64, 8, 10], activation="elu", learning_rate=0.2, momentum=0.9, epochs=30, seed=3)


def released(recipe, rows):
    return [
        recipe.train(torch.cat([X[KNOWN], X[row : row + 1]]), torch.cat([y[KNOWN], y[row : row + 1]])) for row in rows
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"activation": "tanh"}, {"batch_size": 40, "epochs": 10}, {"widths": [64, 8, 8, 10]}]
)
def test_the_unknown_rows_come_back(options):
    recipe = Recipe(**{**RECIPE.as_dict(), "architecture": None, **options})
    rows = range(300, 306)
    records = divulge.informed.direct(recipe, released(recipe, rows), X[KNOWN], y[KNOWN], labels=y[300:306])
    errors = torch.tensor([record.error(X[row]) for record, row in zip(records, rows, strict=True)])
    assert errors.median() <= 1e-5
    trusted = [record.error(X[row]) for record, row in zip(records, rows, strict=True) if record.trusted]
    assert len(trusted) >= 4
    assert max(trusted) <= 0.02
    assert all(record.training_runs <= 115 for record in records)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"activation": "relu"}, {"batch_size": 40, "epochs": 20}])
def test_a_right_record_is_trusted_though_some_is_left_unexplained(options):
    recipe = Recipe(**{**RECIPE.as_dict(), "architecture": None, **options})
    rows = range(720, 728)
    records = divulge.informed.direct(recipe, released(recipe, rows), X[KNOWN], y[KNOWN], labels=y[720:728], runs=40)
    errors = [record.error(X[row]) for record, row in zip(records, rows, strict=True)]
    right = [record for record, error in zip(records, errors, strict=True) if error < 0.005]
    assert len(right) >= 4
    assert sum(record.trusted for record in right) >= 0.7 * len(right)
    assert any(record.facts["misfit"] > 0.05 for record in right)
    assert all(error < 0.02 for record, error in zip(records, errors, strict=True) if record.trusted)


@pytest.mark.slow
def test_a_row_under_a_wrong_label_is_never_trusted():
    rows = range(720, 726)
    wrong = (y[720:726] + 1) % 10
    records = divulge.informed.direct(RECIPE, released(RECIPE, rows), X[KNOWN], y[KNOWN], labels=wrong, runs=30)
    assert not any(record.trusted for record in records)
    assert all("no reconstruction" in r.reason for r in records)


@pytest.mark.slow
def test_labels_are_found():
    rows = range(310, 320)
    records = divulge.informed.direct(RECIPE, released(RECIPE, rows), X[KNOWN], y[KNOWN], runs=30)
    assert sum(record.y == int(y[row]) for record, row in zip(records, rows, strict=True)) >= 8


@pytest.mark.slow
def test_a_wrong_label_is_left_where_it_does_not_explain_the_model(monkeypatch):
    def wrong(self, target):
        ranked = self.similarity(target).argsort(dim=1, descending=True)
        return ranked[:, 1], torch.zeros_like(ranked, dtype=torch.bool)

    monkeypatch.setattr(LabelGuess, "candidates", wrong)
    rows = range(310, 320)
    records = divulge.informed.direct(RECIPE, released(RECIPE, rows), X[KNOWN], y[KNOWN], runs=60)
    assert sum(record.y == int(y[row]) for record, row in zip(records, rows, strict=True)) >= 8
    assert all(record.y == int(y[row]) for record, row in zip(records, rows, strict=True) if record.trusted)


@pytest.mark.slow
def test_a_first_layer_of_a_single_unit_gives_up_label_and_row():
    recipe = Recipe(**{**RECIPE.as_dict(), "architecture": None, "widths": [64, 1, 10], "seed": 7})
    rows = range(400, 412)
    records = divulge.informed.direct(recipe, released(recipe, rows), X[KNOWN], y[KNOWN], runs=150)
    nearest = [float((X[KNOWN] - X[row]).square().mean(dim=1).min()) for row in rows]
    right = [record.y == int(y[row]) for record, row in zip(records, rows, strict=True)]
    closer = [
        record.error(X[row]) < 0.5 * near for record, row, near in zip(records, rows, nearest, strict=True)
    ]  # fmt: skip
    assert sum(right) >= 11
    assert sum(closer) >= 9
    assert sum(record.trusted for record in records) >= 8
    assert all(good and found for record, good, found in zip(records, closer, right, strict=True) if record.trusted)


def test_the_doubled_rows_whose_effects_are_nearest_are_found():
    recipe = Recipe(**{**RECIPE.as_dict(), "architecture": None, "widths": [64, 1, 10]})
    training = training_function(recipe, X[KNOWN], y[KNOWN], dtype=torch.float32)
    view = released_view(recipe, training.reference)
    doubled = DoubledRows.of(training, view, X[KNOWN], y[KNOWN], torch.eye(10))
    target = training.train(X[7:9], torch.eye(10)[y[7:9]])  # as if rows 7 and 8 stood there twice
    found = doubled.nearest(target, y[7:9])
    for place, row in enumerate((7, 8)):
        own = X[KNOWN][y[KNOWN] == y[row]]
        effects = training.train(own, torch.eye(10)[y[row]].expand(len(own), -1))
        near = (effects - target[place]).norm(dim=1).argsort()[:5]
        assert (found[place] - own[near].mean(dim=0)).abs().max() <= 1e-6


@pytest.mark.slow
def test_a_short_search_with_a_single_unit_expects_what_it_left():
    recipe = Recipe(**{**RECIPE.as_dict(), "architecture": None, "widths": [64, 1, 10], "seed": 8})
    rows = range(420, 432)
    records = divulge.informed.direct(recipe, released(recipe, rows), X[KNOWN], y[KNOWN], runs=20)
    errors = [record.error(X[row]) for record, row in zip(records, rows, strict=True)]
    far = [record.facts["misfit"] > 0.01 for record in records]
    assert any(far)
    assert not any(record.trusted for record, open_ in zip(records, far, strict=True) if open_)
    assert all(error < 0.012 for record, error in zip(records, errors, strict=True) if record.trusted)


@pytest.mark.slow
def test_one_model_gives_one_record_and_a_start_can_be_given():
    model = released(RECIPE, [330])[0]
    record = divulge.informed.direct(RECIPE, model, X[KNOWN], y[KNOWN], labels=[int(y[330])], start=X[330:331], runs=6)
    assert record.error(X[330]) <= 1e-8
    noisy = divulge.informed.direct(RECIPE, model, X[KNOWN], y[KNOWN], labels=[int(y[330])], start="noise", runs=90)
    again = divulge.informed.direct(RECIPE, model, X[KNOWN], y[KNOWN], labels=[int(y[330])], start=record, runs=6)
    mean = divulge.informed.direct(RECIPE, model, X[KNOWN], y[KNOWN], labels=[int(y[330])], start="mean", runs=90)
    assert again.error(X[330]) <= 1e-8
    assert max(noisy.facts["misfit"], mean.facts["misfit"]) < 0.5


@pytest.mark.slow
def test_logits_on_probes_are_enough():
    rows = range(300, 304)
    models = released(RECIPE, rows)
    records = divulge.informed.direct(
        RECIPE, models, X[KNOWN], y[KNOWN], access="logits", probes=X[400:500], labels=y[300:304]
    )
    errors = torch.tensor([record.error(X[row]) for record, row in zip(records, rows, strict=True)])
    guess = torch.stack([(X[KNOWN][y[KNOWN] == y[row]].mean(dim=0) - X[row]).square().mean() for row in rows])
    assert errors.median() <= 0.1 * guess.median()
    oracle = divulge.oracle(models[0], access="value", budget=100)
    one = divulge.informed.direct(RECIPE, oracle, X[KNOWN], y[KNOWN], access="logits", probes=X[400:500], runs=12)
    assert oracle.ledger.value == 100
    assert one.y == int(y[300])


@pytest.mark.slow
def test_it_can_be_stopped_at_every_training_step():
    class TimeUp(Exception):
        pass

    ticks = 0

    def watch():
        nonlocal ticks
        ticks += 1
        if ticks == 750:
            raise TimeUp

    model = released(RECIPE, [330])[0]
    with progress.watched(watch), pytest.raises(TimeUp):
        divulge.informed.direct(RECIPE, model, X[KNOWN], y[KNOWN], labels=[int(y[330])], runs=30)


@pytest.mark.slow
def test_noisy_weights_still_beat_the_class_mean():
    model = released(RECIPE, [340])[0]
    generator = torch.Generator().manual_seed(0)
    weights = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    noisy = weights + 3e-3 * torch.randn(weights.shape, generator=generator)
    label = int(y[340])
    record = divulge.informed.direct(RECIPE, noisy, X[KNOWN], y[KNOWN], labels=[label], noise=3e-3, runs=24)
    guess = X[KNOWN][y[KNOWN] == label].mean(dim=0)
    assert record.error(X[340]) < 0.5 * float((guess - X[340]).square().mean())
    with pytest.raises(InvalidInput, match="positive standard deviation"):
        divulge.informed.direct(RECIPE, noisy, X[KNOWN], y[KNOWN], labels=[label], noise=0.0)


@pytest.mark.slow
def test_a_guess_at_a_privately_trained_model_is_not_trusted():
    rows, labels = X[:24], y[:24]
    private = Recipe(**{**RECIPE.as_dict(), "privacy": {"noise_multiplier": 3.0, "clip": 1.0, "noise_seed": 3}})
    model = private.train(rows, labels)
    unknown = Recipe(**{**RECIPE.as_dict(), "privacy": {"noise_multiplier": 3.0, "clip": 1.0}})
    record = divulge.informed.direct(unknown, model, rows[:-1], labels[:-1], labels=[int(labels[-1])], runs=6)
    assert not record.trusted
    assert "no reconstruction" in record.reason


class TestBadInput:
    def test_another_seed_is_noticed(self):
        other = released(Recipe(**{**RECIPE.as_dict(), "seed": 4}), [300])[0]
        with pytest.raises(NotReproduced, match="initial weights"):
            divulge.informed.direct(RECIPE, other, X[KNOWN], y[KNOWN])

    @pytest.mark.slow
    def test_a_hard_record_is_not_mistaken_for_a_wrong_recipe(self):
        for row in (300, 311):
            wrong = (y[row] + 3) % 10
            model = RECIPE.train(torch.cat([X[KNOWN], X[row : row + 1]]), torch.cat([y[KNOWN], wrong[None]]))
            record = divulge.informed.direct(RECIPE, model, X[KNOWN], y[KNOWN], labels=[int(wrong)], runs=8)
            assert record.y == int(wrong)

    def test_an_unknown_shuffling_seed_is_noticed(self):
        recipe = Recipe(**{**RECIPE.as_dict(), "batch_size": 40, "epochs": 10})
        start = recipe.initial_model()
        other = Recipe(**{**recipe.as_dict(), "seed": 4})
        model = other.train(torch.cat([X[KNOWN], X[300:301]]), torch.cat([y[KNOWN], y[300:301]]), start=start)
        with pytest.raises(NotReproduced, match="shuffling"):
            divulge.informed.direct(recipe, model, X[KNOWN], y[KNOWN], initial=start, runs=12)

    def test_a_known_set_that_holds_the_target(self):
        with pytest.raises(AttackFailed, match="already contains the target"):
            divulge.informed.direct(RECIPE, RECIPE.train(X[KNOWN], y[KNOWN]), X[KNOWN], y[KNOWN])

    @pytest.mark.slow
    def test_copies_are_noted(self):
        rows = torch.cat([X[KNOWN], X[5:6]])
        labels = torch.cat([y[KNOWN], y[5:6]])
        model = RECIPE.train(torch.cat([rows, X[300:301]]), torch.cat([labels, y[300:301]]))
        record = divulge.informed.direct(RECIPE, model, rows, labels, runs=8)
        assert any("copies of others" in note for note in record.notes)

    @pytest.mark.slow
    def test_sentences(self):
        model = released(RECIPE, [300])[0]
        known = X[KNOWN], y[KNOWN]
        with pytest.raises(WrongShape, match="another architecture"):
            divulge.informed.direct(RECIPE, torch.zeros(7), *known)
        weights = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
        with pytest.raises(NonFiniteInput):
            divulge.informed.direct(RECIPE, weights * float("nan"), *known)
        with pytest.raises(InvalidInput, match="access is"):
            divulge.informed.direct(RECIPE, model, *known, access="labels")
        with pytest.raises(InvalidInput, match="no released model"):
            divulge.informed.direct(RECIPE, [], *known)
        with pytest.raises(InvalidInput, match="Labels go from 0 to 9"):
            divulge.informed.direct(RECIPE, model, X[KNOWN], y[KNOWN] + 1)
        with pytest.raises(InvalidInput, match="No known row has the label"):
            divulge.informed.direct(RECIPE, model, *known, labels=[12])
        with pytest.raises(WrongShape, match="1 released models but 2 labels"):
            divulge.informed.direct(RECIPE, model, *known, labels=[1, 2])
        with pytest.raises(InvalidInput, match="start is"):
            divulge.informed.direct(RECIPE, model, *known, labels=[1], start="zeros")
        with pytest.raises(WrongShape, match="rows to start from"):
            divulge.informed.direct(RECIPE, model, *known, labels=[1], start=X[:2])
        with pytest.raises(WrongShape, match="64 features"):
            divulge.informed.direct(RECIPE, model, X[KNOWN, :60], y[KNOWN])
        square = Recipe(widths=[64, 4, 1], loss="square", epochs=2)
        with pytest.raises(InvalidInput, match="closed form"):
            divulge.informed.direct(square, square.initial_model(), X[KNOWN], y[KNOWN].float())

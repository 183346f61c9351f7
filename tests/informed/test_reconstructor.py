"""Reconstructors learned from shadow models beat what the adversary held anyway, and the baselines say by how much."""

from __future__ import annotations

import sys

import pytest
import torch
from sklearn.datasets import load_digits

import divulge
from divulge import Recipe
from divulge.core.errors import InvalidInput, NonFiniteInput, WrongShape
from divulge.informed import NotReproduced, shadows
from divulge.informed.reconstructor import ErrorCalibration
from divulge.informed.shadow_models import reconstructor_network
from divulge.informed.shadow_models import ridge as ridge_module

DIGITS, DIGIT = load_digits(return_X_y=True)
X = torch.tensor(DIGITS / 16, dtype=torch.float32)
y = torch.tensor(DIGIT)
RECIPE = Recipe(widths=[64, 8, 10], activation="elu", learning_rate=0.2, momentum=0.9, epochs=40, seed=3)
KNOWN, SHADOW, TARGET = slice(0, 100), slice(100, 1500), range(1500, 1530)


@pytest.fixture(scope="module")
def models():
    return divulge.informed.shadows(RECIPE, X[KNOWN], y[KNOWN], X[SHADOW], y[SHADOW])


@pytest.fixture(scope="module")
def ridge(models):
    return attack(models)


@pytest.fixture(scope="module")
def logits(models):
    return attack(models, access="logits", probes=100)


@pytest.fixture(scope="module")
def released():
    return [
        RECIPE.train(torch.cat([X[KNOWN], X[row : row + 1]]), torch.cat([y[KNOWN], y[row : row + 1]])) for row in TARGET
    ]


def attack(models, **options):
    return divulge.informed.reconstructor(RECIPE, X[KNOWN], y[KNOWN], X[SHADOW], y[SHADOW], models=models, **options)


def scored(found, released, **options):
    records = found(released)
    held = torch.cat([X[KNOWN], X[SHADOW]]), torch.cat([y[KNOWN], y[SHADOW]])
    return records, divulge.informed.score(records, X[list(TARGET)], y[list(TARGET)], *held, **options)


@pytest.mark.slow
def test_ridge_rebuilds_what_no_held_row_shows(ridge, released):
    records, score = scored(ridge, released, shape=(1, 8, 8), classifier=released[0])
    assert score.mse.median() < 0.5 * score.baselines.nearest.median()
    assert score.label_accuracy >= 0.9
    assert score.beats_nearest >= 0.8
    assert score.ssim is not None
    assert score.ssim.median() > 0.8
    assert score.kl is not None
    assert records[0].training_runs == 1404
    assert ridge(released[4]).x.sub(records[4].x).abs().max() <= 1e-4
    assert set(score.as_dict()) >= {"mean_mse", "mean_ssim", "mean_kl", "nearest", "class_mean", "percentiles"}


@pytest.mark.slow
@pytest.mark.parametrize("found", ["ridge", "logits"])
def test_it_knows_how_far_off_it_is(request, released, found):
    records, score = scored(request.getfixturevalue(found), released)
    ratio = torch.tensor([record.predicted_error for record in records]) / score.mse
    assert 1 / 3 <= float(ratio.median()) <= 3
    assert float(((ratio > 0.1) & (ratio < 10)).float().mean()) >= 0.8
    nearest = score.baselines.nearest
    wrong = [r.trusted != bool(e < n) for r, e, n in zip(records, score.mse, nearest, strict=True)]
    assert sum(wrong) <= 6
    assert all(record.trusted or "unexplained" in record.reason for record in records)


@pytest.mark.slow
def test_shadow_rows_of_another_kind_are_noticed(released):
    order = torch.randperm(64, generator=torch.Generator().manual_seed(5))
    strange = 1 - X[100:500][:, order]
    found = divulge.informed.reconstructor(RECIPE, X[KNOWN], y[KNOWN], strange, y[100:500])
    records, score = scored(found, released)
    assert score.mse.median() > score.baselines.nearest.median()
    trusted = [e < n for r, e, n in zip(records, score.mse, score.baselines.nearest, strict=True) if r.trusted]
    assert len(trusted) <= 3
    assert all(trusted)


def test_a_misfit_beyond_those_seen_is_taken_for_the_worst():
    truth, rows = torch.zeros(3, 4), torch.tensor([[1.0], [2.0], [1.0]]) * torch.ones(3, 4)
    calibration = ErrorCalibration.of(rows, truth, torch.tensor([1.0, 2.0, 0.5]), torch.tensor([2.0, 9.0, 0.5]))
    assert (calibration.usual, calibration.worst, calibration.reach) == (1.0, 4.0, 2.0)
    assert calibration.wrong == 0.25  # of the last, whose nearest known row is closer than it
    expected = calibration.error(torch.ones(2, 4), torch.tensor([2.0, 2.5]))
    assert torch.equal(expected, torch.tensor([1 * 4.0, 4 * 6.25]))


@pytest.mark.slow
def test_training_with_the_record_corrects_it(models, ridge, released, monkeypatch):
    corrected = scored(ridge, released)[1].mse
    monkeypatch.setattr(sys.modules["divulge.informed.reconstructor"], "_CORRECTIONS", 0)
    assert corrected.mean() < 0.8 * scored(attack(models), released)[1].mse.mean()


@pytest.mark.slow
def test_more_shadow_models_help(models, released):
    few, many = (scored(attack(models.subset(n)), released)[1].mse.mean() for n in (300, 1400))
    assert many < few


@pytest.mark.slow
def test_one_layer_and_black_box_access(models, logits, released):
    _, layer = scored(attack(models, layers=[1]), released)
    _, shown = scored(logits, released)
    assert layer.mse.mean() < layer.baselines.class_mean.mean()
    assert shown.mse.mean() < shown.baselines.class_mean.mean()
    black = attack(models, access="logits", probes=X[:50])
    oracle = divulge.oracle(released[0], access="value", budget=50)
    assert black(oracle).error(X[1500]) == pytest.approx(black(released[0]).error(X[1500]), abs=1e-6)
    assert oracle.ledger.value == 50
    assert black(lambda rows: released[0](rows)).y == black(oracle.__class__ and released[0]).y


@pytest.mark.slow
def test_the_papers_network(models, released):
    printed = attack(models.subset(1000), method="paper", epochs=12)
    records, score = scored(printed, released)
    assert records[0].method == "paper"
    assert score.mse.median() < score.baselines.class_mean.median()
    tuned = attack(models.subset(200), method="paper", epochs=2, tune=printed)
    scratch = attack(models.subset(200), method="paper", epochs=2)
    assert scored(tuned, released)[1].mse.mean() < scored(scratch, released)[1].mse.mean()
    half = scored(attack(models.subset(1000), method="paper", epochs=12, precision="bfloat16"), released)[1]
    assert half.mse.mean() == pytest.approx(float(score.mse.mean()), rel=0.1)
    assert not torch.equal(half.mse, score.mse)


@pytest.mark.slow
def test_our_network_starts_from_ridge_and_is_no_worse(models, ridge, released, monkeypatch):
    monkeypatch.setattr(sys.modules["divulge.informed.reconstructor"], "_CORRECTIONS", 0)
    read = scored(ridge, released)[1].mse.mean()
    for epochs in (1, 20):
        found = attack(models, method="network", epochs=epochs)
        assert scored(found, released)[1].mse.mean() <= 1.05 * read
    tuned = attack(models.subset(200), method="network", epochs=1, tune=found)
    assert torch.equal(tuned.network.directions, found.network.directions)


def test_rows_left_out_are_rebuilt_as_a_map_learned_without_them_would():
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(20, 30, generator=generator)
    rows, labels = features[:, :4] + 0.1, torch.arange(20) % 2
    learned = ridge_module.fit(features, features, rows, labels)
    others = torch.arange(20) != 6
    without = ridge_module.fit(features[others], features[others], rows[others], labels[others])
    expected = without.rows(features[6:7], torch.tensor([0]))[0]
    # both take their mean and penalty from the rows they have, which differ by the one
    assert (learned.left_out[6] - expected).norm() <= 0.3 * (expected - rows[6]).norm()
    assert (learned.left_out[6] - rows[6]).norm() > 2 * (learned.rows(features, labels)[6] - rows[6]).norm()


@pytest.mark.slow
def test_a_picture_of_it(ridge, released, tmp_path):
    records, score = scored(ridge, released)
    held = torch.cat([X[KNOWN], X[SHADOW]])
    path = divulge.informed.picture(
        records, X[list(TARGET)], held, score.baselines.neighbour, tmp_path / "a" / "p.png", shape=(1, 8, 8)
    )
    assert path.stat().st_size > 1000


@pytest.mark.slow
def test_bad_input(models, ridge):
    other = Recipe(**{**RECIPE.as_dict(), "seed": 4}).train(X[KNOWN], y[KNOWN])
    with pytest.raises(NotReproduced, match="in a like direction"):
        ridge(other)
    with pytest.raises(WrongShape, match="another architecture"):
        ridge(torch.zeros(9))
    with pytest.raises(NonFiniteInput):
        ridge(torch.full((602,), float("nan")) if len(models.reference) == 602 else models.reference * float("nan"))
    with pytest.raises(InvalidInput, match="method is"):
        attack(models, method="forest")
    with pytest.raises(InvalidInput, match="layers are numbers"):
        attack(models, layers=[5])
    with pytest.raises(InvalidInput, match="no released model"):
        ridge([])
    with pytest.raises(InvalidInput, match="at least two"):
        attack(models.subset(1))
    with pytest.raises(InvalidInput, match="positive number"):
        attack(models, access="logits", probes=0)
    with pytest.raises(WrongShape, match="Probe rows"):
        attack(models, access="logits", probes=X[:5, :9])
    with pytest.raises(InvalidInput, match="Black-box"):
        attack(models, access="logits", probes=5)(3)
    with pytest.raises(InvalidInput, match="reconstructions"):
        divulge.informed.score([], X[:2], y[:2], X, y)
    with pytest.raises(WrongShape, match="compared"):
        divulge.informed.baseline_errors(X[:2], y[:2], X[:, :3], y)


@pytest.mark.slow
def test_convolutional_models_get_the_transposed_convolutions():
    spec = {"architecture": "balle-cnn", "shape": [1, 12, 12], "outputs": 3}
    recipe = Recipe(architecture=spec, epochs=2, learning_rate=0.05)
    generator = torch.Generator().manual_seed(2)
    rows, labels = torch.rand(24, 144, generator=generator), torch.arange(24) % 3
    data = recipe, rows[:8], labels[:8], rows[8:], labels[8:]
    models = shadows(*data)
    losses = []
    for epochs in (1, 12):
        attack = divulge.informed.reconstructor(*data, models=models, method="paper", epochs=epochs)
        assert any(isinstance(layer, torch.nn.ConvTranspose2d) for layer in attack.network.network)
        losses.append(attack.network.loss)
    assert losses[1] < losses[0]
    assert attack(recipe.train(rows[:9], labels[:9])).x.shape == (144,)


def test_a_weight_that_moved_in_no_shadow_model_does_not_blow_the_network_up():
    generator = torch.Generator().manual_seed(3)
    features, rows = torch.randn(40, 6, generator=generator), torch.rand(40, 4, generator=generator)
    features[:, 2] = 0
    learned = reconstructor_network.fit(features, rows, epochs=2, width=8)
    moved = features.clone()
    moved[:, 2] = 1e-3
    assert torch.equal(learned.rows(moved), learned.rows(features))

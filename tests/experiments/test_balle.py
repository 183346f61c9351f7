"""The informed experiments run and are tabulated, here on scikit-learn's digits in the corner of a MNIST picture."""

from __future__ import annotations

import json

import pytest
import torch
from experiments.papers import balle, balle_lines, balle_networks, balle_pictures, balle_unknown_start
from experiments.plan import Plan
from sklearn.datasets import load_digits

DIGITS, DIGIT = load_digits(return_X_y=True)


@pytest.fixture
def lab(tmp_path, monkeypatch):
    pictures = torch.zeros(len(DIGITS), 28, 28)
    pictures[:, 4:12, 4:12] = torch.tensor(DIGITS / 16, dtype=torch.float32).reshape(-1, 8, 8)

    def rows(self, first, count):
        index = (torch.arange(first, first + min(count, 60)) * 7) % len(DIGITS)
        return pictures[index].flatten(1), torch.tensor(DIGIT)[index]

    monkeypatch.setattr(balle.Lab, "rows", rows)
    monkeypatch.setitem(balle.DEFAULT, "epochs", 8)
    return balle.Lab(tmp_path, False, 0)


@pytest.mark.slow
def test_a_line_of_the_table(lab):
    known = balle.direct_line(lab, balle.Factor("known", 0.0094, targets=2, runs=24))
    unknown = balle.direct_line(lab, balle.Factor("unknown", 0.0695, targets=1, unknown="start"))
    assert known["mean_mse"] < known["class_mean"]
    assert "initial weights" in unknown["refused"]
    text = balle.table({"direct: known": known, "direct: unknown": unknown})
    assert "| direct: known | 0.0094 |" in text
    assert "refused" in text


@pytest.mark.slow
def test_the_curve_of_the_reconstructors_goes_on_where_it_was(lab, monkeypatch):
    monkeypatch.setattr(balle_networks, "COUNTS", {False: (20, 40), True: (20, 40)})
    monkeypatch.setattr(balle_networks, "PRINTED", {False: (40,), True: (40,)})
    monkeypatch.setattr(balle_networks.kept, "target", lambda name: lab.recipe().initial_model())
    learn = balle_networks.informed.reconstructor
    asked = []

    def few_epochs(*data, method, **options):
        asked.append(method)
        return learn(*data, method=method, epochs=2, **options)

    monkeypatch.setattr(balle_networks.informed, "reconstructor", few_epochs)
    points = balle_networks.curve(lab)["curve"]
    expected = ["ridge, 20", "network, 20", "ridge, 40", "network, 40", "paper, 40"]
    assert list(points) == expected
    assert all(point["mean_mse"] > 0 and point["mean_kl"] >= 0 for point in points.values())
    assert points["ridge, 20"]["nearest"] == points["paper, 40"]["nearest"]  # all are held against the same digits
    balle_networks.curve(lab)
    assert len(asked) == 5
    assert (lab.out / "figure5.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_goes_on_where_it_was(lab, monkeypatch):
    done = []
    monkeypatch.setattr(balle, "FACTORS", (balle.Factor("one", None),))
    monkeypatch.setattr(balle, "LINES", (balle.Factor("one", None),))
    monkeypatch.setattr(balle_pictures, "LINES", (balle_pictures.PictureLine("one", None),))
    monkeypatch.setattr(balle, "_pictures", lambda lab, count, known=50: (lab, lab, lab, lab))
    for name in ("shadow_curve", "from_shadows"):
        monkeypatch.setattr(balle, name, lambda lab, activation, name=name: done.append(name) or {"curve": {}})
    others = (
        "black_box", "cifar", "cifar_network", "gradient_norms", "other_distribution", "direct_line", "zero_gradients",
    )  # fmt: skip
    modules = (
        (balle, others), (balle_networks, ("curve", "carried_over", "metrics")), (balle_lines, ("line",)),
        (balle_pictures, ("picture_line",)), (balle_unknown_start, ("unknown_start", "membership_beside")),
    )  # fmt: skip
    for module, names in modules:
        for name in names:
            monkeypatch.setattr(module, name, lambda lab, *more, name=name: done.append(name) or {"spearman": 0.0})
    judged = {
        "mean_mse": 0.5, "median_mse": 0.5, "nearest": 1.0, "trusted": 1, "trusted_and_wrong": 0, "training_runs": 9.0,
        "predicted_within_3x": 1, "targets": {"mse": [0.5]},
    }  # fmt: skip
    monkeypatch.setattr(balle, "direct_line", lambda *more: done.append("direct_line") or judged)
    balle.run(Plan(lab.out))
    assert "| direct: one |  | 0.5 |" in (lab.out / "table.md").read_text()
    first = len(done)
    balle.run(Plan(lab.out))
    assert len(done) == first == 18
    assert len(json.loads((lab.out / "results.json").read_text())) == 18

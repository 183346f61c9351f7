"""``divulge reproduce balle-dp`` in small, on the bundled digits blown up to 28 x 28."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch
from experiments.papers import balle_dp

from divulge import datasets
from divulge.datasets import Dataset, Rows


def _digits() -> Dataset:
    digits = datasets.load("digits")

    def larger(rows: Rows) -> Rows:
        pictures = torch.nn.functional.interpolate(rows.X.view(-1, 1, 8, 8), size=(28, 28), mode="bilinear")
        return Rows(pictures.flatten(1), rows.y)

    return Dataset("digits", larger(digits.train), larger(digits.test), (1, 28, 28))


@pytest.mark.slow
def test_measured_success_stays_below_the_bounds_and_the_files_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(balle_dp, "EPSILONS", (1.0, 1e4, math.inf))
    study = dataclasses.replace(balle_dp.MNIST, fixed=40, shadows=120, targets=12, noisy_shadows=80)
    result = balle_dp.measure(study, _digits(), tmp_path, models=tmp_path / "models", seed=0)
    assert json.loads((tmp_path / "results.json").read_text()) == json.loads(json.dumps(result))
    private, weak, none = result["points"]
    assert none["epsilon"] == "inf"
    assert none["mean_mse"] < weak["mean_mse"] < private["mean_mse"]
    assert none["mean_mse"] < result["class_mean"] < private["mean_mse"]
    assert weak["mean_mse"] < weak["ridge_mean_mse"]
    assert private["test_accuracy"] < none["test_accuracy"]
    for point in result["points"]:
        for got in point["success"].values():
            low, high = got["interval"]
            assert low <= got["share"] <= high
            assert all(low <= bound <= 1 for bound in got["bounds"].values())
    for name in ("errors.png", "pictures.png", "success-0.01.png", "success-0.02.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "table.md").read_text().count("\n") == 4 + len(result["points"])

"""divulge reproduce jayaram, on small pictures and few networks: the same steps, files and figures as with MNIST."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from experiments.papers import jayaram as experiment
from experiments.plan import Plan
from sklearn.datasets import load_digits

from divulge import datasets
from divulge.datasets import Dataset, Rows


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Digits blown up to MNIST's size stand in for it, and two networks for nine."""
    pictures = torch.from_numpy(load_digits().images / 16.0).float()
    grown = torch.nn.functional.interpolate(pictures[:, None], size=(28, 28)).reshape(-1, 784)
    rows = Rows(grown, torch.from_numpy(load_digits().target))
    stand_in = Dataset(name="digits", stored_train=rows, stored_test=rows, shape=(1, 28, 28))
    monkeypatch.setattr(datasets, "load", lambda name: stand_in)
    monkeypatch.setattr(experiment, "THIN", ((3, 3),))
    monkeypatch.setattr(experiment, "NETWORKS", 2)
    monkeypatch.setattr(experiment, "REALISTIC", ((40, 30, 20, 10),))
    monkeypatch.setattr(experiment, "DIGITS", {False: (20, 2), True: (20, 2)})


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_the_experiment_writes_every_point_table_and_figure(tmp_path: Path) -> None:
    result = experiment.run(Plan(tmp_path, seed=0))
    assert json.loads((tmp_path / "results.json").read_text())["figures"].keys() == {"1", "2", "3"}
    for name in ("figure1.png", "figure2.png", "figure2-trained.png", "figure1-projected.png", "figure3.png"):
        assert (tmp_path / name).stat().st_size > 5000
    assert "samples to rank 80" in (tmp_path / "tables.md").read_text()
    wide = [curve for curve in result["figures"]["2"] if "random network, " in curve["way"]]
    thin = {curve["way"]: curve for curve in result["figures"]["1"]}
    assert len(thin["trained on MNIST, Gaussian points"]["test_accuracy"]) == 2
    for way in ("random network, Gaussian points", "random network with a ReLU at its output, Gaussian points"):
        counted = thin[way]["gradients_not_zero"]
        assert thin[way]["rank_is_their_number"]
        assert thin[way]["final_ranks_float64"] == [min(80, count) for count in counted]
    assert min(thin["random network with a ReLU at its output, Gaussian points"]["gradients_not_zero"]) < 160
    assert all(rank == 80 for curve in wide for rank in curve["final_ranks_float64"])
    assert all(found["rank"] == 80 for found in result["recovery"] if found["network"] == "random")
    unbounded = result["figures"]["3"]["noise of 10 times the norm"]
    assert unbounded["labels_kept"] == unbounded["rows"] == 20
    assert unbounded["output_change_largest"] < 1e-5


def test_a_relu_at_the_output_hides_part_of_the_span_of_a_thin_network() -> None:
    def rank(seed: int, *, last_relu: bool) -> int:
        gradients = experiment._gradients(experiment._random((6,), seed, last_relu=last_relu), 100, seed)
        return int(torch.linalg.matrix_rank(gradients, rtol=experiment.PAPER))

    reached = [[rank(seed, last_relu=last) for seed in range(4)] for last in (False, True)]
    assert reached[0] == [80] * 4
    assert max(reached[1]) < 80


def test_the_rank_of_every_prefix_is_counted() -> None:
    rows = torch.tensor([[1.0, 0, 0], [2.0, 0, 0], [0, 1e-7, 0], [0, 0, 3.0]], dtype=torch.float64)
    assert experiment._ranks(rows, 1e-5, 1e-12) == [[1, 1, 1, 2], [1, 1, 2, 3]]
    assert experiment._ranks(torch.zeros(2, 3, dtype=torch.float64), 1e-5) == [[0, 0]]

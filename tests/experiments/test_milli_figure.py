"""Figure 1 of Milli et al. 2019: what is drawn are the hyperplanes of the target and of the copy."""

from __future__ import annotations

from pathlib import Path

import torch
from experiments.papers import milli_figure


def test_the_lines_of_the_copy_lie_on_those_of_the_target(tmp_path: Path) -> None:
    found = milli_figure.draw(tmp_path, seed=1)
    assert found["exact"]
    assert found["hyperplanes"] == found["rebuilt"] == milli_figure.HIDDEN
    assert found["farthest"] < 1e-9
    assert (tmp_path / "figure-1-cells.png").read_bytes()[:4] == b"\x89PNG"


def test_a_line_is_where_its_neuron_switches() -> None:
    weight, bias = torch.tensor([[3.0, 4.0]]), torch.tensor([10.0])
    line = milli_figure._lines(weight, bias)[0]
    for x, y in milli_figure._ends(line).T:
        assert abs(3 * x + 4 * y + 10) < 1e-5

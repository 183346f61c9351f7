"""Figure 5 of Milli et al. 2019: what a smoothed map tells of its picture."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from experiments.papers import milli_saliency

from divulge import models


def test_maps_of_much_noise_tell_nothing_of_their_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(milli_saliency, "SIGMAS", (0.01, 1000.0))
    model = models.build("two-conv", shape=(1, 8, 8), filters=(3, 4), dense=6, seed=1)
    X = torch.rand(5, 64, generator=torch.Generator().manual_seed(0))
    little, much = milli_saliency.draw(model, X, 1.0, tmp_path)
    assert little["same picture"] > 0.95 > little["other picture"]
    assert abs(much["same picture"] - much["other picture"]) < 0.05
    assert (tmp_path / "figure-5.png").read_bytes()[:4] == b"\x89PNG"


def test_a_draw_is_compared_with_another_of_the_same_output() -> None:
    maps = torch.eye(6)[:4].reshape(2, 2, 6)
    own, other = milli_saliency.alike(maps, maps)
    assert own == pytest.approx(1.0)
    assert other == pytest.approx(-0.2)

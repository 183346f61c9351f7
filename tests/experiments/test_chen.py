"""The worst case, reproduced in small: every kind of network, the printed algorithm beside ours, the files written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from experiments.papers import chen
from experiments.plan import Plan


@pytest.mark.slow
def test_clusters_and_bumps_are_learned_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chen, "SIZES", ((10, 20),))
    monkeypatch.setattr(chen, "BUMPS", (0.3,))
    monkeypatch.setattr(chen, "GRIDS", (256,))
    monkeypatch.setattr(chen, "PRINTED", ({"method": "paper", "width": 20, "tau": 20.0, "grid": 600},))
    result = chen.run(Plan(tmp_path, seed=4))
    ours = [row for row in result["networks"] if row["method"] != "paper"]
    assert {row["kind"] for row in ours} == {"random", "clusters", "bumps"}
    assert max(row["error"] for row in ours) < 1e-6
    assert max(row["queries_per_kd"] for row in ours) < 50
    assert [row["method"] for row in result["networks"]].count("paper") == len(chen.KINDS)
    assert json.loads((tmp_path / "chen.json").read_text())["seed"] == 4
    assert "clusters of spread 1e-06" in (tmp_path / "chen.md").read_text()
    assert (tmp_path / "chen.png").stat().st_size > 1000

"""The chain on scikit-learn's digits, over a live server, and how its rows are summed up."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from experiments.papers import chain

from divulge.models import MLP


@pytest.mark.slow
def test_values_over_http_become_training_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "BATCHES", 1)
    row = chain.one_set(chain.Case("digits", 8, 40), 0, picture=tmp_path / "pairs.png")
    assert row["exact"]
    assert row["width"] == 40
    assert row["worst_error"] < 1e-6
    assert row["copy"]["found"] >= 3
    assert row["copy"]["found"] >= 0.9 * row["weights"]["found"] - 1
    assert (tmp_path / "pairs.png").is_file()
    told = chain.means([row])[row["case"]]
    assert told["copy"] == row["copy"]["found"]
    assert f"| {row['queries']:,} |" in chain.table({"rows": [row], "means": chain.means([row])})


def test_what_cannot_be_read_is_a_zero_with_a_reason() -> None:
    torch.manual_seed(0)
    X = torch.rand(6, 64, dtype=torch.float64)
    told = chain.rebuilt(MLP([64, 20, 1], bias="first").double(), X, X, X[0], known=True, seed=0)
    assert told["found"] == 0
    assert "give n" in told["why"]


def test_means_are_taken_case_by_case() -> None:
    def row(case: str, found: int) -> dict[str, object]:
        way = {"found": found, "unseen_above": 1}
        return {"case": case, "seconds": 2.0, "copy": way, "weights": way, "mean_unknown": way}

    told = chain.means([row("a", 3), row("a", 5), row("b", 1)])
    assert (told["a"]["copy"], told["b"]["copy"]) == (4, 1)

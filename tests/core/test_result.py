"""Every attack's result says whether it succeeded, what it cost and why not, and can be kept and looked at."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

import divulge
from divulge.core.result import AttackResult, Spent
from divulge.extraction import Approximation, Extraction
from divulge.informed import Membership, Record
from divulge.reconstruction import Reconstruction
from divulge.span import Obfuscation, Span

HOSTILE = "<script>alert('x')</script>\x1b[31m"


@dataclasses.dataclass(frozen=True)
class Guess(AttackResult):
    x: torch.Tensor
    y: np.ndarray
    name: str = ""

    def as_dict(self):
        return super().as_dict() | {"name": self.name, "size": len(self.x)}


def guess(**more) -> Guess:
    return Guess(torch.arange(3.0), np.ones(2), method="paper", seed=3, ledger=Spent(value=5, gradient=2), **more)


@pytest.mark.parametrize("result", [Extraction, Approximation, Span, Obfuscation, Reconstruction, Record, Membership])
def test_every_attack_returns_one_kind_of_result(result):
    assert issubclass(result, AttackResult)
    names = {field.name for field in dataclasses.fields(result)}
    assert names >= {"method", "seed", "seconds", "ledger", "reason", "notes", "facts"}
    assert isinstance(result.success, property)


def test_what_every_result_says_about_itself():
    told = guess(notes=("one",), facts={"misfit": 0.5}).as_dict()
    assert told["success"] is True
    assert told["queries"] == {"value": 5, "gradient": 2, "label": 0, "total": 7, "requests": 0}
    assert (told["method"], told["seed"], told["notes"], told["facts"]) == ("paper", 3, ["one"], {"misfit": 0.5})
    assert guess().queries == 7
    assert not guess(reason="It did not fit.").success


def test_a_result_is_kept_as_arrays_and_strict_json(tmp_path):
    folder = guess(facts={"gap": float("inf")}).save(tmp_path / "new")
    assert sorted(path.name for path in folder.iterdir()) == ["arrays.npz", "result.json"]
    with np.load(folder / "arrays.npz") as arrays:
        assert arrays["x"].tolist() == [0.0, 1.0, 2.0]
        assert arrays["y"].tolist() == [1.0, 1.0]
    kept = json.loads((folder / "result.json").read_text(), parse_constant=pytest.fail)
    assert kept["facts"] == {"gap": None}


def test_a_notebook_shows_a_small_escaped_table():
    page = guess(name=HOSTILE, reason=HOSTILE * 100, notes=(HOSTILE,) * 50)._repr_html_()
    assert "<script" not in page
    assert "\x1b" not in page
    assert "&lt;script&gt;" in page
    assert "did not succeed" in page
    assert "5 value, 2 gradient" in page
    assert len(page) < 8_000


def test_results_of_real_attacks_are_shown_and_kept(tmp_path):
    model = divulge.models.build("mlp", widths=[4, 3, 1], seed=0, dtype=torch.float64)
    stolen = divulge.extraction.from_gradients(divulge.oracle(model, access="gradient"), seed=0)
    assert stolen.success
    stolen.save(tmp_path)
    assert json.loads((tmp_path / "result.json").read_text())["exact"] is True
    assert divulge.models.load(tmp_path) is not None
    span = divulge.span.from_gradients(divulge.oracle(model, access="gradient"))
    assert span.success == span.complete
    span.save(tmp_path / "span")
    assert divulge.span.load(tmp_path / "span").rank == span.rank
    for result in (stolen, span):
        page = result._repr_html_()
        assert f"{type(result).__name__}: succeeded" in page
        assert len(page) < 8_000

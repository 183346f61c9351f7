"""Every result becomes strict JSON."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from divulge.core.json import dumps, plain


@dataclass
class Pair:
    left: float
    right: torch.Tensor


class Finding:
    def as_dict(self) -> dict[str, object]:
        return {"rate": np.float32(0.25), "worst": math.nan}


def test_every_kind_of_value_becomes_one_of_json():
    mixed = {
        1: np.array([1.0, np.inf]), "pair": Pair(math.nan, torch.tensor([[1, 2]])), "finding": Finding(),
        "flag": np.bool_(True), "path": Path("a/b"), "many": (1, {2}), "none": None, "number": np.float64(0.1),
    }  # fmt: skip
    assert plain(mixed) == {
        "1": [1.0, None], "pair": {"left": None, "right": [[1, 2]]}, "finding": {"rate": 0.25, "worst": None},
        "flag": True, "path": "a/b", "many": [1, [2]], "none": None, "number": 0.1,
    }  # fmt: skip
    assert type(plain(np.float64(0.1))) is float


def test_text_is_what_every_reader_of_json_accepts():
    assert json.loads(dumps({"low": -math.inf, "text": "é"})) == {"low": None, "text": "é"}

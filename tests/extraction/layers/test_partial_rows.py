"""What the comparison of kinks takes is bounded, whatever a target shows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from divulge.extraction.layers.accuracy import Accuracy
from divulge.extraction.layers.known_layers import KnownLayers
from divulge.extraction.layers.partial_rows import MOST_COMPARED, PartialRows


def rows_of(kinks: int) -> PartialRows:
    rng = np.random.default_rng(0)
    normal, place = rng.normal(size=(kinks, 2)), rng.normal(size=(kinks, 2))
    data = SimpleNamespace(
        normal=normal, weight=np.ones(kinks), Y=place, kink=place, kinked=np.ones(kinks, bool),
        gradient=normal[:, None], error=np.zeros(kinks),
    )  # fmt: skip
    survey: Any = SimpleNamespace(data=data, space=SimpleNamespace(accuracy=Accuracy()))
    return PartialRows(survey, KnownLayers(2), np.ones(kinks, bool))


def test_every_kink_is_compared_where_there_are_few() -> None:
    assert rows_of(100).index.tolist() == list(range(100))
    assert len(rows_of(MOST_COMPARED).index) == MOST_COMPARED


def test_of_very_many_kinks_an_even_share_is_compared() -> None:
    rows = rows_of(10 * MOST_COMPARED)  # all of them would take 7 GB an array
    assert MOST_COMPARED / 2 <= len(rows.index) <= MOST_COMPARED
    assert len(np.unique(np.diff(rows.index))) == 1
    assert len(rows.row) == len(rows.index)

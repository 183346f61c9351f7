"""Which of several copies that are not exact is returned."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from divulge.extraction.layers.attempts import Attempt, best_of


def attempt(name: str, unseen: int) -> Attempt:
    copy: Any = name
    verification: Any = SimpleNamespace(scale=1.0)
    return Attempt(copy, verification, f"{name} is not exact", unseen, 0)


def test_the_copy_that_is_wrong_on_fewest_rows_is_the_best_and_then_the_one_with_fewest_open_weights():
    wrong = {"far off": 300, "nearly right": 2, "right": 0, "right too": 0, "right at last": 0, "worse again": 40}
    attempts = [
        attempt(name, unseen) for name, unseen in zip(wrong, [0, 0, 4, 3, 3, 0], strict=True)
    ]  # fmt: skip

    def count(copy: Any, scale: float) -> int:
        return wrong[copy]

    best = best_of(attempts, count)
    assert best is attempts[4]
    assert best_of(attempts[:2], count) is attempts[1]
    assert best_of([], count) is None

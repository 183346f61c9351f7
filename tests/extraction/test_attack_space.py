"""What exact attacks keep of the rows that they asked."""

from __future__ import annotations

import pytest
import torch

import divulge
from divulge.extraction import attack_space
from divulge.extraction.attack_space import Recorder
from divulge.models import MLP


def test_answers_count_towards_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attack_space, "KEPT_NUMBERS", 20_000)
    recorder = Recorder(divulge.oracle(MLP([3, 2, 100]), access="value"), seed=0)
    for _ in range(10):
        recorder.value(torch.randn(200, 3))
    rows, answers = recorder.answers()
    assert recorder.asked == 2000
    assert len(rows) == len(answers) > 50
    assert rows.numel() + answers.numel() < 1.5 * 20_000  # which rows are kept is a matter of chance
    recorder.value(torch.randn(20_000, 3))  # more than is kept, at once
    rows, answers = recorder.answers()
    assert 0 < rows.numel() + answers.numel() < 1.5 * 20_000

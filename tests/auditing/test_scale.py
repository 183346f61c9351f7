"""What is large or slow is opened once and asked little: audits of large models keep their time and memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from divulge.auditing.opening import _affordable_lines, _timed, open_target
from divulge.auditing.options import AuditOptions
from divulge.auditing.probes.learned_copy import MOST, _counts, pool_of
from divulge.auditing.students import StudentPlan, grid_of
from divulge.auditing.target import EXAMPLES
from divulge.core.validation import checked_rows
from divulge.oracles import Oracle


class Slow(Oracle):
    """Rows one after the other, by a clock of the test's own."""

    def __init__(self, clock: list[float], row: float, call: float) -> None:
        super().__init__(input_dim=2, output_dim=1)
        self.clock, self.row, self.call = clock, row, call

    def _value(self, X: torch.Tensor) -> torch.Tensor:
        self.clock[0] += self.call + self.row * len(X)
        return X[:, :1]


def test_an_oracle_of_a_network_is_renewed_with_a_ledger_of_its_own_and_without_a_copy():
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    target = open_target(model, None, AuditOptions(budget=100))
    first, second = target.oracle("value"), target.oracle("value")
    first.value(torch.zeros(3, 5))
    assert (first.ledger.value, second.ledger.value, second.ledger.budget) == (3, 0, 100)
    assert first._module is second._module is not model
    assert target.oracles[-2:] == [first, second]


def test_a_large_table_is_neither_copied_nor_asked_for_whole():
    X = np.random.default_rng(0).standard_normal((120_000, 3))
    assert np.shares_memory(checked_rows(X).numpy(), X)
    X.flags.writeable = False
    assert not np.shares_memory(checked_rows(X).numpy(), X)
    target = open_target(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), None, AuditOptions(unseen=X))
    assert EXAMPLES <= len(target.example_inputs) < 2 * EXAMPLES
    pool, judges, _ = pool_of(target)
    assert len(pool) == MOST == _counts(target, len(pool), "value")[-1]
    assert len(judges) == 1000


def test_finite_rows_whose_sum_overflows_are_finite():
    assert checked_rows([[1e308, 1e308, 1e308]]).shape == (1, 3)


def test_the_pace_of_a_model_that_answers_row_by_row_is_that_of_a_row(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("divulge.auditing.opening.time.perf_counter", lambda: clock[0])
    rows = torch.zeros(8, 2, dtype=torch.float64)
    assert _timed(Slow(clock, row=0.1, call=0.0), rows)[1] == pytest.approx(0.1)
    assert _timed(Slow(clock, row=1e-6, call=0.064), rows)[1] < 0.0011  # a batch costs as much as a row


def test_a_slow_model_is_asked_less_to_learn_its_kind_and_to_judge():
    assert (_affordable_lines(1e-4, 300), _affordable_lines(0.1, 300), _affordable_lines(10.0, 300)) == (3, 2, 1)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    target = open_target(model, None, AuditOptions(time=100))
    object.__setattr__(target, "seconds_per_row", 0.02)
    assert target.affordable(1000) == 250
    object.__setattr__(target, "seconds_per_row", 2.0)
    assert target.affordable(1000) == 50


def test_grids_of_numbers_are_learned_by_convolutions_and_large_ones_are_averaged():
    assert grid_of((16, 96)) == (1, 16, 96)
    assert grid_of((76, 32, 1)) == (76, 32, 1)
    assert grid_of((3, 224, 224)) == (3, 224, 224)
    assert grid_of((8, 96)) is None
    assert grid_of((50, 64, 64)) is None
    assert grid_of((30,)) is None
    for shape, square in (((3, 224, 224), 7), ((1, 28, 28), 1), ((76, 32, 1), 3), ((1, 900, 120), 15)):
        plan = StudentPlan("convolutions", False, shape, 5)
        assert plan.square == square
        assert plan.student().eval()(torch.zeros(2, *shape)).shape == (2, 5)
    assert "7 x 7" in StudentPlan("convolutions", False, (3, 224, 224), 5).words


def test_channels_last_are_moved_and_not_reshaped():
    last = StudentPlan("convolutions", False, (20, 18, 3), 2).student().eval()
    first = StudentPlan("convolutions", False, (3, 20, 18), 2).student().eval()
    first.load_state_dict(last.state_dict())
    X = torch.rand(4, 20, 18, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(last(X), first(X.movedim(-1, 1)))

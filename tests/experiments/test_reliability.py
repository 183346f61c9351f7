"""Small versions of the reliability experiments: the same cases, fewer of them."""

from __future__ import annotations

import os

import pytest
from experiments.random_functions import ATTACKS, outcome
from experiments.reliability import damaged_journals, hostile_servers, killed_runs, malformed_requests


@pytest.mark.slow
def test_no_hostile_server_hangs_breaks_or_fills_the_client():
    modes = [mode for mode in hostile_servers.modes() if mode[1] not in {name for name, _ in hostile_servers._drips()}]
    assert len(hostile_servers.modes()) >= 150
    result = hostile_servers.run(some=modes[::5])
    assert result["first_failures"] == []
    assert result["memory_mb"] < 500


@pytest.mark.slow
def test_every_malformed_request_is_refused_in_json_and_harms_nobody():
    assert len(malformed_requests.requests()) >= 200
    result = malformed_requests.run(limit=None)
    assert result["first_failures"] == []
    assert result["refused"] > 150
    assert result["server_grew_mb"] < 200


@pytest.mark.slow
def test_no_damaged_journal_gives_a_false_answer():
    result = damaged_journals.run(count=24)
    assert (result["false"], result["foreign"]) == (0, 0)
    assert result["refused"] > 0


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills children that are forked")
def test_killed_runs_lose_nothing():
    result = killed_runs.run(kills=6)
    assert (result["lost"], result["wrong_ends"]) == (0, 0)
    assert result["asked_again"] <= result["kills"] * result["rows_under_way_at_most"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["constant", "rounded", "saw-tooth", "maximum", "absolute value", "overflowing", "huge", "tiny"]
)
def test_functions_that_no_attack_is_made_for_end_in_a_result_or_a_divulge_error(kind):
    for seed in (0, 2):
        for attack in ATTACKS:
            found = outcome(seed, attack, kind=kind, limit=2.0)
            assert found.state in ("exact", "not exact", "refused", "stopped", "late"), found

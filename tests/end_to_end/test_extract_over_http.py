"""An exact extraction over real HTTP costs what it costs at home, and from its journal costs no request at all."""

from __future__ import annotations

import pytest
import torch

import divulge
from divulge import serving
from divulge.models import MLP


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_extraction_over_http_and_again_from_the_journal(tmp_path, seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        target = MLP([12, 8, 1]).double()
    at_home = divulge.extraction.from_gradients(divulge.oracle(target, access="gradient"), seed=seed)
    with serving.running(target, gradients=True) as url:
        oracle = divulge.oracle(url, access="gradient", journal=tmp_path / "answers.db")
        stolen = divulge.extraction.from_gradients(oracle, seed=seed)
        resumed = divulge.oracle(url, access="gradient", journal=tmp_path / "answers.db")
        again = divulge.extraction.from_gradients(resumed, seed=seed)
        assert stolen.check(oracle, 500) < 1e-9
        oracle.close()
        resumed.close()
    assert stolen.exact
    assert (stolen.exact, stolen.width) == (at_home.exact, at_home.width)
    assert stolen.queries == at_home.queries == again.queries
    assert stolen.ledger.requests > 0
    assert again.ledger.requests == 0
    for ours, theirs in zip(stolen.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)

"""An exact extraction over real HTTP costs what it costs at home, and from its journal costs no request at all."""

from __future__ import annotations

import pytest
import torch

import divulge
from divulge import serving
from divulge.core.errors import BudgetExhausted
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


@pytest.mark.slow
def test_a_copy_from_labels_goes_on_from_its_journal(tmp_path):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        target = MLP([6, 3, 1]).double()
    at_home = divulge.extraction.from_labels(divulge.oracle(target, access="label"), checks=100)
    assert at_home.equivalent, at_home.reason
    with serving.running(target) as url:
        first = divulge.oracle(url, access="label", journal=tmp_path / "answers.db", budget=at_home.queries // 2)
        with pytest.raises(BudgetExhausted):
            divulge.extraction.from_labels(first, checks=100)
        resumed = divulge.oracle(url, access="label", journal=tmp_path / "answers.db")
        again = divulge.extraction.from_labels(resumed, checks=100)
        first.close()
        resumed.close()
    assert again.equivalent
    assert again.queries == at_home.queries
    assert torch.equal(again.model.A, at_home.model.A)
    assert 0 < again.ledger.requests < 0.7 * at_home.requests
    assert first.ledger.label <= at_home.queries // 2

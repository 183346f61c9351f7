"""Copies from labels after verification: a repair that makes the copy worse is not kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import divulge
from divulge.extraction.from_labels import PRECISION
from divulge.extraction.labels.attack import LabelAttack
from divulge.extraction.labels.tolerances import REACH, Domain
from divulge.models import MLP
from divulge.oracles.region import Region

INPUTS = 6


@pytest.mark.slow
def test_a_repair_that_makes_the_copy_worse_is_not_kept() -> None:
    torch.manual_seed(1)
    model = MLP([INPUTS, 3, 1]).double().requires_grad_(False)
    model[2].bias.sub_(model(torch.randn(1000, INPUTS).double()).median())
    oracle = divulge.oracle(model, access="label")
    limit = np.full(INPUTS, np.inf)
    domain = Domain(-limit, limit, REACH * INPUTS**0.5)
    attack = LabelAttack(
        oracle, Region.of(None, oracle), domain, None, seed=0, checks=300, beside=1, precision=PRECISION
    )
    assert attack.run().equivalent
    right = attack.network
    nearly = replace(right, c=right.c + 1e-2)
    attack.network, attack.repair = nearly, lambda wrong: replace(right, V=-right.V)
    attack._rebuild = lambda: ""  # type: ignore[method-assign]
    found = attack.run()
    assert not found.equivalent
    assert attack.network is nearly
    attack.network, attack.repair = nearly, lambda wrong: right
    assert attack.run().equivalent
    assert attack.network is right

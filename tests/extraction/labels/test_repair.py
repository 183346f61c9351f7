"""Copies from labels after verification: what it contradicts is repaired, and a repair that makes it worse goes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import divulge
from divulge.extraction.from_labels import PRECISION
from divulge.extraction.labels.attack import LabelAttack
from divulge.extraction.labels.tolerances import REACH, Domain
from divulge.extraction.labels.verification import agreement
from divulge.models import MLP
from divulge.oracles.region import Region

INPUTS = 6


def _attack() -> LabelAttack:
    torch.manual_seed(1)
    model = MLP([INPUTS, 3, 1]).double().requires_grad_(False)
    model[2].bias.sub_(model(torch.randn(1000, INPUTS).double()).median())
    oracle = divulge.oracle(model, access="label")
    limit = np.full(INPUTS, np.inf)
    domain = Domain(-limit, limit, REACH * INPUTS**0.5)
    return LabelAttack(oracle, Region.of(None, oracle), domain, None, seed=0, checks=300, beside=1, precision=PRECISION)


@pytest.mark.slow
def test_a_copy_that_is_imprecise_only_beside_the_target_boundary_is_repaired_there() -> None:
    attack = _attack()
    assert attack.run().equivalent
    right = attack.network
    _, gradient = right.difference(attack.survey.rows(1000), np.tile([0, 1], (1000, 1)))
    moved = 5e-7 * attack.tolerances.spread * float(np.linalg.norm(gradient, axis=1).mean())
    found = agreement(replace(right, c=right.c + moved), attack.survey, 2000, None)
    assert found.rows == 1
    assert found.near[1e-6] < 1
    assert found.wrong
    for segment in found.wrong:
        labels = attack.survey.ask(np.stack([segment.one, segment.two]))
        assert labels[0] == segment.label != labels[1]


@pytest.mark.slow
def test_a_repair_that_makes_the_copy_worse_is_not_kept() -> None:
    attack = _attack()
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

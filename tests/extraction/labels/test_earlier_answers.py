"""Rows asked on the way that contradict a copy: the copy is wrong there, or the target has changed."""

from __future__ import annotations

import numpy as np
import torch

import divulge
from divulge.extraction.labels.asking import Array
from divulge.extraction.labels.earlier_answers import contradicted, segments, still_answered
from divulge.extraction.labels.network import LabelNetwork
from divulge.extraction.labels.source import LabelSource
from divulge.extraction.labels.survey import Survey
from divulge.extraction.labels.tolerances import Domain, Tolerances
from divulge.oracles.base import Oracle

INPUTS = 4
SPREAD = INPUTS**0.5
TOLERANCES = Tolerances.of(INPUTS, 1e-13, 0.0)


class Pocket(torch.nn.Module):
    """Decides by x0, and otherwise in a pocket of x1 > 2.5, if it has one."""

    def __init__(self, size: float = 4.0) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x[:, 0] + self.size * torch.relu(x[:, 1] - 2.5))[:, None]


def copy_without_the_pocket() -> LabelNetwork:
    return LabelNetwork(np.zeros((0, INPUTS)), np.zeros(0), np.zeros((1, 0)), np.eye(INPUTS)[:1], np.zeros(1))


def oracle(target: Pocket) -> Oracle:
    return divulge.oracle(target.double(), access="label", input_shape=(INPUTS,))


def asked_source() -> tuple[LabelSource, Array]:
    """A source that was asked ordinary rows and three in the pocket."""
    domain = Domain(np.full(INPUTS, -np.inf), np.full(INPUTS, np.inf), 30 * SPREAD)
    source = LabelSource(oracle(Pocket()), domain, np.random.default_rng(0))
    source(np.clip(np.random.default_rng(1).standard_normal((500, INPUTS)), -2, 2))
    pocket = np.array([[-0.5, 3.0, 0.0, 0.0], [-0.1, 3.0, 1.0, 0.0], [-1.0, 3.2, 0.0, 1.0]])
    source(pocket)
    return source, pocket


def test_rows_in_a_pocket_that_the_copy_lacks_contradict_it_and_lead_to_its_boundary():
    source, pocket = asked_source()
    rows, labels = contradicted(copy_without_the_pocket(), source, TOLERANCES)
    np.testing.assert_array_equal(rows, pocket)
    assert still_answered(rows, labels, source)
    survey = Survey(source, TOLERANCES, source.domain, 2, np.random.default_rng(0))
    survey.different()
    found = segments(rows, survey)
    assert found
    for one in found:
        ends = Pocket()(torch.from_numpy(np.stack([one.one, one.two])))[:, 0] > 0
        assert bool(ends[0]) != bool(ends[1])


def test_a_target_that_has_changed_answers_otherwise_now():
    source, _ = asked_source()
    source.oracle = oracle(Pocket(0.0))
    rows, labels = contradicted(copy_without_the_pocket(), source, TOLERANCES)
    assert len(rows) == 3
    assert not still_answered(rows, labels, source)


def test_rows_that_rounding_decides_contradict_nothing():
    source, _ = asked_source()
    source.asked.append((np.array([[1e-9, 0.0, 0.0, 0.0]]), np.array([0])))
    rows, _ = contradicted(copy_without_the_pocket(), source, TOLERANCES)
    assert len(rows) == 3

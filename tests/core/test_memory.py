"""Large arrays are refused before they are made, and a shortage of memory is one sentence."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

import divulge
from divulge.core import memory
from divulge.core.errors import InvalidInput, OutOfMemory
from divulge.models import MLP

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the system does not limit memory")


def test_what_fits_is_claimed_and_what_does_not_is_refused():
    with memory.limited(0.5):
        memory.claim(1000, "A small array")
        with pytest.raises(OutOfMemory, match=r"A large array takes 0\.7 GiB; the limit is 0\.5 GiB"):
            memory.claim(10**8, "A large array")


def test_without_a_limit_the_memory_of_the_machine_counts():
    memory.claim(1000, "A small array")
    with pytest.raises(OutOfMemory):
        memory.claim(1e15, "A petabyte")


@pytest.mark.parametrize("gibibytes", [0, -1, 0.1, float("nan")])
def test_a_limit_that_makes_no_sense_is_refused(gibibytes):
    with pytest.raises(InvalidInput, match=r"at least 0\.5"), memory.limited(gibibytes):
        pass


@LINUX
@pytest.mark.parametrize("allocate", [lambda: np.zeros(2**28), lambda: torch.empty(2**28, dtype=torch.float64)])
def test_an_array_that_nobody_claimed_is_a_sentence(allocate):
    with pytest.raises(OutOfMemory, match=r"0\.5 GiB"), memory.limited(0.5):
        allocate()
    assert len(allocate()) == 2**28  # the limit ends with the block


def test_other_errors_pass():
    with pytest.raises(RuntimeError, match="something else"), memory.limited(1.0):
        raise RuntimeError("something else")


@pytest.mark.parametrize(
    "attack",
    [divulge.extraction.from_values, divulge.extraction.worst_case, divulge.span.from_gradients],
    ids=["from_values", "worst_case", "span"],
)
def test_attacks_on_150528_inputs_are_refused_before_a_query(attack):
    oracle = divulge.oracle(lambda X: X[:, :5].sum(1), input_shape=(3, 224, 224))
    with pytest.raises(OutOfMemory, match="GiB"), memory.limited(4.0):
        attack(oracle)
    assert oracle.ledger.total == 0


@LINUX
def test_what_was_taken_before_the_block_counts():
    before = memory.resident()
    taken = np.ones(2**26)  # half a gibibyte
    with pytest.raises(OutOfMemory, match=r"0\.75 GiB"), memory.limited(0.75, before=before):
        np.zeros(2**26)
    with memory.limited(0.75):
        np.zeros(2**26)
    assert taken[-1] == 1


@LINUX
def test_gradients_of_many_outputs_take_the_memory_of_their_answer():
    oracle = divulge.oracle(MLP([100, 20, 4000]), access="gradient")
    rows = torch.zeros(8, 100)
    with memory.limited(0.5):  # the answer takes 26 MB
        assert oracle.gradient(rows)[1].shape == (8, 4000, 100)

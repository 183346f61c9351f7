"""One hidden layer from labels: a neuron that was found twice goes, and two that are nearly parallel stay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from experiments.benchmarks.extraction_labels import random_network

import divulge
from divulge.extraction.from_labels import PRECISION
from divulge.extraction.labels.attack import LabelAttack
from divulge.extraction.labels.one_hidden_layer import with_all_neurons
from divulge.extraction.labels.tolerances import REACH, Domain
from divulge.models import MLP
from divulge.oracles.region import Region

INPUTS = 8


def _attack(model: MLP) -> LabelAttack:
    oracle = divulge.oracle(model, access="label")
    limit = np.full(INPUTS, np.inf)
    domain = Domain(-limit, limit, REACH * INPUTS**0.5)
    region = Region.of(None, oracle)
    return LabelAttack(oracle, region, domain, None, seed=0, checks=200, beside=1, precision=PRECISION)


def _network(width: int) -> MLP:
    torch.manual_seed(3)
    model = MLP([INPUTS, width, 1]).double().requires_grad_(False)
    model[0].weight.normal_()
    model[2].weight.normal_()
    model[2].bias.sub_(model(torch.randn(1000, INPUTS).double()).median())
    return model


def test_a_neuron_that_was_found_twice_goes() -> None:
    attack = _attack(_network(5))
    assert attack.run().equivalent
    neurons = attack.discovery.neurons
    w = neurons[2].w + 1e-5 * np.random.default_rng(0).standard_normal(INPUTS)
    neurons.append(replace(neurons[2], w=w / np.linalg.norm(w)))
    copy = attack.solver.repair([])
    assert copy.widths == [5]
    assert attack.solver.left_out == 0


@pytest.mark.parametrize("seed", [701, 703])
def test_slices_go_on_beyond_their_limit_while_they_find_neurons(seed, monkeypatch) -> None:
    """As for 784-32-1 trained on MNIST, where forty slices end one short of all neurons."""
    monkeypatch.setattr("divulge.extraction.labels.attack.MOST_SLICES", 3)
    oracle = divulge.oracle(random_network([20, 16, 1], seed), access="label")
    stolen = divulge.extraction.from_labels(oracle, seed=seed)
    assert stolen.equivalent
    assert stolen.widths == [16]
    assert stolen.facts["slices"] > 3


def test_nearly_parallel_neurons_stay_two() -> None:
    model = _network(5)
    model[0].weight[1].copy_(model[0].weight[0] + 2e-4 * torch.randn(INPUTS).double())
    model[0].bias[1].copy_(model[0].bias[0] + 2e-4)
    model[2].weight[0, 1].copy_(2 * model[2].weight[0, 0])
    stolen = _attack(model).run()
    assert not stolen.equivalent or stolen.widths == [5]


def test_points_that_a_smaller_copy_explains_do_not_leave_a_new_neuron_without_any() -> None:
    on = np.array([[True, False, False], [True, False, False], [False, True, False], [True, True, False]])
    explained = np.array([True, True, False, False])
    kept = with_all_neurons(explained, on)
    assert kept.tolist() == [True, True, True, True]  # the second neuron is on at the last two only
    assert with_all_neurons(kept, on).tolist() == kept.tolist()


def test_a_neuron_that_is_found_last_does_not_solve_the_output_layer_alone() -> None:
    model = random_network([20, 16, 1], 130_014)
    copy = divulge.extraction.from_labels(divulge.oracle(model, access="label"), seed=130_014)
    assert copy.equivalent, copy.reason
    assert copy.widths == [16]

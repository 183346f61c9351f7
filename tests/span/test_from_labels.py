"""The span from hard labels: two or many of them, rank found or given, and a sentence when nothing ever changes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import divulge
from divulge.core.errors import AttackFailed, BudgetExhausted, InvalidInput
from divulge.span import from_labels
from divulge.span.labels.boundary import bisect_segments, heights, normal_at

from .networks import first_layer, network


@pytest.mark.slow
@pytest.mark.parametrize(("n", "k"), [(50, 5), (80, 8)])
@pytest.mark.parametrize("activation", ["tanh", "softplus"])
@pytest.mark.parametrize("seed", range(3))
def test_the_rank_is_found_to_a_millionth_for_90_labels_per_rank_and_input(
    activation: str, n: int, k: int, seed: int
) -> None:
    model = network([n, k, 2 * k, 1], seed, activation=activation, balanced=True)
    oracle = divulge.oracle(model, access="label")
    span = from_labels(oracle, seed=seed)
    assert span.rank == k
    assert math.sin(span.angle_to(first_layer(model))) <= 1e-6
    assert span.ledger.label == span.queries <= 90 * k * n
    assert span.complete
    assert span.curve == tuple(range(1, k + 1))
    assert span.facts["labels_per_rank_and_input"] == pytest.approx(span.queries / (k * n))


@pytest.mark.parametrize("seed", range(2))
def test_relu_networks_of_many_classes_give_their_span_too(seed: int) -> None:
    model = network([40, 8, 12, 6], seed)
    span = from_labels(divulge.oracle(model, access="label"), seed=seed)
    assert span.rank == 8
    assert span.angle_to(first_layer(model)) < 1e-6


def test_the_error_that_a_result_claims_is_near_the_true_one() -> None:
    model = network([50, 4, 8, 1], 5, activation="tanh", balanced=True)
    span = from_labels(divulge.oracle(model, access="label"))
    true = span.angle_to(first_layer(model))
    assert span.facts["estimated_error"] == span.threshold
    assert span.threshold / 100 < true < 10 * span.threshold


def test_float32_labels_give_a_coarser_span() -> None:
    model = network([30, 4, 8, 1], 0, activation="tanh", balanced=True, dtype=torch.float32)
    span = from_labels(divulge.oracle(model, access="label"))
    assert span.rank == 4
    assert span.angle_to(first_layer(model)) < 0.05


def test_extra_normals_keep_the_rank_and_the_span() -> None:
    model = network([30, 4, 8, 1], 1, activation="tanh", balanced=True)
    span = from_labels(divulge.oracle(model, access="label"), rank=4, extra=0.5)
    assert span.rank == 4
    assert span.facts["normals"] == 6
    assert span.angle_to(first_layer(model)) < 1e-6


def test_a_rank_given_saves_the_last_search() -> None:
    model = network([30, 4, 8, 1], 2, activation="tanh", balanced=True)
    found, given = (from_labels(divulge.oracle(model, access="label"), rank, tries=1600) for rank in (None, 4))
    assert found.rank == given.rank == 4
    assert found.queries - given.queries == 1600 + found.facts["labels_verifying"]
    assert 0 < found.facts["labels_verifying"] < 2000


def test_a_rank_asked_beyond_what_is_there_is_a_partial_result() -> None:
    model = network([30, 3, 6, 1], 0, activation="tanh", balanced=True)
    span = from_labels(divulge.oracle(model, access="label"), rank=5, tries=400)
    assert span.rank == 3
    assert not span.complete
    assert "Asked for rank 5, found 3: 400 further labels" in span.notes[0]


def test_labels_that_never_change_are_said_so_after_the_stated_number_of_tries() -> None:
    model = network([20, 3, 1], 0)
    with torch.no_grad():
        model[-1].weight.zero_()
    oracle = divulge.oracle(model, access="label")
    with pytest.raises(AttackFailed, match="never changed in 640 tries") as caught:
        from_labels(oracle, tries=640)
    assert oracle.ledger.label == 640
    assert caught.value.partial.rank == 0


def test_a_boundary_far_out_is_found_at_a_larger_scale() -> None:
    model = network([20, 3, 6, 1], 0, activation="softplus", balanced=True)
    with torch.no_grad():
        model[0].weight /= 40
        model[0].bias *= 0
        values = model(torch.randn(400, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
        model[-1].bias -= values.max() + (values.max() - values.min())
    span = from_labels(divulge.oracle(model, access="label"))
    assert span.rank == 3
    assert span.angle_to(first_layer(model)) < 1e-3


def test_a_full_first_layer_is_said_to_leave_no_null_space() -> None:
    model = network([4, 6, 3], 0, activation="tanh")
    span = from_labels(divulge.oracle(model, access="label"))
    assert span.rank == 4
    assert any("no null space" in note for note in span.notes)


def test_a_budget_that_runs_out_keeps_what_was_found() -> None:
    model = network([40, 6, 8, 1], 0, activation="tanh", balanced=True)
    oracle = divulge.oracle(model, access="label", budget=8000)
    with pytest.raises(BudgetExhausted) as caught:
        from_labels(oracle)
    assert 1 <= caught.value.partial.rank < 6
    assert caught.value.partial.angle_to(first_layer(model)) < 1e-6
    assert not caught.value.partial.complete


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"rank": 0}, "rank"),
        ({"rank": 11}, "rank"),
        ({"method": "best"}, "method"),
        ({"precision": "single"}, "precision"),
        ({"extra": -1.0}, "extra"),
        ({"tries": 1}, "tries"),
        ({"scale": -1.0}, "scale"),
        ({"step": 0.0}, "step"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], sentence: str) -> None:
    oracle = divulge.oracle(network([10, 2, 1], 0), access="label")
    with pytest.raises(InvalidInput, match=sentence):
        from_labels(oracle, **options)
    assert oracle.ledger.total == 0


# -- the boundary itself ----------------------------------------------------------------------------------------------


def sphere(rows: torch.Tensor) -> torch.Tensor:
    return rows.norm(dim=1) < 2


def test_bisection_finds_the_place_where_the_label_flips() -> None:
    starts = torch.zeros(2, 3, dtype=torch.float64)
    ends = torch.tensor([[3.0, 4.0, 0.0], [0.0, 0.0, -2.5]], dtype=torch.float64)
    places = bisect_segments(sphere, starts, ends, torch.tensor([True, True]), 1e-14)
    assert places.norm(dim=1).tolist() == pytest.approx([2, 2], abs=1e-13)
    assert torch.allclose(places[1], torch.tensor([0.0, 0.0, -2.0], dtype=torch.float64))


def test_heights_beyond_their_bracket_are_found_by_widening_it() -> None:
    up = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
    bases = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
    found, seen = heights(sphere, bases, up, torch.zeros(2).double(), torch.full((2,), 0.1).double(), 1e-10)
    assert bool(seen.all())
    assert found.tolist() == pytest.approx([2.0, math.sqrt(3)], abs=1e-9)
    _, lost = heights(lambda rows: torch.ones(len(rows), dtype=torch.bool), bases, up, torch.zeros(2).double(),
                      torch.full((2,), 0.1).double(), 1e-6)  # fmt: skip
    assert not bool(lost.any())


def test_the_normal_of_a_sphere_points_outwards() -> None:
    generator = torch.Generator().manual_seed(0)
    along = torch.tensor([0.6, 0.8, 0.0], dtype=torch.float64)
    point = 2 * torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    directions = torch.tensor([[0.8, -0.6, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    normal = normal_at(sphere, point, along, directions, step=1e-5, resolution=1e-15, generator=generator)
    assert normal is not None
    assert torch.allclose(normal.direction, point / 2, atol=1e-8)
    assert normal.error < 1e-8
    everywhere = normal_at(lambda rows: torch.ones(len(rows), dtype=torch.bool), point, along, directions, step=1e-5,
                           resolution=1e-15, generator=generator)  # fmt: skip
    assert everywhere is None


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_what_single_precision_hides_is_not_called_complete(seed: int) -> None:
    digits = divulge.datasets.load("digits")
    recipe = divulge.Recipe(widths=[64, 16, 10], activation="tanh", learning_rate=0.05, momentum=0.9, epochs=15,
                            batch_size=64, seed=seed)  # fmt: skip
    model = recipe.train(*digits.train)
    coarse = from_labels(divulge.oracle(model, access="label"), seed=seed)
    assert coarse.complete == (coarse.rank == 16)
    assert coarse.complete or any("still change outside" in note for note in coarse.notes)

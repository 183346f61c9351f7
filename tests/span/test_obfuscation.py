"""Obfuscated inputs are answered as before, stay in their range if asked to, and are far from the originals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

import divulge
from divulge.core.errors import InvalidInput, WrongShape
from divulge.models import MLP
from divulge.oracles import Spent
from divulge.oracles.outputs import label_probabilities
from divulge.span import Span, figures, from_gradients, measure, obfuscate, relevant
from divulge.span.result import basis_of_rows

from .networks import network


@pytest.fixture(scope="module")
def digits() -> Tensor:
    return torch.from_numpy(load_digits().data / 16.0)


@pytest.fixture(scope="module")
def trained(digits: Tensor) -> MLP:
    """A 64-12-10 network that reads digits."""
    labels = torch.from_numpy(load_digits().target)
    model = network([64, 12, 10], 0)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(150):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(digits), labels).backward()
        optimiser.step()
    assert float((model(digits).argmax(1) == labels).double().mean()) > 0.95
    return model


@pytest.fixture(scope="module")
def span(trained: MLP) -> Span:
    return from_gradients(divulge.oracle(trained, access="gradient"))


@pytest.mark.slow
def test_what_is_relevant_is_answered_the_same(trained: MLP, span: Span, digits: Tensor) -> None:
    seen = relevant(digits[:50], span)
    oracle = divulge.oracle(trained, access="value")
    assert torch.allclose(oracle.value(seen), oracle.value(digits[:50]), atol=1e-10)
    assert float((seen - digits[:50]).norm()) > 1


@pytest.mark.slow
def test_noise_ten_times_the_input_changes_nothing(trained: MLP, span: Span, digits: Tensor) -> None:
    noisy = obfuscate(digits, span, 10.0, seed=1)
    told = measure(divulge.oracle(trained, access="value"), digits, noisy)
    assert bool(told.label_kept.all())
    assert told.output_change is not None
    assert float(told.output_change.max()) < 1e-9
    assert torch.allclose(told.relative_distance, torch.full_like(told.relative_distance, 10.0))
    assert told.confidence_before is not None
    assert told.confidence_after is not None
    assert torch.allclose(told.confidence_before, told.confidence_after)
    assert told.queries == 2 * len(digits)
    assert told.summary()["labels_kept"] == len(digits)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.5, 3.0, 10.0, 100.0])
def test_noise_in_range_is_as_invisible(trained: MLP, span: Span, digits: Tensor, scale: float) -> None:
    noisy = obfuscate(digits[:200], span, scale, bounds=(0, 1))
    assert float(noisy.min()) >= 0
    assert float(noisy.max()) <= 1
    told = measure(divulge.oracle(trained, access="value"), digits[:200], noisy)
    assert bool(told.label_kept.all())
    assert told.output_change is not None
    assert float(told.output_change.max()) < 1e-9
    assert float(told.relative_distance.median()) > (0.2 if scale < 1 else 0.5)


def test_noise_in_range_is_the_nearest_there_is(span: Span, digits: Tensor) -> None:
    """Against a general solver: nothing in the box with the same projection is nearer to the unbounded noise."""
    from scipy.optimize import lsq_linear

    x = digits[:2]
    wanted = obfuscate(x, span, 2.0, seed=3)
    bounded = obfuscate(x, span, 2.0, bounds=(0, 1), seed=3)
    for target, z, original in zip(wanted, bounded, x, strict=True):
        weight = 1e4
        A = np.vstack([np.eye(64), weight * span.basis.numpy()])
        b = np.concatenate([target.numpy(), weight * (span.basis @ original).numpy()])
        best = lsq_linear(A, b, bounds=(0, 1), tol=1e-14).x
        assert float((z - target).norm()) <= np.linalg.norm(best - target.numpy()) + 1e-4


def test_the_largest_noise_in_range_leaves_pixels_at_its_ends(trained: MLP, span: Span, digits: Tensor) -> None:
    noisy = obfuscate(digits[:10], span, None, bounds=(0, 1))
    told = measure(divulge.oracle(trained, access="value"), digits[:10], noisy)
    assert told.output_change is not None
    assert float(told.output_change.max()) < 1e-8
    at_ends = ((noisy < 1e-9) | (noisy > 1 - 1e-9)).double().mean()
    assert float(at_ends) > 0.75  # all but as many pixels as the span has directions
    mild = measure(
        divulge.oracle(trained, access="value"), digits[:10], obfuscate(digits[:10], span, 1.0, bounds=(0, 1))
    )
    assert float(told.distance.median()) > float(mild.distance.median())


def test_shapes_are_kept_and_seeds_decide(span: Span, digits: Tensor) -> None:
    picture = digits[0].reshape(8, 8)
    assert obfuscate(picture, span, 2.0).shape == (8, 8)
    assert obfuscate(digits[:3].reshape(3, 1, 8, 8).numpy(), span, 2.0).shape == (3, 1, 8, 8)
    assert relevant(digits[0].tolist(), span).shape == (64,)
    assert torch.equal(obfuscate(digits[:3], span, seed=4), obfuscate(digits[:3], span, seed=4))
    assert not torch.equal(obfuscate(digits[:3], span, seed=4), obfuscate(digits[:3], span, seed=5))


def test_a_black_picture_gets_noise_too(span: Span) -> None:
    black = torch.zeros(1, 64, dtype=torch.float64)
    assert float(obfuscate(black, span, 3.0).norm()) == pytest.approx(3.0)
    assert float(obfuscate(black, span, 3.0, bounds=(-1, 1)).norm()) > 0.5


def test_label_access_measures_labels_only(trained: MLP, span: Span, digits: Tensor) -> None:
    told = measure(divulge.oracle(trained, access="label"), digits[:20], obfuscate(digits[:20], span))
    assert told.output_change is None
    assert told.summary()["labels_kept"] == 20
    assert "output_change_largest" not in told.summary()


def test_a_span_that_misses_a_direction_is_caught_by_the_measure(trained: MLP, span: Span, digits: Tensor) -> None:
    partial = Span(basis=span.basis[:6], singular_values=span.singular_values, gap=1.0, threshold=0.0, curve=(),
                   ledger=Spent(), seed=0, seconds=0.0)  # fmt: skip
    told = measure(divulge.oracle(trained, access="value"), digits, obfuscate(digits, partial, 10.0))
    assert int(told.label_kept.sum()) < len(digits)


def test_probabilities_read_logits_single_outputs_and_probabilities_alike() -> None:
    logits = torch.tensor([[2.0, 0.0, -1.0], [-5.0, 1.0, 1.0]], dtype=torch.float64)
    chances = torch.softmax(logits, dim=1)
    assert torch.equal(label_probabilities(logits), chances)
    assert torch.equal(label_probabilities(chances), chances)
    assert label_probabilities(torch.tensor([[3.0], [-1.0]]))[0, 1] == torch.sigmoid(torch.tensor(3.0))
    assert label_probabilities(torch.tensor([[0.25]]), threshold=0.5)[0].tolist() == [0.75, 0.25]


def _whole() -> Span:
    return Span(basis=torch.eye(64, dtype=torch.float64), singular_values=torch.ones(64), gap=1.0, threshold=0.0,
                curve=(), ledger=Spent(), seed=0, seconds=0.0)  # fmt: skip


def test_a_span_of_everything_leaves_no_noise_to_add(digits: Tensor) -> None:
    with pytest.raises(InvalidInput, match="whole input space"):
        obfuscate(digits[:1], _whole())


@pytest.mark.parametrize(
    ("x", "options", "error"),
    [
        (torch.ones(2, 63), {}, WrongShape),
        (torch.full((1, 64), float("nan")), {}, InvalidInput),
        (torch.zeros(0, 64), {}, InvalidInput),
        (torch.ones(1, 64), {"scale": -1.0}, InvalidInput),
        (torch.ones(1, 64), {"scale": None}, InvalidInput),
        (torch.ones(1, 64), {"bounds": (1, 0)}, InvalidInput),
        (2 * torch.ones(1, 64), {"bounds": (0, 1)}, InvalidInput),
    ],
)
def test_inputs_that_make_no_sense_are_refused(span: Span, x: Tensor, options: dict[str, Any], error: type) -> None:
    with pytest.raises(error):
        obfuscate(x, span, **options)


def test_originals_and_noisy_versions_must_be_as_many(trained: MLP, digits: Tensor) -> None:
    with pytest.raises(WrongShape):
        measure(divulge.oracle(trained, access="value"), digits[:3], digits[:2])


@pytest.mark.slow
def test_the_pictures_are_drawn(trained: MLP, span: Span, digits: Tensor, tmp_path: Path) -> None:
    versions = {"noisy": obfuscate(digits[:5], span), "in range": obfuscate(digits[:5], span, bounds=(0, 1))}
    for access in ("value", "label"):
        oracle = divulge.oracle(trained, access=access)
        drawn = figures.before_and_after(oracle, digits[:5], versions, tmp_path / access / "p.png", shape=(1, 8, 8))
        assert drawn.stat().st_size > 5000
    assert figures.evidence(span, tmp_path / "e.png").stat().st_size > 5000
    assert figures.curves({"a": [1, 2, 3]}, tmp_path / "c.png", title="t", full=3).stat().st_size > 5000


def test_picture_shapes_are_declared_or_square() -> None:
    assert figures.picture_shape(784) == (1, 28, 28)
    assert figures.picture_shape(3072) == (3, 32, 32)
    assert figures.picture_shape(12, (3, 2, 2)) == (3, 2, 2)
    assert figures.picture_shape(12, (3, 4)) == (1, 3, 4)
    with pytest.raises(InvalidInput, match="square"):
        figures.picture_shape(13, (13,))


def test_the_row_space_of_the_first_layer_is_what_was_recovered(trained: MLP, span: Span) -> None:
    assert span.rank == len(basis_of_rows(trained[0].weight)) == 12

"""From weights to training inputs: found blind, told apart from unseen ones, and refused where nothing is there."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from divulge import reconstruction
from divulge.core.errors import AttackFailed, InvalidInput, WrongShape
from divulge.models import MLP, initialise
from divulge.models.weight_matrices import read
from divulge.reconstruction import Reconstruction, Settings, baselines, row_space
from divulge.reconstruction.value_bounds import infer_mean
from divulge.training import margin

from ..margin_targets import Target, odd_digits


@pytest.fixture(scope="module")
def found(target: Target) -> Reconstruction:
    return reconstruction.from_weights(target.model, mean=target.mean, seed=0)


@pytest.mark.slow
def test_training_inputs_score_above_every_control(target: Target, found: Reconstruction) -> None:
    match = found.match(target.X, target.unseen)
    assert match.p_value is not None
    assert match.p_value < 1e-3
    assert match.found() >= 4
    assert found.rank in range(6, 10)
    nothing = reconstruction.from_weights(baselines.broken(target.model), mean=target.mean, n=found.rank)
    assert nothing.match(target.X, target.unseen, threshold=match.threshold).found() < match.found()


@pytest.mark.slow
def test_the_result_is_in_order_and_repeatable(target: Target, found: Reconstruction) -> None:
    assert bool((found.confidence.diff() <= 0).all())
    assert found.samples.shape == (len(found.labels), 64)
    assert bool((found.multipliers > 0).all())
    assert 0 < found.residual < 0.5
    again = reconstruction.from_weights(target.model, mean=target.mean, seed=0)
    assert torch.equal(again.samples, found.samples)


@pytest.mark.slow
def test_labels_are_those_of_the_inputs_found(target: Target, found: Reconstruction) -> None:
    match = found.match(target.X, target.unseen)
    good = match.pair_correlation > match.threshold
    sample, truth = match.pairs[good].T
    assert torch.equal(found.labels[sample], target.y[truth])


@pytest.mark.slow
def test_without_the_mean_inputs_are_still_told_from_unseen_ones(target: Target) -> None:
    blind = reconstruction.from_weights(target.model, seed=0)
    assert not blind.mean_known
    assert blind.mean is not None
    match = blind.match(target.X, target.unseen)
    assert match.p_value is not None
    assert match.p_value < 1e-3


def test_the_mean_is_told_by_the_range_even_if_some_samples_are_wrong() -> None:
    X, _, _ = odd_digits(60, seed=6)
    mean = X.mean(dim=0)
    wrong = torch.randn(5, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for sign, low, high in ((1.0, 0.0, 1.0), (-1.0, -1.0, 0.0)):  # a dark background, and a bright one
        told = infer_mean(torch.cat([sign * (X - mean), wrong]), low, high, mean * 0)
        assert float((told - sign * mean).abs().mean()) < 0.06
    grey = torch.rand(200, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert float((infer_mean(grey - 0.5, 0.0, 1.0, mean * 0) - 0.5).abs().mean()) < 0.06


@pytest.mark.parametrize(
    ("outputs", "n", "restarts"),
    [(1, None, 4), (10, None, 16), (10, 100, 13)],
    ids=["one output", "ten classes", "ten classes, many inputs"],
)
def test_several_classes_take_more_restarts_as_far_as_all_pairs_can_be_compared(
    outputs: int, n: int | None, restarts: int
) -> None:
    X, odd, _ = odd_digits(12, seed=3)
    labels = odd if outputs == 1 else torch.arange(12) % outputs
    model = margin.to_margin(margin.network([64, 120, outputs]), X - X.mean(dim=0), labels, loss=1e-2).model
    assert reconstruction.from_weights(model, n=n, settings=Settings(steps=1)).restarts == restarts


def test_nothing_is_kept_where_large_initial_weights_hide_the_inputs() -> None:
    X, odd, _ = odd_digits(6, seed=3)
    start = initialise(MLP([64, 400, 400, 1], bias="first"), seed=0).double()
    model = margin.to_margin(start, X - X.mean(dim=0), odd).model
    found = reconstruction.from_weights(model, n=6, settings=Settings(steps=50))
    assert found.everything is not None
    assert len(found.everything) > 0
    assert len(found.samples) == 0
    assert "they hide most of the inputs" in found.reason
    small = margin.to_margin(margin.network([64, 400, 400, 1]), X - X.mean(dim=0), odd).model
    assert len(reconstruction.from_weights(small, n=6, settings=Settings(steps=50)).samples) > 0


def test_a_run_that_died_goes_on_from_its_batches(target: Target, tmp_path: Path) -> None:
    quick = Settings(steps=20)
    first = reconstruction.from_weights(
        target.model, mean=target.mean, batches=1, restarts=2, settings=quick, checkpoint=tmp_path
    )
    more = reconstruction.from_weights(
        target.model, mean=target.mean, batches=2, restarts=2, settings=quick, checkpoint=tmp_path
    )
    whole = reconstruction.from_weights(target.model, mean=target.mean, batches=2, restarts=2, settings=quick)
    assert first.restarts == 2
    assert more.everything is not None
    assert whole.everything is not None
    assert torch.equal(more.everything, whole.everything)


@pytest.mark.slow
def test_a_time_limit_is_kept_by_a_shorter_search(target: Target, found: Reconstruction) -> None:
    began = time.perf_counter()
    short = reconstruction.from_weights(target.model, mean=target.mean, seconds=3, settings=Settings(steps=100_000))
    assert time.perf_counter() - began < 4
    assert short.residual < 2 * found.residual + 0.1
    assert 1 <= short.restarts <= 4
    assert any("steps" in note for note in short.notes)


@pytest.mark.slow
def test_much_time_for_a_small_model_gives_batch_after_batch(target: Target) -> None:
    long = reconstruction.from_weights(target.model, mean=target.mean, seconds=2, settings=Settings(steps=20))
    assert long.restarts > 4
    assert long.seconds < 3


@pytest.mark.slow
def test_several_classes_are_read_too() -> None:
    X, _, unseen = odd_digits(9, seed=7)
    mean, y = X.mean(dim=0), torch.arange(9) % 3
    trained = margin.to_margin(margin.network([64, 128, 3], first_scale=1e-3), X - mean, y, extra_epochs=1000)
    match = reconstruction.from_weights(trained.model, mean=mean).match(X - mean, unseen - mean)
    assert match.p_value is not None
    assert match.p_value < 0.01


def test_without_a_first_bias_and_without_a_range(target: Target) -> None:
    X, y, _ = odd_digits(6, seed=8)
    start = margin.network([64, 60, 1], first_scale=1e-3, bias="none")
    trained = margin.to_margin(start, X - X.mean(dim=0), y)
    found = reconstruction.from_weights(trained.model, value_range=None, settings=Settings(steps=30))
    assert found.mean is None
    assert found.everything is not None
    assert bool(torch.isfinite(found.everything).all())


@pytest.mark.slow
def test_later_batches_start_from_what_was_agreed_on(target: Target, found: Reconstruction) -> None:
    more = reconstruction.from_weights(target.model, mean=target.mean, seed=0, batches=2)
    assert more.restarts == 2 * found.restarts
    first, later = (result.match(target.X, threshold=0.9) for result in (found, more))
    assert later.found() >= first.found()
    quick = Settings(steps=20)
    here, spread = (
        reconstruction.from_weights(target.model, mean=target.mean, batches=4, restarts=2, settings=quick, workers=w)
        for w in (None, 2)
    )
    assert torch.allclose(here.samples, spread.samples)


@pytest.mark.slow
def test_with_more_inputs_than_dimensions_the_row_space_is_the_whole_space() -> None:
    X, y, _ = odd_digits(12, seed=4)
    X = X[:, 20:26]
    model = margin.to_margin(margin.network([6, 100, 1], first_scale=1e-2, seed=4), X - X.mean(dim=0), y).model
    quick = Settings(steps=30)
    told = reconstruction.from_weights(model, n=12, settings=quick)
    assert told.rank == 7
    assert told.everything is not None
    assert len(told.everything) == 4 * 36
    untrained = margin.network([6, 100, 1], first_scale=1e-2)
    with pytest.raises(AttackFailed, match="more inputs than they have dimensions"):
        reconstruction.from_weights(untrained)
    bounded = reconstruction.from_weights(untrained, samples=20, settings=quick)
    assert bounded.everything is not None
    assert len(bounded.everything) == 4 * 20


def test_an_untrained_model_has_no_gap_and_is_told_so() -> None:
    model = margin.network([64, 128, 1], first_scale=1e-3)
    with pytest.raises(AttackFailed, match="give n"):
        reconstruction.from_weights(model)
    found = reconstruction.from_weights(model, n=8, settings=Settings(steps=100))
    assert len(found.samples) == 0
    assert "never trained" in found.reason
    X, _, unseen = odd_digits(8, seed=9)
    assert found.match(X, unseen).found() == 0


def test_the_spectrum_tells_how_many_inputs_there_are() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = 1e-3 * torch.randn(200, 65, generator=generator, dtype=torch.float64)
    for n in (1, 5, 12):
        signal = torch.randn(200, n, generator=generator, dtype=torch.float64) @ torch.randn(
            n, 65, generator=generator, dtype=torch.float64
        )
        singular = torch.linalg.svdvals(noise + signal)
        assert int((singular > row_space.noise_edge(singular, 200, 65)).sum()) == n
    singular = torch.linalg.svdvals(noise)
    assert int((singular > row_space.noise_edge(singular, 200, 65)).sum()) == 0


def test_row_space_points_have_a_bias_of_one(target: Target) -> None:
    space = row_space.row_space(read(target.model))
    a = torch.randn(4, space.basis.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.allclose((space.points(a) @ space.V)[:, -1], torch.ones(4, dtype=torch.float64))
    assert torch.allclose(space.coordinates_of(space.inputs(space.points(a))), a)


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"n": 0}, InvalidInput, "from 1 on"),
        ({"n": 500}, InvalidInput, "cannot be read from a first layer of 128 units"),
        ({"mean": torch.zeros(3)}, WrongShape, "3 entries"),
        ({"mean": torch.full((64,), float("nan"))}, InvalidInput, "NaN"),
        ({"shape": (3, 5, 5)}, WrongShape, "64 inputs"),
        ({"value_range": (1.0, 0.0)}, InvalidInput, "low below high"),
        ({"restarts": 0}, InvalidInput, "restarts"),
        ({"seconds": 0}, InvalidInput, "above zero"),
        ({"method": "magic"}, InvalidInput, "row-space"),
    ],
)
def test_bad_options_get_one_sentence(
    target: Target, options: dict[str, object], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        reconstruction.from_weights(target.model, **options)  # type: ignore[arg-type]

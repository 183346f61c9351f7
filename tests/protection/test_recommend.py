"""Recommendations: the noise is just sufficient under each bound, and it is quick."""

from __future__ import annotations

import itertools
import math
import time

import pytest

from divulge.core.errors import InvalidInput
from divulge.protection import Schedule, bound_curves, guarantees, required_privacy
from divulge.protection.recommend import DP, PURE, RENYI, TIGHT, ZCDP, _bounds, chance
from divulge.training import Recipe
from divulge.training.private import accounting

LOG_KAPPA = math.log(0.005)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "gamma"), [(Schedule(100), 0.02), (Schedule(100), 0.3), (Schedule(1), 0.9), (Schedule(60, 0.1), 0.05)]
)
def test_under_each_bound_the_noise_is_enough_and_a_little_less_is_not(schedule: Schedule, gamma: float) -> None:
    rows = {row.bound: row for row in required_privacy(LOG_KAPPA, gamma, schedule=schedule, delta=1e-5)}
    assert set(rows) == ({TIGHT, RENYI, DP, ZCDP, PURE} if schedule.full_batch else {TIGHT, RENYI, DP, PURE})
    for name, row in rows.items():
        if row.noise_multiplier is None:
            assert name == PURE
            assert row.epsilon == pytest.approx(math.log(gamma / 0.005))
            continue
        bound = _bounds(LOG_KAPPA, schedule, 1e-5)[name]
        assert math.exp(bound(1.01 * row.noise_multiplier)) <= gamma < math.exp(bound(0.97 * row.noise_multiplier)), (
            name
        )
        assert row.epsilon == pytest.approx(
            accounting.epsilon_spent(
                noise_multiplier=row.noise_multiplier, steps=schedule.steps, sampling_rate=schedule.sampling_rate,
                delta=1e-5,
            )
        )  # fmt: skip
    assert rows[TIGHT].noise_multiplier <= min(rows[RENYI].noise_multiplier, rows[DP].noise_multiplier)


def test_guarantees_are_the_bounds_at_what_the_noise_spends() -> None:
    epsilon, logs = guarantees(5.0, log_kappa=LOG_KAPPA, schedule=Schedule(100), delta=1e-5)
    assert epsilon == pytest.approx(accounting.privacy_spent(noise_multiplier=5.0, steps=100, delta=1e-5).epsilon_pld)
    assert logs[TIGHT] <= logs[ZCDP] <= logs[RENYI] + 1e-9 <= logs[DP] + 2e-9


def test_a_bound_that_no_noise_satisfies_is_left_out() -> None:
    names = [row.bound for row in required_privacy(math.log(0.01), 0.010001, schedule=Schedule(100), delta=1e-5)]
    assert TIGHT in names
    assert DP not in names


@pytest.mark.slow
def test_the_page_of_a_hundred_epsilons_takes_less_than_a_second() -> None:
    accounting.noise_for(1.0, delta=1e-5, steps=100)  # the library's own import
    started = time.process_time()
    grid = bound_curves(LOG_KAPPA, schedule=Schedule(100), delta=1e-5)
    assert time.process_time() - started < 1
    assert len(grid.epsilons) == 100
    for logs in grid.log_gammas.values():
        assert all(later >= earlier - 1e-9 for earlier, later in itertools.pairwise(logs))
        assert all(log >= LOG_KAPPA - 1e-9 for log in logs)
    assert grid.plot(0.1).startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_page_for_sampled_batches_and_for_pictures_of_3072_pixels() -> None:
    sampled = bound_curves(LOG_KAPPA, schedule=Schedule(50, 0.05), delta=1e-5, points=3)
    assert sampled.epsilons == sorted(sampled.epsilons)
    assert ZCDP not in sampled.log_gammas
    tiny = bound_curves(-2000.0, schedule=Schedule(10), delta=1e-5, points=4)
    assert tiny.plot().startswith(b"\x89PNG")
    assert chance(-2000.0) == "10^-869"
    assert chance(math.log(0.25)) == "0.25"


def test_a_schedule_is_read_off_a_recipe_as_opacus_samples() -> None:
    recipe = Recipe(widths=[4, 2], epochs=5)
    assert Schedule.of(recipe, 100) == Schedule(5, 1.0)
    batches = Recipe(widths=[4, 2], epochs=5, batch_size=30)
    assert Schedule.of(batches, 100) == Schedule(20, 0.25)
    with pytest.raises(InvalidInput, match="number of records"):
        Schedule.of(recipe, 0)


def test_the_rdp_curve_is_the_accountants() -> None:
    from dp_accounting.rdp import compute_epsilon

    curve = accounting.rdp_curve(noise_multiplier=1.1, steps=500, sampling_rate=0.02)
    orders, epsilons = zip(*curve, strict=True)
    epsilon, _ = compute_epsilon(orders, epsilons, 1e-5)
    assert epsilon == pytest.approx(
        accounting.epsilon_spent(
            noise_multiplier=1.1, steps=500, sampling_rate=0.02, delta=1e-5, accountant="rdp"
        )
    )  # fmt: skip
    full = dict(accounting.rdp_curve(noise_multiplier=2.0, steps=10))
    assert full[8.0] == pytest.approx(8 * 10 / (2 * 2.0**2))

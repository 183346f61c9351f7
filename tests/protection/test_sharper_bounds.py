"""Bounds on advantage, information, many records and Fisher information: the best attacks known never beat them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from divulge.core.errors import InvalidInput
from divulge.protection import (
    error_bound,
    fisher_error_bound,
    information_bound,
    log_kappa_covariance,
    log_kappa_gaussian,
    many_records_bound,
    most_rebuilt,
    reconstruction_advantage_bound,
    reconstruction_bound,
    spread_of,
    unbiased_error_bound,
)


@pytest.mark.parametrize("mu", [0.2, 1.0, 3.0])
def test_who_knows_all_but_one_bit_beats_the_bound_of_the_population_and_not_the_advantage(mu: float) -> None:
    # a record is a name (one of 50, known to the attacker) and a bit; the release is mu x bit plus a standard normal
    success, without = float(ndtr(mu)), 0.5  # the sign of the release; a coin
    assert success > reconstruction_bound(1 / 100, gaussian=mu)  # kappa of somebody who does not know the name
    assert success <= reconstruction_bound(1 / 2, gaussian=mu)  # kappa of this attacker
    assert success - without <= reconstruction_advantage_bound(gaussian=mu)
    assert success - without <= reconstruction_advantage_bound(gaussian=mu, kappa=0.5)
    replaced = reconstruction_advantage_bound(gaussian=mu, counterfactual="replaced", same=0.5)
    assert success - without == pytest.approx(replaced, rel=1e-12)  # the sign is the best attack: the bound is reached


@pytest.mark.parametrize("given", [{"epsilon": 1.0}, {"epsilon": 1.0, "delta": 0.01}, {"zcdp": 0.5}, {"gaussian": 1.0}])
def test_the_advantage_is_the_largest_gain_over_every_kappa(given: dict[str, float]) -> None:
    gains = [reconstruction_bound(k, **given) - k for k in np.linspace(0.001, 0.999, 999)]  # type: ignore[arg-type]
    found = reconstruction_advantage_bound(**given)  # type: ignore[arg-type]
    if "zcdp" in given:  # for which both roles of the neighbours are used; the Gaussian mechanism has this rho
        assert reconstruction_advantage_bound(gaussian=1.0) <= found <= max(gains)
    else:
        assert found == pytest.approx(max(gains), abs=2e-3)
    absent, replaced = (
        reconstruction_advantage_bound(**given, counterfactual=how)  # type: ignore[arg-type]
        for how in ("absent", "replaced")
    )
    assert absent <= replaced <= min(1.0, 2 * absent)


def test_information_is_the_divergence_of_the_mechanism() -> None:
    draws = np.random.default_rng(0).normal(1.3, 1, 200_000)
    measured = float((1.3 * draws - 1.3**2 / 2).mean())  # KL of N(1.3, 1) from N(0, 1)
    assert information_bound(gaussian=1.3) == pytest.approx(measured, abs=0.02)
    p = math.exp(2.0) / (1 + math.exp(2.0))  # randomised response reaches the bound of pure DP
    assert information_bound(epsilon=2.0) == pytest.approx((2 * p - 1) * 2.0)
    assert information_bound(rdp=[(2.0, 3.0), (1.1, 1.5)]) == 1.5
    with pytest.raises(InvalidInput, match="exactly one way"):
        information_bound()


@pytest.mark.parametrize("nats", [0.0, 0.5, 3.0, 40.0])
def test_the_error_bound_is_reverse_water_filling(nats: float) -> None:
    variances = np.array([5.0, 3.0, 1.0, 0.2, 0.01])

    def rate(level: float) -> float:
        return float(np.maximum(0, np.log(variances / level)).sum() / 2) - nats

    level = 5.0 if nats == 0 else brentq(rate, 1e-30, 5.0, xtol=1e-25, rtol=1e-14)
    assert error_bound(variances, nats) == pytest.approx(np.minimum(variances, level).sum() / variances.sum(), rel=1e-6)
    assert error_bound([2.0] * 7, nats) == pytest.approx(math.exp(-2 * nats / 7))


@pytest.mark.parametrize("mu", [0.5, 3.0, 10.0])
def test_the_best_linear_attack_on_a_clipped_gaussian_release_does_not_beat_the_error_bound(mu: float) -> None:
    draw, d, clip = np.random.default_rng(0), 40, math.sqrt(40)
    x = draw.normal(size=(4000, d))
    released = mu / clip * x * np.minimum(1, clip / np.linalg.norm(x, axis=1, keepdims=True)) + draw.normal(
        size=x.shape
    )
    gain = float((released * x).mean() / (released**2).mean())  # least squares on the truth itself
    error = float(np.square(gain * released - x).mean())
    limit = error_bound([1.0] * d, information_bound(gaussian=mu))
    assert limit <= error * 1.02
    assert limit > 0.25 * error  # and it is not idle: at mu 10 it still demands much of the error
    if mu == 10.0:
        assert reconstruction_bound(1e-3, gaussian=mu) > 0.999  # where the bound on the chance says nothing


def test_records_in_few_directions_have_a_small_effective_dimension() -> None:
    draw = np.random.default_rng(0)
    low = draw.normal(size=(500, 3)) @ draw.normal(size=(3, 30))
    assert spread_of(low).effective_dimension <= 3
    assert len(spread_of(low).variances) == 3
    assert spread_of(draw.normal(size=(5000, 30))).effective_dimension == pytest.approx(30, rel=0.02)
    assert spread_of(low * np.geomspace(1, 1e6, 30), units="scaled").total == pytest.approx(30)
    for wrong in (np.ones((30, 2)), np.ones((3, 2))):
        with pytest.raises(InvalidInput):
            spread_of(wrong)


@pytest.mark.parametrize("eta", [0.5, 1.5, 3.0])
def test_no_ball_holds_more_of_a_gaussian_prior_than_the_limit(eta: float) -> None:
    variances = np.array([2.0, 1.0, 1.0, 0.5, 0.1])
    draws = np.random.default_rng(0).normal(size=(200_000, 5)) * np.sqrt(variances)
    limit = math.exp(log_kappa_covariance(variances, eta))
    for centre in (np.zeros(5), np.array([0.5, 0, 0, 0, 0]), draws[0]):
        assert (np.linalg.norm(draws - centre, axis=1) <= eta).mean() <= limit
    for d in (10, 1000):  # equal variances: within the polynomial factor of the exact value
        exact, found = log_kappa_gaussian(d, 0.3 * math.sqrt(d)), log_kappa_covariance([1.0] * d, 0.3 * math.sqrt(d))
        assert exact <= found <= exact + math.log(d) + 2
    assert log_kappa_covariance(variances, 10.0) == 0.0


def _rows(k: int, m: int, mu: float) -> float:
    """The chance of the best attack on one of k records, each with its own coordinates: the largest of m normals."""
    draws = np.random.default_rng(0).normal(size=(min(100_000, 5_000_000 // m), m))
    draws[:, 0] += mu
    return float((draws.argmax(axis=1) == 0).mean())


@pytest.mark.parametrize("mu", [0.05, 0.5, 2.0])
def test_rebuilding_every_record_apart_never_beats_the_bound_on_many(mu: float) -> None:
    k, m = 60, 20
    chance = _rows(k, m, mu)
    for rebuilt in (1, 3, 6, 12, 30, 60):
        tail = float(binom.sf(rebuilt - 1, k, chance))
        for given in ({"gaussian": mu}, {"zcdp": mu**2 / 2}):
            assert tail <= many_records_bound(1 / m, k, rebuilt, **given) + 0.01  # type: ignore[arg-type]


@pytest.mark.parametrize("mu", [0.5, 1.67])
def test_a_million_records_are_not_said_to_be_safe_because_a_chance_is_too_small_to_write(mu: float) -> None:
    k, m = 1_000_000, 1000  # 4,000 blind successes have a chance below 1e-308
    surely = int(binom.isf(0.9, k, _rows(k, m, mu)))
    assert most_rebuilt(1 / m, k, gaussian=mu) >= surely
    assert many_records_bound(1e-300, 100, 2, gaussian=1e3) == 1  # two blind successes: 10^-600


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_randomised_response_of_many_records_never_beats_the_bound(epsilon: float) -> None:
    truth = min(math.exp(epsilon) / 2, 1 - math.exp(-epsilon) / 2)  # against a coin where the record is absent
    for rebuilt in (10, 30, 45, 50):
        tail = float(binom.sf(rebuilt - 1, 50, truth))
        assert tail <= many_records_bound(0.5, 50, rebuilt, epsilon=epsilon) + 1e-12


def test_a_release_of_all_or_nothing_does_not_beat_the_bound_on_many() -> None:
    # one normal decides for all: the records' total x mu / k, of k bits that are all equal or not
    k, mu = 20, 1.0
    draw = np.random.default_rng(0)
    bits = draw.choice([-1, 1], size=(50_000, k))
    released = mu * bits.sum(axis=1) + draw.normal(size=50_000)
    guess = np.sign(released)[:, None]
    for rebuilt in (12, 15, 18, 20):
        tail = float(((bits == guess).sum(axis=1) >= rebuilt).mean())
        assert tail <= many_records_bound(0.5, k, rebuilt, gaussian=mu)


def test_limits_of_the_bound_on_many() -> None:
    assert many_records_bound(0.01, 1, 1, gaussian=1.0) == pytest.approx(float(ndtr(ndtri(0.01) + 1)))
    assert most_rebuilt(0.01, 1000, gaussian=0.001) <= binom.isf(0.02, 1000, 0.01) + 5  # next to no release: blind luck
    assert most_rebuilt(0.01, 50, gaussian=20.0) == 50
    numbers = [many_records_bound(0.05, 80, t, gaussian=0.2) for t in range(1, 81)]
    assert numbers == sorted(numbers, reverse=True)
    with pytest.raises(InvalidInput):
        many_records_bound(0.05, 10, 11, gaussian=0.2)


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_a_linear_gaussian_release_reaches_the_fisher_bound(scale: float) -> None:
    draw = np.random.default_rng(0)
    A, root = scale * draw.normal(size=(6, 4)), draw.normal(size=(4, 4))
    prior = root @ root.T
    x = draw.normal(size=(100_000, 4)) @ root.T
    released = x @ A.T + draw.normal(size=(len(x), 6))
    posterior = released @ np.linalg.solve(A @ prior @ A.T + np.eye(6), A @ prior)  # the best attack there is
    error = float(np.square(posterior - x).mean())
    assert fisher_error_bound(A.T @ A, prior) == pytest.approx(error, rel=0.02)


def test_fisher_bounds_in_the_limit_and_on_bad_input() -> None:
    prior = np.diag([1.0, 0.0])  # a column that never varies is known
    assert fisher_error_bound(np.zeros((2, 2)), prior) == pytest.approx(0.5)
    assert fisher_error_bound(1e9 * np.eye(2), prior) < 1e-8
    wrong: list[Callable[[], float]] = [
        lambda: fisher_error_bound(np.eye(2), np.eye(3)),
        lambda: fisher_error_bound(-np.eye(2), np.eye(2)),
        lambda: fisher_error_bound(np.array([[0.0, 1.0], [0.0, 0.0]]), np.eye(2)),
        lambda: unbiased_error_bound([1.0]),
        lambda: unbiased_error_bound([-1.0], gaussian=1.0),
    ]
    for call in wrong:
        with pytest.raises(InvalidInput):
            call()


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 20.0])
def test_an_estimate_without_bias_is_no_better_than_its_bound(mu: float) -> None:
    # a column in [-1, 1] released as mu x column plus a standard normal; divided by mu it has no bias
    assert unbiased_error_bound([2.0], gaussian=mu) <= 1 / mu**2
    assert unbiased_error_bound([2.0], zcdp=mu**2 / 2) == unbiased_error_bound([2.0], gaussian=mu)
    assert unbiased_error_bound([2.0], gaussian=0.001) == pytest.approx(1 / (4e-6), rel=0.01)

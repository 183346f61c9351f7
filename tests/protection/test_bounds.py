"""The bounds against independent computations: simulated optimal attacks, numerical integration, published formulas."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from scipy import integrate, optimize
from scipy.stats import norm

from divulge.core.errors import InvalidInput
from divulge.protection import bounds, inverse_bounds, mechanisms
from divulge.protection.bounds import reconstruction_bound


def _optimal_success(mu: float, records: int, draws: int = 400_000, seed: int = 0) -> float:
    """The best attack on a toy mechanism: ``records`` equally likely secrets, one-hot with noise 1/mu each.

    Secret j is released as mu e_j + N(0, I): every pair of releases with and without the record is Gaussian with
    parameter mu. The maximum a posteriori guess is the largest coordinate.
    """
    rng = np.random.default_rng(seed)
    release = rng.standard_normal((draws // records, records))
    release[:, 0] += mu
    return float((release.argmax(axis=1) == 0).mean())


@pytest.mark.parametrize("records", [2, 10, 100])
@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0, 4.0])
def test_no_simulated_optimal_attack_beats_any_bound(records: int, mu: float) -> None:
    success = _optimal_success(mu, records)
    slack = 4 * math.sqrt(success * (1 - success) / (400_000 // records)) + 1e-9
    kappa = 1 / records
    tight = reconstruction_bound(kappa, gaussian=mu)
    assert success <= tight + slack
    assert tight <= reconstruction_bound(kappa, zcdp=mu**2 / 2) + 1e-12
    orders = [(alpha, alpha * mu**2 / 2) for alpha in (1.5, 2, 4, 8, 16, 64)]
    assert tight <= reconstruction_bound(kappa, rdp=orders) + 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("kappa", [1e-6, 1e-2, 0.3, 0.9])
def test_the_gaussian_bound_is_reached_by_the_best_test_found_by_integration(kappa: float, mu: float) -> None:
    # among all events of probability kappa without the record, the likelihood-ratio one is the most probable with it
    threshold = optimize.brentq(
        lambda t: integrate.quad(norm.pdf, t, 40, epsabs=1e-13, epsrel=1e-11)[0] - kappa, -12, 12, xtol=1e-13
    )
    power = integrate.quad(lambda x: norm.pdf(x - mu), threshold, 50, points=[mu], epsabs=1e-13, limit=200)[0]
    assert reconstruction_bound(kappa, gaussian=mu) == pytest.approx(power, rel=1e-6)


def test_the_gaussian_bound_is_within_one_percent_of_an_attack_that_exists() -> None:
    # a record from a continuum with kappa small: a secret whose release crosses a threshold is claimed
    mu, kappa = 2.0, 0.01
    release = np.random.default_rng(1).standard_normal(4_000_000) + mu
    success = float((release > norm.ppf(1 - kappa)).mean())
    assert success == pytest.approx(reconstruction_bound(kappa, gaussian=mu), rel=0.01)


@pytest.mark.parametrize("records", [2, 5, 50])
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 5.0])
def test_randomised_response_meets_the_pure_dp_bound(records: int, epsilon: float) -> None:
    # k secrets, the truth kept with probability e^eps / (e^eps + k - 1): the optimal attack believes the answer. The
    # reference that does not depend on the secret answers uniformly; the privacy loss against it goes both ways.
    kept = math.exp(epsilon) / (math.exp(epsilon) + records - 1)
    towards, away = math.log(records * kept), math.log((records - 1) / (records * (1 - kept)))
    bound = reconstruction_bound(1 / records, epsilon=max(towards, away))
    assert kept <= bound * (1 + 1e-12)
    if towards >= away:
        assert bound == pytest.approx(kept, rel=1e-9)


def test_theorem_2_tends_to_corollary_3_and_corollary_4_is_its_best_order() -> None:
    log_kappa = math.log(1e-4)
    assert bounds.log_bound_rdp(log_kappa, math.inf, 3.0) == pytest.approx(log_kappa + 3.0)
    assert bounds.log_bound_rdp(log_kappa, 1e9, 3.0) == pytest.approx(log_kappa + 3.0, rel=1e-6)
    rho = 1.7
    alphas = np.linspace(1.001, 60, 200_000)
    best = min((a - 1) / a * (log_kappa + a * rho) for a in alphas)
    assert bounds.log_bound_zcdp(log_kappa, rho) == pytest.approx(best, rel=1e-6)
    assert bounds.log_bound_zcdp(log_kappa, 100.0) == 0.0


def test_theorem_5_gives_back_the_delta_of_the_gaussian_mechanism_on_two_points() -> None:
    # with prior 1/(e^eps + 1) the best guess between two records reaches gamma; the theorem's delta is the mechanism's
    epsilon, mu = 0.8, 1.5
    p = 1 / (math.exp(epsilon) + 1)

    thresholds = np.linspace(-10, 10, 200_001)  # guess the rarer record above the threshold
    gamma = float((p * norm.sf(thresholds - mu) + (1 - p) * norm.cdf(thresholds)).max())
    delta = norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2)
    assert bounds.dp_from_robustness(epsilon, gamma) == pytest.approx(delta, rel=1e-6)
    assert bounds.dp_from_robustness(50.0, 0.999) == 0.0
    assert bounds.dp_from_robustness(1.0, 1.0) == 1.0


@pytest.mark.slow
def test_sampled_training_is_bounded_between_full_batch_and_a_simulated_attack() -> None:
    noise, rate, steps, kappa = 1.0, 0.2, 10, 0.05
    bound = mechanisms.subsampled_bound(kappa, noise_multiplier=noise, sampling_rate=rate, steps=steps)
    assert bound < reconstruction_bound(kappa, gaussian=mechanisms.gaussian_mu(noise, steps))
    rng = np.random.default_rng(0)

    def likelihood_ratio(x: np.ndarray) -> np.ndarray:
        return np.log1p(rate * np.expm1(x / noise**2 - 0.5 / noise**2)).sum(axis=1)

    without = rng.standard_normal((400_000, steps)) * noise
    present = without + (rng.random(without.shape) < rate)
    threshold = np.quantile(likelihood_ratio(without), 1 - kappa)
    best = float(
        (likelihood_ratio(rng.standard_normal(present.shape) * noise + (present - without)) > threshold).mean()
    )
    assert best <= bound * 1.01
    assert bound <= best * 1.05  # and the bound is not idle


@pytest.mark.slow
@pytest.mark.parametrize("kappa", [1e-4, 0.02, 0.4])
def test_one_sampled_step_is_the_best_test_between_a_gaussian_and_a_mixture(kappa: float) -> None:
    # one step, by hand: reference N(0, s), with the record (1 - q) N(0, s) + q N(1, s); the ratio rises with x
    noise, rate = 0.7, 0.3
    threshold = noise * norm.isf(kappa)
    power = (1 - rate) * norm.sf(threshold / noise) + rate * norm.sf((threshold - 1) / noise)
    bound = mechanisms.subsampled_bound(kappa, noise_multiplier=noise, sampling_rate=rate, steps=1)
    assert power <= bound * (1 + 1e-9)
    assert bound <= 1.05 * power


@pytest.mark.slow
def test_the_smallest_noise_of_sampled_training_is_on_the_safe_side() -> None:
    for gamma in (0.05, 0.3):
        noise = inverse_bounds.smallest_noise(math.log(0.01), gamma, steps=20, sampling_rate=0.3)
        assert mechanisms.subsampled_bound(0.01, noise_multiplier=noise, sampling_rate=0.3, steps=20) <= gamma


@pytest.mark.slow
def test_with_every_record_in_every_batch_the_sampled_bound_is_the_gaussian_one() -> None:
    sampled = mechanisms.subsampled_bound(1e-3, noise_multiplier=10.0, sampling_rate=1.0, steps=100)
    assert sampled == pytest.approx(reconstruction_bound(1e-3, gaussian=1.0), rel=5e-3)
    assert sampled >= reconstruction_bound(1e-3, gaussian=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("gamma", [1e-3, 0.05, 0.6])
def test_the_inverse_answers_are_just_enough(gamma: float) -> None:
    log_kappa = math.log(2e-4)
    assert reconstruction_bound(
        log_kappa=log_kappa, epsilon=inverse_bounds.largest_epsilon(log_kappa, gamma)
    ) == pytest.approx(gamma)
    assert reconstruction_bound(
        log_kappa=log_kappa, zcdp=inverse_bounds.largest_rho(log_kappa, gamma)
    ) == pytest.approx(gamma)
    assert reconstruction_bound(
        log_kappa=log_kappa, gaussian=inverse_bounds.largest_mu(log_kappa, gamma)
    ) == pytest.approx(gamma)
    noise = inverse_bounds.smallest_noise(log_kappa, gamma, steps=100)
    assert reconstruction_bound(log_kappa=log_kappa, gaussian=mechanisms.gaussian_mu(noise, 100)) == pytest.approx(
        gamma
    )
    assert inverse_bounds.smallest_noise(log_kappa, gamma, steps=100, theorem="zcdp") >= noise
    sampled = inverse_bounds.smallest_noise(log_kappa, gamma, steps=20, sampling_rate=0.3)
    reached = mechanisms.subsampled_bound(log_kappa=log_kappa, noise_multiplier=sampled, sampling_rate=0.3, steps=20)
    assert reached == pytest.approx(gamma, rel=0.05)


@pytest.mark.slow
def test_a_rarely_sampled_record_needs_next_to_no_noise() -> None:
    assert inverse_bounds.smallest_noise(math.log(1e-9), 0.9, steps=10, sampling_rate=0.01) < 0.4


def test_a_picture_of_3072_pixels_does_not_underflow() -> None:
    log_kappa = 3072 * math.log(0.5)
    assert bounds.log_bound_gaussian(log_kappa, 10.0) < -1000
    assert bounds.log_bound_gaussian(log_kappa, 10.0) <= bounds.log_bound_zcdp(log_kappa, 50.0)
    assert reconstruction_bound(log_kappa=log_kappa, epsilon=100.0) == 0.0
    assert inverse_bounds.largest_epsilon(log_kappa, 0.01) > 2000


def test_a_hundred_bounds_take_less_than_a_second() -> None:
    started = time.perf_counter()
    for epsilon in np.geomspace(0.1, 1e4, 100):
        reconstruction_bound(1e-3, epsilon=epsilon)
        reconstruction_bound(1e-3, zcdp=epsilon)
        reconstruction_bound(1e-3, gaussian=epsilon)
    assert time.perf_counter() - started < 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"kappa": 0.0, "epsilon": 1.0}, "strictly between 0 and 1"),
        ({"kappa": 1.0, "epsilon": 1.0}, "kappa = 1"),
        ({"kappa": 0.1}, "exactly one way"),
        ({"kappa": 0.1, "epsilon": 1.0, "zcdp": 1.0}, "exactly one way"),
        ({"kappa": 0.1, "log_kappa": -1.0, "epsilon": 1.0}, "one of the two"),
        ({"log_kappa": 0.0, "epsilon": 1.0}, "negative"),
        ({"kappa": 0.1, "epsilon": math.inf}, "no protection"),
        ({"kappa": 0.1, "epsilon": -1.0}, "zero or more"),
        ({"kappa": 0.1, "epsilon": 1.0, "delta": 1.5}, "delta"),
        ({"kappa": 0.1, "rdp": (1.0, 2.0)}, "larger than 1"),
        ({"kappa": 0.1, "gaussian": math.nan}, "zero or more"),
    ],
)
def test_nonsense_gets_one_clear_sentence(arguments: dict[str, float], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        reconstruction_bound(**arguments)


def test_impossible_wishes_are_named() -> None:
    with pytest.raises(InvalidInput, match="blind guess already"):
        inverse_bounds.largest_epsilon(math.log(0.1), 0.05)
    with pytest.raises(InvalidInput, match="chance you accept"):
        inverse_bounds.largest_mu(math.log(0.1), 1.0)
    with pytest.raises(InvalidInput, match="probability"):
        bounds.dp_from_robustness(1.0, 1.2)
    with pytest.raises(InvalidInput, match="at least one step"):
        mechanisms.gaussian_mu(1.0, 0)
    with pytest.raises(InvalidInput, match="noise multiplier"):
        mechanisms.gaussian_mu(0.0, 10)
    with pytest.raises(InvalidInput, match="sampling rate"):
        mechanisms.subsampled_bound(0.1, noise_multiplier=1.0, sampling_rate=0.0, steps=5)
    with pytest.raises(InvalidInput, match="no form for sampled"):
        inverse_bounds.smallest_noise(-5.0, 0.1, steps=5, sampling_rate=0.5, theorem="zcdp")
    with pytest.raises(InvalidInput, match="theorem is"):
        inverse_bounds.smallest_noise(-5.0, 0.1, steps=5, theorem="nine")

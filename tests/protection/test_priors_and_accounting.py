"""kappa against Monte Carlo and scipy; the accountant's figures against Opacus and against its own calibration."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from divulge import datasets
from divulge.core.errors import InvalidInput
from divulge.protection import priors
from divulge.training.private import accounting


@pytest.mark.parametrize("dimension", [1, 3, 10, 200])
@pytest.mark.parametrize("ratio", [0.3, 1.0, 2.0])
def test_the_gaussian_prior_is_the_chi_square_distribution(dimension: int, ratio: float) -> None:
    eta = ratio * math.sqrt(dimension)
    assert priors.log_kappa_gaussian(dimension, eta) == pytest.approx(
        chi2.logcdf(eta**2, dimension), rel=1e-9, abs=1e-12
    )


def test_the_uniform_prior_is_a_ratio_of_volumes() -> None:
    points = np.random.default_rng(0).standard_normal((400_000, 3))
    radii = np.random.default_rng(1).random(400_000) ** (1 / 3)
    ball = points / np.linalg.norm(points, axis=1, keepdims=True) * radii[:, None]
    inside = float((np.linalg.norm(ball, axis=1) <= 0.4).mean())
    assert math.exp(priors.log_kappa_uniform(3, 0.4)) == pytest.approx(inside, rel=0.02)


def test_pictures_of_3072_pixels_have_a_finite_logarithm() -> None:
    assert -1e5 < priors.log_kappa_gaussian(3072, 5.0) < -1000
    assert priors.log_kappa_uniform(3072, 0.9) == pytest.approx(3072 * math.log(0.9))


@pytest.mark.slow
def test_kappa_from_data_agrees_with_the_closed_form_of_the_prior_it_was_drawn_from() -> None:
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(8000, 4, generator=generator)
    kappa = priors.estimate_kappa(data, 1.0, error="l2")
    truth = math.exp(priors.log_kappa_gaussian(4, 1.0))
    assert kappa.estimate <= truth * 1.1  # no guess beats the centre
    assert kappa.upper >= truth * 0.8
    assert kappa.ceiling >= truth
    assert float(kappa.guess.norm()) < 0.5


@pytest.mark.slow
def test_kappa_is_measured_in_the_error_that_was_chosen() -> None:
    data = torch.rand(4000, 2, generator=torch.Generator().manual_seed(1))
    truth = {"max": 0.4**2, "l1": 2 * 0.2**2, "l2": math.pi * 0.2**2, "mse": math.pi * 2 * 0.2**2}
    for error, area in truth.items():
        eta = 0.2**2 if error == "mse" else 0.2
        kappa = priors.estimate_kappa(data, eta, error=error)
        assert kappa.estimate <= area * 1.2
        assert kappa.upper >= area * 0.9
        assert kappa.ceiling >= area


@pytest.mark.slow
def test_kappa_is_not_fitted_to_the_records_it_is_measured_on() -> None:
    X, _ = datasets.load("digits").train
    close = priors.estimate_kappa(X, 0.005)
    wide = priors.estimate_kappa(X, 0.05)
    assert 0 <= close.estimate < wide.estimate <= wide.upper <= wide.ceiling <= 1
    assert close.log_upper < 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "chances",
    [np.ones(300) / 300, np.r_[0.06, np.full(940, 1e-3)], (1 / np.arange(1, 400)) / (1 / np.arange(1, 400)).sum()],
    ids=["even", "one-heavy", "zipf"],
)
@pytest.mark.parametrize("records", [20, 60, 300])
def test_the_ceiling_covers_the_best_guess_of_populations_whose_kappa_is_known(
    chances: np.ndarray, records: int
) -> None:
    # points ten apart: the best guess within half is the likeliest point, and kappa its chance
    rng, wrong, repeats = np.random.default_rng(0), 0, 60
    for seed in range(repeats):
        drawn = 10.0 * rng.choice(len(chances), records, p=chances)
        wrong += priors.estimate_kappa(torch.tensor(drawn)[:, None], 0.5, error="l2", seed=seed).ceiling < chances.max()
    assert wrong <= 0.05 * repeats


def test_the_ceiling_counts_the_chance_that_no_record_fell_into_the_best_ball() -> None:
    # one centre: a ball that it missed may have any probability up to 1 - a / 2
    spread = 10.0 * torch.arange(4000.0)[:, None]
    assert priors.estimate_kappa(spread, 0.5, error="l2", candidates=1).ceiling == pytest.approx(0.975)
    many = priors.estimate_kappa(spread, 0.5, error="l2", candidates=200)
    assert many.ceiling == pytest.approx(1 - 0.025 ** (1 / 200))


@pytest.mark.slow
def test_the_limit_holds_for_all_guesses_at_once_and_hardly_depends_on_the_seed() -> None:
    X, _ = datasets.load("breast-cancer").train
    scaled = (X - X.mean(dim=0)) / X.std(dim=0)
    found = [priors.estimate_kappa(scaled, 0.1, seed=seed) for seed in range(6)]
    for one in found:
        for other in found:  # a guess of another seed, on all records
            share = float(((scaled - other.guess).square().mean(dim=1) <= 0.1).double().mean())
            assert share <= one.upper
    assert max(one.upper for one in found) < 1.3 * min(one.upper for one in found)


@pytest.mark.slow
def test_who_knows_all_columns_but_one_has_a_larger_kappa() -> None:
    # the bound of the population says nothing about them: the caveat of every sentence with kappa in it
    data = torch.randn(2000, 6, generator=torch.Generator().manual_seed(0))
    population = priors.estimate_kappa(data, 0.1)
    knows_the_rest = priors.estimate_kappa(data[:, :1], 0.1 * 6)  # the same squared error, all of it in one column
    assert knows_the_rest.estimate > 20 * population.upper


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "rate", "steps"), [(1.1, 0.02, 500), (0.8, 0.1, 50), (2.0, 1.0, 30)])
def test_the_accountants_agree_with_opacus(noise: float, rate: float, steps: int) -> None:
    from opacus.accountants import PRVAccountant, RDPAccountant

    renyi, loss = RDPAccountant(), PRVAccountant()
    renyi.history = loss.history = [(noise, rate, steps)]
    ours = accounting.privacy_spent(noise_multiplier=noise, steps=steps, sampling_rate=rate, delta=1e-5)
    assert ours.epsilon_rdp == pytest.approx(renyi.get_epsilon(1e-5), rel=3e-3)  # they try other orders
    assert ours.epsilon == ours.epsilon_pld < ours.epsilon_rdp
    if rate < 1:  # theirs is an upper limit, to within 0.01
        assert ours.epsilon_pld <= loss.get_epsilon(1e-5) <= ours.epsilon_pld + 0.02


@pytest.mark.slow
def test_the_accountants_are_dp_accountings_own() -> None:
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    theirs = RdpAccountant().compose(PoissonSampledDpEvent(0.02, GaussianDpEvent(1.1)), 500)
    ours = accounting.privacy_spent(noise_multiplier=1.1, steps=500, sampling_rate=0.02, delta=1e-5)
    assert ours.epsilon_rdp == theirs.get_epsilon(1e-5)
    assert accounting.noise_for(ours.epsilon_pld, delta=1e-5, steps=500, sampling_rate=0.02) == pytest.approx(
        1.1, rel=2e-3
    )


@pytest.mark.parametrize("epsilon", [0.5, 10.0, 1000.0])
def test_full_batch_noise_spends_what_was_asked(epsilon: float) -> None:
    noise = accounting.noise_for(epsilon, delta=1e-5, steps=100)
    spent = accounting.privacy_spent(noise_multiplier=noise, steps=100, delta=1e-5)
    assert spent.epsilon_pld == pytest.approx(epsilon, rel=1e-6)
    assert accounting.noise_for(epsilon, delta=1e-5, steps=100, accountant="rdp") >= noise if epsilon < 100 else True


@pytest.mark.slow
def test_nonsense_gets_one_clear_sentence() -> None:
    for call, sentence in [
        (lambda: priors.log_kappa_uniform(3, 1.0), "centre of the ball"),
        (lambda: priors.log_kappa_uniform(0, 0.5), "dimension"),
        (lambda: priors.log_kappa_gaussian(3, -1.0), "positive"),
        (lambda: priors.estimate_kappa(torch.zeros(3, 2), 0.1), "too few"),
        (lambda: priors.estimate_kappa([["a"]] * 30, 0.1), "rows of numbers"),
        (lambda: priors.log_kappa_gaussian(3, 100.0), "kappa is 1"),
        (lambda: priors.estimate_kappa(torch.full((30, 2), math.nan), 0.1), "NaN"),
        (lambda: priors.estimate_kappa(torch.zeros(30, 2), 0.1, confidence=1.0), "confidence"),
        (lambda: priors.estimate_kappa(torch.zeros(30, 2), 0.0), "eta"),
        (lambda: priors.estimate_kappa(torch.zeros(30, 2), 0.1, error="cosine"), "error is"),
        (lambda: accounting.privacy_spent(noise_multiplier=1, steps=1, delta=0), "delta"),
        (lambda: accounting.privacy_spent(noise_multiplier=0, steps=1, delta=0.1), "noise multiplier"),
        (lambda: accounting.privacy_spent(noise_multiplier=1, steps=0, delta=0.1), "step"),
        (
            lambda: accounting.epsilon_spent(noise_multiplier=1, steps=5, delta=1e-300, sampling_rate=0.5),
            "larger delta",
        ),
        (lambda: accounting.noise_for(math.inf, delta=1e-5, steps=1), "finite"),
        (lambda: accounting.noise_for(1.0, delta=1e-5, steps=1, sampling_rate=2), "sampling rate"),
        (lambda: accounting.noise_for(1.0, delta=1e-5, steps=1, accountant="own"), "accountant is"),
        (lambda: accounting.noise_for(1e6, delta=1e-5, steps=1, sampling_rate=0.5), "smaller epsilon"),
    ]:
        with pytest.raises(InvalidInput, match=sentence):
            call()


@pytest.mark.slow
def test_next_to_no_noise_is_accounted_for_in_seconds_and_on_the_safe_side() -> None:
    fine = accounting.epsilon_spent(noise_multiplier=0.3, steps=200, delta=1e-5, sampling_rate=0.1)
    limit = accounting.epsilon_spent(noise_multiplier=0.3, steps=200, delta=1e-5)
    assert 0 < fine < limit
    started = time.process_time()
    spent = accounting.privacy_spent(noise_multiplier=1e-3, steps=10, delta=1e-5, sampling_rate=0.5)
    assert time.process_time() - started < 10
    assert 0.5 * 10 / (2 * 1e-3**2) < spent.epsilon_pld < 10 / (2 * 1e-3**2) * 1.05
